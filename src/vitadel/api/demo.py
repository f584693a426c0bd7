"""A small end-to-end example: two tiny models trained on digits, evaluated, analyzed and compared in one report."""

from dataclasses import dataclass
from pathlib import Path

import torch

from vitadel.api.analyze import analyze
from vitadel.api.arguments import progress_of
from vitadel.api.evaluate import evaluate
from vitadel.api.report import report
from vitadel.api.results import ShortTable
from vitadel.api.train import train
from vitadel.core.progress import ProgressCallback, prefixed
from vitadel.evaluate.suites import Spatial
from vitadel.report import SummaryRow, summarize

_THREAT = "linf:24/255"
# the studies, each with its threat if it attacks
_STUDIES = {"lesion": None, "saliency": _THREAT}
# the usual ranges are too large for images of 8 pixels
_SPATIAL = Spatial(max_translation=0.375, max_rotation=10.0, translations=5, rotations=5)


@dataclass(frozen=True, slots=True)
class Demo:
    """The report, and the accuracies in it."""

    page: Path
    rows: tuple[SummaryRow, ...]

    def to_dict(self) -> dict[str, object]:
        """The accuracies as plain JSON values."""
        results = [
            {
                "model": r.model,
                "threat": r.threat,
                "clean": r.clean.accuracy,
                "robust": r.robust.accuracy if r.robust else None,
            }
            for r in self.rows
        ]
        return {"report": str(self.page), "results": results}

    def tables(self) -> list[ShortTable]:
        columns = ["model", "threat", "clean %", "robust %", "95% interval"]
        cells = [
            [
                row.model,
                row.threat,
                row.clean.percent,
                *((row.robust.percent, row.robust.interval) if row.robust else "--"),
            ]
            for row in self.rows
        ]
        title = "Digits: clean and robust accuracy"
        return [ShortTable(title, columns, cells, [f"report: {self.page}"])]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))


def demo(
    out: str | Path = "vitadel-demo", *, progress: bool | ProgressCallback | None = None, command: str | None = None
) -> Demo:
    """Train a tiny ViT on digits, normally and adversarially; evaluate and analyze both and write a report.

    Args:
        out: A folder for the runs and the report; an interrupted demo resumes in it.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: The command line, for the manifests.
    """
    torch.set_num_threads(
        1
    )  # more threads are not faster for tiny tensors, and one thread sums in the same order everywhere
    folders: list[Path] = []
    with progress_of(progress) as notify:
        for name in ("digits-standard", "digits-adversarial"):
            folders += _train_and_evaluate(name, Path(out), prefixed(notify, f"{name}, "), command)
    (page,) = report(folders, Path(out) / "report.html")
    return Demo(page, tuple(summarize(folders)))


def _train_and_evaluate(name: str, out: Path, notify: ProgressCallback, command: str | None) -> list[Path]:
    """Train a model, evaluate it at several radii and under rotations and translations, and run the studies."""
    run, evaluated = out / name, out / f"{name}-eval"
    model = train(name, run, progress=notify, command=command)
    evaluate(model, "digits", ["curve", _SPATIAL], run=evaluated, threat=_THREAT, progress=notify, command=command)
    studied = []
    for study, threat in _STUDIES.items():
        studied.append(out / f"{name}-{study}")
        analyze(model, "digits", study, run=studied[-1], threat=threat, progress=notify, command=command)
    return [run, evaluated, *studied]
