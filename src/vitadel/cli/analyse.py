"""`vitadel analyse`: a study of a model."""

import dataclasses
import enum
import typing
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
    model_part,
    open_model_and_data,
)
from vitadel.errors import UsageError, unknown

if TYPE_CHECKING:
    from vitadel.analyse import Study
    from vitadel.report import Findings

# what stands between the values of a list, as commas stand between settings
_AND = "+"
_USUAL_THREAT = "linf:8/255"
# what a study keeps for figures and nobody reads
_BINS = ("counts", "edges")


def analyse(
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
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    json: JsonOption = False,
) -> None:
    """Study a model: measurements, figures, findings; killed at any moment, the same command goes on."""
    from vitadel import report
    from vitadel import threat as threats
    from vitadel.analyse import Parts
    from vitadel.evaluate import device_name
    from vitadel.runs import Run

    chosen, radius = read_study(study), threats.read(threat or _USUAL_THREAT)
    if threat is not None and not chosen.needs_threat:
        raise UsageError(f"the study {study.partition(':')[0]} attacks nothing, got --threat {threat}. Leave it out.")
    loaded, dataset, name = open_model_and_data(model, data, preprocess, classes)
    chosen.refuse(loaded)
    images = dataset.split(split)
    parts = {
        "study": chosen,
        "model": model_part(loaded, name),
        "data": dataset.describe(),
        "split": split,
        **({"threat": radius} if chosen.needs_threat else {}),
        "seed": seed,
    }
    claimed = Run.claim(run, "analyse", parts, device=device_name())
    with show.progress(quiet=json) as notify:
        result = chosen.carry_out(loaded, images, Parts.of(claimed), radius, seed=seed, batch=batch, notify=notify)
    figures, found = report.write_figures(run), report.read_study(run)
    if json:
        show.as_json({"run": str(run), **_without_bulk(result), "figures": [str(path) for path in figures]})
        return
    _show_findings(name, found) if isinstance(found, report.Findings) else _show_verdict(name, result)
    show.line(f"figures: {figures[0].parent}" if figures else "no figures")


def read_study(text: str) -> "Study":
    """The study that `masking:queries=1000,iterations=10+20` stands for."""
    from vitadel.analyse import STUDIES

    name, _, rest = text.partition(":")
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]()
    kinds = {f.name: typing.get_type_hints(type(study))[f.name] for f in dataclasses.fields(study)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for setting in filter(None, rest.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or key not in kinds:
            raise unknown(f"setting of {name}", key, kinds)
        values[key] = _value(kinds[key], value, f"{name}:{key}")
    return dataclasses.replace(study, **values)  # type: ignore[type-var]


def _value(kind: object, text: str, what: str) -> object:
    """The value of a setting: a number, words, true or false, one of a few choices, several of these, or none."""
    inner = typing.get_args(kind)
    if type(None) in inner:
        return None if text == "none" else _value(next(one for one in inner if one is not type(None)), text, what)
    if typing.get_origin(kind) is tuple:
        # () is written as nothing at all
        return tuple(_single(inner[0], one, what, several=True) for one in text.split(_AND)) if text else ()
    return _single(kind, text, what)


def _single(kind: object, text: str, what: str, *, several: bool = False) -> object:
    from vitadel.attacks import SCALINGS, Scaling
    from vitadel.threat import read_number

    if kind is Scaling:
        if text not in SCALINGS:
            raise unknown(what, text, SCALINGS)
        return SCALINGS[text]()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {str(one.value): one for one in kind}
        if text not in choices:
            raise unknown(what, text, choices)
        return choices[text]
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"{what} wants true or false, got {text!r}.")
        return text == "true"
    if kind is str:
        if not text:
            raise UsageError(f"{what} wants a word, got nothing. Leave the setting out for the usual one.")
        return text
    if kind is float:
        return read_number(text, what)
    assert kind is int, f"{what} is of a kind that cannot be written: {kind}"
    if not text.isdecimal():
        between = f", several with {_AND} between them" if several else ""
        raise UsageError(f"{what} wants a whole number{between}, got {text!r}.")
    return int(text)


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


def _without_bulk(result: Mapping[str, object]) -> dict[str, object]:
    """The result without pictures and histograms, which are in the run folder."""
    exhibits = result.get("exhibits")
    if isinstance(exhibits, list):
        return {**result, "exhibits": [_pruned(one, "cells") for one in exhibits]}
    return {key: _pruned(value, *_BINS) for key, value in result.items() if key not in _BINS}


def _pruned(value: object, *names: str) -> object:
    if isinstance(value, dict):
        return {key: _pruned(inner, *names) for key, inner in value.items() if key not in names}
    return [_pruned(inner, *names) for inner in value] if isinstance(value, list) else value
