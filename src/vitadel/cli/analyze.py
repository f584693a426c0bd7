"""`vitadel analyze`: a study of a model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import (
    BatchOption,
    ClassesOption,
    DataOption,
    ImageSizeOption,
    JsonOption,
    MeanOption,
    ModelArgument,
    ModelOptions,
    PatchSizeOption,
    PreprocessOption,
    RunOption,
    SeedOption,
    SplitOption,
    StdOption,
    open_model_and_data,
    say_what_is_assumed,
)
from vitadel.cli.settings import with_settings, without_bulk
from vitadel.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from vitadel.analyze import Study
    from vitadel.report import Findings

_USUAL_THREAT = "linf:8/255"


def analyze(
    study: Annotated[str, typer.Argument(help="NAME[:key=value,...] from `vitadel studies`", metavar="STUDY")],
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat", help=f"where a study that attacks may go: linf:4/255, l2:0.5; {_USUAL_THREAT} if not said"
        ),
    ] = None,
    preprocess: PreprocessOption = None,
    classes: ClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    json: JsonOption = False,
) -> None:
    """Study a model: measurements, figures, findings; killed at any moment, the same command goes on."""
    from vitadel import report
    from vitadel import threats as threats
    from vitadel.analyze import Bench, Parts
    from vitadel.core.device import device_name
    from vitadel.models import identity
    from vitadel.runs import Run

    chosen, radius = read_study(study), threats.read(threat or _USUAL_THREAT)
    if threat is not None and not chosen.needs_threat:
        raise UsageError(f"the study {study.partition(':')[0]} attacks nothing, got --threat {threat}. Leave it out.")
    options = ModelOptions(classes, image_size, patch_size, mean, std)
    loaded, dataset, name = open_model_and_data(model, data, preprocess, options)
    chosen.refuse(loaded)
    images, assumed = dataset.split(split), options.assumed(loaded, model)
    if chosen.needs_threat:
        threats.check_size(radius, (3, *images.pixels.image_size))
    if len(images) == 0:
        raise UsageError(f"the {split} split of {data} is empty, so there is nothing to study.")
    parts = {
        "study": chosen,
        "model": identity(loaded, name),
        "data": dataset.describe(),
        "split": split,
        **({"threat": radius} if chosen.needs_threat else {}),
        "seed": seed,
        **({"assumed": assumed} if assumed else {}),
    }
    claimed = Run.claim(run, "analyze", parts, device=device_name())
    if not json:
        say_what_is_assumed(loaded, model, options)
    with show.progress(quiet=json) as notify:
        result = chosen.carry_out(Bench(loaded, images, Parts.of(claimed), radius, seed, batch, notify))
    figures, found = report.write_figures(run), report.read_study(run)
    if json:
        show.as_json({"run": str(run), **without_bulk(result), "figures": [str(path) for path in figures]})
        return
    _show_findings(name, found) if isinstance(found, report.Findings) else _show_verdict(name, result)
    show.line(f"figures: {figures[0].parent}" if figures else "no figures")


def read_study(text: str) -> "Study":
    """The study that `masking:queries=1000,iterations=10+20` stands for."""
    from vitadel.analyze import STUDIES

    name, _, rest = text.partition(":")
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return with_settings(STUDIES[name](), name, rest)


def _show_findings(title: str, found: "Findings") -> None:
    show.line(f"{found.title}: {title}")
    show.line(found.summary)
    for table in found.tables:
        show.table(table.title, table.columns, table.rows)


def _show_verdict(title: str, result: Mapping[str, object]) -> None:
    verdict, threat, clean = result["verdict"], result["threat"], result["clean"]
    assert isinstance(verdict, dict)
    assert isinstance(threat, dict)
    assert isinstance(clean, dict)
    rows = [[one["code"], one["points"], one["sentence"]] for one in verdict["evidence"]]
    interval = f"{clean['accuracy']:.1%} ({clean['low']:.1%}-{clean['high']:.1%})"
    show.table(f"{title}, {threat['text']}, clean {interval}", ["evidence", "points to", ""], rows)
    show.line(f"verdict: {verdict['answer']} ({verdict['because']})")
