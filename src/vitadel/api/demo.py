"""Everything, small: two tiny models trained on digits, attacked, studied and compared on one page."""

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
# studies with the threat of those that attack
_STUDIES = {"lesion": None, "saliency": _THREAT}
# the usual transformations leave nothing of 8 pixels
_SPATIAL = Spatial(max_translation=0.375, max_rotation=10.0, translations=5, rotations=5)


@dataclass(frozen=True, slots=True)
class Demo:
    """The page that was written, and its accuracies."""

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
        title = "Digits: accuracy on the images as they are, and under attack"
        return [ShortTable(title, columns, cells, [f"report: {self.page}"])]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))


def demo(
    out: str | Path = "vitadel-demo", *, progress: bool | ProgressCallback | None = None, command: str | None = None
) -> Demo:
    """Train a tiny ViT and an adversarially trained copy on digits, attack and study both, write the report.

    Args:
        out: A folder for the runs and the report; an interrupted demo resumes in it.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifests record as the command.
    """
    torch.set_num_threads(1)  # tiny tensors are no faster with more, and sums come out the same on every machine
    folders: list[Path] = []
    with progress_of(progress) as notify:
        for name in ("digits-standard", "digits-adversarial"):
            folders += _train_and_evaluate(name, Path(out), prefixed(notify, f"{name}, "), command)
    (page,) = report(folders, Path(out) / "report.html")
    return Demo(page, tuple(summarize(folders)))


def _train_and_evaluate(name: str, out: Path, notify: ProgressCallback, command: str | None) -> list[Path]:
    """A model trained, attacked at growing radii, rotated and translated, and studied."""
    run, evaluated = out / name, out / f"{name}-eval"
    model = train(name, run, progress=notify, command=command)
    evaluate(model, "digits", ["curve", _SPATIAL], run=evaluated, threat=_THREAT, progress=notify, command=command)
    studied = []
    for study, threat in _STUDIES.items():
        studied.append(out / f"{name}-{study}")
        analyze(model, "digits", study, run=studied[-1], threat=threat, progress=notify, command=command)
    return [run, evaluated, *studied]
