"""`vitadel demo`: everything, small."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption

if TYPE_CHECKING:
    from vitadel.report import SummaryRow
    from vitadel.runs import Notify


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the runs and the report")] = Path("vitadel-demo"),
    json: JsonOption = False,
) -> None:
    """Train a tiny ViT and its adversarially trained twin on digits, attack both, write the report."""
    import torch

    from vitadel.report import summarise, write_report

    torch.set_num_threads(1)  # tiny tensors gain nothing from more, and sums come out the same on every machine
    folders = []
    with show.progress(quiet=json) as notify:
        for name in ("digits-standard", "digits-adversarial"):
            folders += _train_and_evaluate(name, out, notify)
    page = write_report(folders, out / "report.html")
    rows = summarise(folders)
    if json:
        results = [
            {
                "model": r.model,
                "threat": r.threat,
                "clean": r.clean.value,
                "robust": r.robust.value if r.robust else None,
            }
            for r in rows
        ]
        show.as_json({"report": str(page), "results": results})
        return
    columns = ["model", "threat", "clean %", "robust %", "95% interval"]
    cells = [[row.model, row.threat, row.clean.percent, *_robust(row)] for row in rows]
    show.table("Digits: accuracy on the images as they are, and under attack", columns, cells)
    show.line(f"report: {page}")


def _train_and_evaluate(name: str, out: Path, notify: "Notify") -> list[Path]:
    from vitadel import data
    from vitadel.evaluate import SUITES, device_name, evaluate
    from vitadel.models import identity
    from vitadel.recipes import RECIPES, carry_out
    from vitadel.runs import Run
    from vitadel.threat import Linf

    recipe, trained, evaluated = RECIPES[name](), out / name, out / f"{name}-eval"

    def told(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        notify(f"{name}, {what}", done, total, numbers)

    model = carry_out(recipe, trained, notify=told)
    dataset = data.load(recipe.data, preprocess=data.parse_preprocess(recipe.preprocess))
    suite = SUITES["curve"]
    parts = {"model": identity(model, name), "data": dataset.describe(), "suite": suite, "seed": recipe.seed}
    run = Run.claim(evaluated, "evaluate", parts, device=device_name())
    evaluate(model, dataset, suite, run, threat=Linf(24 / 255), seed=recipe.seed, notify=told)
    return [trained, evaluated]


def _robust(row: "SummaryRow") -> tuple[str, str]:
    return ("-", "-") if row.robust is None else (row.robust.percent, row.robust.interval)
