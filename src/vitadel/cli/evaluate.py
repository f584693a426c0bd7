"""`vitadel evaluate`: suites of attacks on a model, one row per image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import (
    BatchOption,
    ClassesOption,
    CompileOption,
    DataOption,
    JsonOption,
    KeepOption,
    ModelArgument,
    PrecisionOption,
    PreprocessOption,
    RunOption,
    ScalingOption,
    SeedOption,
    SplitOption,
    ThreatOption,
    model_part,
    open_model_and_data,
    read_engine,
    read_scaling,
)

if TYPE_CHECKING:
    from vitadel.attacks import Engine, Scaling
    from vitadel.evaluate import Suite


def evaluate(
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suite: Annotated[str, typer.Option("--suite", help="names from `vitadel suites`, with commas")] = "quick",
    threat: ThreatOption = "linf:8/255",
    preprocess: PreprocessOption = None,
    classes: ClassesOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    keep_images: KeepOption = False,
    scaling: ScalingOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate a model; an image that fell is not attacked again, finished rows are never redone."""
    from vitadel.errors import unknown
    from vitadel.evaluate import SUITES

    names = suite.split(",")
    for name in names:
        if name not in SUITES:
            raise unknown("suite", name, SUITES)
    judge(
        "evaluate",
        [SUITES[name] for name in names],
        Subject(model, data, preprocess, classes, split),
        threat=threat,
        run=run,
        seed=seed,
        engine=read_engine(batch, precision, compile),
        keep_images=keep_images,
        scaling=read_scaling(scaling),
        json=json,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """Which model is judged on which images, as the command line says it."""

    model: str
    data: str
    preprocess: str | None
    classes: int | None
    split: str


def judge(
    kind: str,
    suites: "Sequence[Suite]",
    subject: Subject,
    *,
    threat: str,
    run: Path,
    seed: int,
    engine: "Engine",
    keep_images: bool,
    scaling: "Scaling | None",
    json: bool,
) -> None:
    """Carry out suites into a run folder and show what came of it."""
    from vitadel import threat as threats
    from vitadel.evaluate import Ranks, device_name
    from vitadel.evaluate import evaluate as carry_out

    ranks = Ranks.of_launch()
    radius = threats.read(threat)
    model, data, name = open_model_and_data(subject.model, subject.data, subject.preprocess, subject.classes)
    parts = {
        "model": model_part(model, name),
        "data": data.describe(),
        "split": subject.split,
        "suite": suites,
        "threat": radius,
        "seed": seed,
        **({} if scaling is None else {"scaling": scaling}),
    }
    claimed = ranks.claim(run, kind, parts, device=device_name())
    summaries = []
    with show.progress(quiet=json) as notify:
        for suite in suites:
            summaries += carry_out(
                model,
                data,
                suite,
                claimed,
                threat=radius,
                seed=seed,
                split=subject.split,
                engine=engine,
                ranks=ranks,
                keep_images=keep_images,
                scaling=scaling,
                notify=notify,
            )
    if json:
        show.as_json({"run": str(run), "evaluations": summaries})
    else:
        _show_summaries(name, summaries)


def _show_summaries(title: str, summaries: Sequence[Mapping[str, object]]) -> None:
    rows = []
    for summary in summaries:
        threat, flags = summary["threat"], summary["flags"]
        assert isinstance(flags, list)
        text = str(threat["text"]) if isinstance(threat, dict) else "-"
        rows.append([text, str(summary["n"]), _percent(summary["clean"]), _percent(summary["robust"]), str(len(flags))])
    columns = ["threat", "images", "clean", "robust", "flags"]
    if any("scaling" in summary for summary in summaries):
        rows = [[_scored_on(summary), *row] for summary, row in zip(summaries, rows, strict=True)]
        columns.insert(0, "scored on")
    show.table(title, columns, rows)
    for summary in summaries:
        flags, scaling = summary["flags"], summary.get("scaling")
        assert isinstance(flags, list)
        if isinstance(scaling, dict):
            show.line(f"{summary['name']}: {_factors(scaling['factors'])}; `rescaled` is the paper's protocol")
        for flag in flags:
            show.line(f"{summary['name']}: {flag['sentence']} ({flag['code']})")


def _scored_on(summary: Mapping[str, object]) -> str:
    from vitadel.evaluate import PAPER_PROTOCOL

    return "rescaled" if str(summary["suite"]).endswith(PAPER_PROTOCOL) else "model"


def _factors(factors: Mapping[str, object]) -> str:
    each = factors["attentions"]
    assert isinstance(each, list)
    probe = "" if factors["felled"] is None else f"; a short attack felled {factors['felled']} of {factors['of']}"
    return f"{len(each)} attentions scaled by {min(each):.2g} to {max(each):.2g}{probe}"


def _percent(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    return f"{value['accuracy']:.1%} ({value['low']:.1%}-{value['high']:.1%})"
