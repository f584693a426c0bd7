"""`vitadel analyse`: a study of a model."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import (
    BatchOption,
    ClassesOption,
    DataOption,
    JsonOption,
    ModelArgument,
    PreprocessOption,
    RunOption,
    SeedOption,
    SplitOption,
    ThreatOption,
    model_part,
    open_model_and_data,
)
from vitadel.errors import UsageError, unknown

if TYPE_CHECKING:
    from vitadel.analyse import Study

# what stands between the values of a list, as commas stand between settings
_AND = "+"


def analyse(
    study: Annotated[str, typer.Argument(help="NAME[:key=value,...] from `vitadel studies`", metavar="STUDY")],
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    threat: ThreatOption = "linf:8/255",
    preprocess: PreprocessOption = None,
    classes: ClassesOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    json: JsonOption = False,
) -> None:
    """Study a model: measurements, figures and a verdict; killed at any moment, the same command goes on."""
    from vitadel import threat as threats
    from vitadel.analyse import Parts
    from vitadel.evaluate import device_name
    from vitadel.report import write_figures
    from vitadel.runs import Run

    chosen, radius = read_study(study), threats.read(threat)
    loaded, dataset, name = open_model_and_data(model, data, preprocess, classes)
    chosen.refuse(loaded)
    images = dataset.split(split)
    parts = {
        "study": chosen,
        "model": model_part(loaded, name),
        "data": dataset.describe(),
        "split": split,
        "threat": radius,
        "seed": seed,
    }
    claimed = Run.claim(run, "analyse", parts, device=device_name())
    with show.progress(quiet=json) as notify:
        result = chosen.carry_out(loaded, images, Parts.of(claimed), radius, seed=seed, batch=batch, notify=notify)
    figures = write_figures(run)
    if json:
        show.as_json({"run": str(run), **_without_bins(result), "figures": [str(path) for path in figures]})
        return
    _show(name, result)
    show.line(f"figures: {figures[0].parent}" if figures else "no figures")


def read_study(text: str) -> "Study":
    """The study that `masking:queries=1000,iterations=10+20` stands for."""
    from vitadel.analyse import STUDIES

    name, _, rest = text.partition(":")
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]()
    known = [f.name for f in dataclasses.fields(study)]  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for setting in filter(None, rest.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or key not in known:
            raise unknown(f"setting of {name}", key, known)
        values[key] = _value(study, key, value, f"{name}:{key}")
    return dataclasses.replace(study, **values)  # type: ignore[type-var]


def _value(study: "Study", key: str, text: str, what: str) -> object:
    from vitadel.attacks import SCALINGS, Scaling
    from vitadel.threat import read_number

    default = getattr(study, key)
    if isinstance(default, Scaling):
        if text not in SCALINGS:
            raise unknown(what, text, SCALINGS)
        return SCALINGS[text]()
    whole = "float" not in str({f.name: f.type for f in dataclasses.fields(study)}[key])  # type: ignore[arg-type]
    texts = text.split(_AND) if isinstance(default, tuple) else [text]
    if whole and not all(one.isdecimal() for one in texts):
        several = f", several with {_AND} between them" if isinstance(default, tuple) else ""
        raise UsageError(f"{what} wants a whole number{several}, got {text!r}.")
    numbers = tuple(int(one) if whole else read_number(one, what) for one in texts)
    return numbers if isinstance(default, tuple) else numbers[0]


def _show(title: str, result: Mapping[str, object]) -> None:
    verdict, threat, clean = result["verdict"], result["threat"], result["clean"]
    assert isinstance(verdict, dict)
    assert isinstance(threat, dict)
    assert isinstance(clean, dict)
    rows = [[one["code"], one["points"], one["sentence"]] for one in verdict["evidence"]]
    interval = f"{clean['accuracy']:.1%} ({clean['low']:.1%}-{clean['high']:.1%})"
    show.table(f"{title}, {threat['text']}, clean {interval}", ["evidence", "points to", ""], rows)
    show.line(f"verdict: {verdict['answer']} ({verdict['because']})")


def _without_bins(value: object) -> dict[str, object]:
    """The result without its histograms, which are in the run folder and nobody reads."""

    def pruned(one: object) -> object:
        if isinstance(one, dict):
            return {key: pruned(inner) for key, inner in one.items() if key not in ("counts", "edges")}
        return [pruned(inner) for inner in one] if isinstance(one, list) else one

    kept = pruned(value)
    assert isinstance(kept, dict)
    return kept
