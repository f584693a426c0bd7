"""`vitadel demo`: everything, small."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption

if TYPE_CHECKING:
    from vitadel.core.progress import Notify
    from vitadel.data import DataSet
    from vitadel.models import Model
    from vitadel.report import SummaryRow

_STUDIES = ("lesion", "saliency")


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the runs and the report")] = Path("vitadel-demo"),
    json: JsonOption = False,
) -> None:
    """Train a tiny ViT and its adversarially trained twin on digits, attack and study both, write the report."""
    import torch

    from vitadel.report import summarize, write_report

    torch.set_num_threads(1)  # tiny tensors gain nothing from more, and sums come out the same on every machine
    folders = []
    with show.progress(quiet=json) as notify:
        for name in ("digits-standard", "digits-adversarial"):
            folders += _train_and_evaluate(name, out, notify)
    page = write_report(folders, out / "report.html")
    rows = summarize(folders)
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
    """A model trained, attacked at growing radii, turned and shifted, and looked into."""
    from vitadel import data
    from vitadel.core.device import device_name
    from vitadel.evaluate import SUITES, evaluate, survey
    from vitadel.evaluate.suites import Spatial
    from vitadel.models import identity
    from vitadel.recipes import RECIPES, carry_out
    from vitadel.runs import Run
    from vitadel.threats import Linf

    recipe, trained, evaluated = RECIPES[name](), out / name, out / f"{name}-eval"

    def told(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        notify(f"{name}, {what}", done, total, numbers)

    model = carry_out(recipe, trained, notify=told)
    dataset = data.load(recipe.data, preprocess=data.parse_preprocess(recipe.preprocess))
    # the usual moves leave nothing of 8 pixels
    attacks, moves = SUITES["curve"], Spatial(reach=0.375, degrees=10.0, shifts=5, turns=5)
    about = {"model": identity(model, name), "data": dataset.describe(), "seed": recipe.seed}
    run = Run.claim(evaluated, "evaluate", {**about, "suite": [attacks, moves]}, device=device_name())
    evaluate(model, dataset, attacks, run, threat=Linf(24 / 255), seed=recipe.seed, notify=told)
    survey(model, dataset, moves, run, seed=recipe.seed, notify=told)
    return [trained, evaluated, *_studied(model, dataset, about, out / name, told)]


def _studied(
    model: "Model", dataset: "DataSet", about: Mapping[str, object], beside: Path, notify: "Notify"
) -> list[Path]:
    from vitadel.analyze import STUDIES, Bench, Parts
    from vitadel.core.device import device_name
    from vitadel.runs import Run
    from vitadel.threats import Linf

    folders = []
    for name in _STUDIES:
        study, folder = STUDIES[name](), beside.with_name(f"{beside.name}-{name}")
        run = Run.claim(folder, "analyze", {**about, "split": "test", "study": study}, device=device_name())
        study.carry_out(Bench(model, dataset.split("test"), Parts.of(run), Linf(24 / 255), notify=notify))
        folders.append(folder)
    return folders


def _robust(row: "SummaryRow") -> tuple[str, str]:
    return ("-", "-") if row.robust is None else (row.robust.percent, row.robust.interval)
