"""Whether a model and a data set go together: classes of the same number, and names that can be written down."""

from collections.abc import Iterable

from torch import nn

from vitadel.core.errors import UsageError
from vitadel.data import SHAPES, DataSet


def refuse_other_classes(model: nn.Module, data: DataSet) -> None:
    """Raise if the model is known to choose among more or fewer classes than the data has.

    A label is a place among the classes of the data; to a model of others that number means another class. The shapes
    of cue-conflict stimuli are classes of no model: the suite that judges them knows what to make of them.
    """
    known = getattr(getattr(model, "spec", None), "output_classes", None)
    if known is None or known == data.num_classes or data.classes == SHAPES:
        return
    raise UsageError(
        f"the model answers with {known} classes and {data.spec} has {data.num_classes}, so a label is not the number "
        f"of an answer. Is it the model for this data set? Choose one with {data.num_classes} classes, or data with "
        f"all {known}: ImageNet's are read by imagenet:DIR, whichever of them have images."
    )


def refuse_unwritable_names(data: DataSet, split: str) -> None:
    """Raise if the name of an image or of a class is not UTF-8, as the files of an evaluation are."""
    for what, names in (("class", data.classes), ("image", data.split(split).ids)):
        if (name := _not_utf8(names)) is not None:
            raise UsageError(
                f"the {what} {name!a} of {data.spec} has a name that is not UTF-8, and no row can hold it. "
                "Rename its file or folder."
            )


def _not_utf8(names: Iterable[str]) -> str | None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            return name
    return None
