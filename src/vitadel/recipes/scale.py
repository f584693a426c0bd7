"""Where a row differs in scale from the run that a paper prints, so that the numbers do not compare."""

import re
from collections.abc import Sequence

from vitadel.recipes.columns import Column
from vitadel.recipes.published import PublishedSweep


def scale_differences(
    published: PublishedSweep,
    *,
    published_data: str,
    settings: Sequence[str],
    data: str | None,
    threat: str | None,
    columns: Sequence[Column],
) -> tuple[str, ...]:
    """What the user changed in a table: data, settings, threat and attacks.

    Args:
        published: The table.
        published_data: The data set of its recipe.
        settings: Settings beyond those of the table.
        data: The data set in place of the recipe's.
        threat: The threat in place of the table's.
        columns: What rows are evaluated with.
    """
    found = list(settings)
    if data is not None and _data_kind(data) != _data_kind(published_data):
        found.append(f"data {data}")
    if threat is not None and threat != published.threat:
        found.append(f"threat {threat}, not {published.threat}")
    own = {column.name: column.evaluation for column in published.columns}
    found += [
        f"robust accuracy by {column.name}, not {published.attack}"
        for column in columns
        if column.printed_as == "robust" and own.get("robust") != column.evaluation
    ]
    return tuple(found)


def image_difference(published: PublishedSweep, images: int) -> tuple[str, ...]:
    """Whether another number of test images was evaluated than in the paper."""
    wanted = published.test_images
    return () if wanted in (None, images) else (f"{images} test images, not {wanted}",)


def _data_kind(spec: str) -> tuple[str, bool, str]:
    """The kind of a data set, whether a list chooses among it, and the number of images it is cut to."""
    rest, _, first = spec.partition("[")
    return re.split("[:@]", rest, maxsplit=1)[0], "@" in rest, first
