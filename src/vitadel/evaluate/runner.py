"""A suite on a split: one row per image in the run folder, resumed where a kill left it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitadel.data import DataSet, Split, batches
from vitadel.errors import UsageError
from vitadel.evaluate.cascade import STANDING, WRONG, Batch, Fall, classify, strike
from vitadel.evaluate.device import device_of
from vitadel.evaluate.suites import Entry, Suite
from vitadel.evaluate.summary import summarise
from vitadel.evaluate.suspicion import suspicions
from vitadel.runs import Notify, Rows, Run, silent, write_whole
from vitadel.threat import Linf, Threat, spell, with_eps

# images shown in the report, taken from the head of the pinned order: chosen before anything is known of them
_GALLERY = 8


def evaluate(
    model: nn.Module,
    data: DataSet,
    suite: Suite,
    run: Run,
    *,
    threat: Threat | None = None,
    seed: int = 0,
    batch: int = 128,
    split: str = "test",
    notify: Notify = silent,
) -> list[dict[str, object]]:
    """Carry out `suite` and return the summaries that are also written to the run folder, one per radius.

    Robust accuracy counts an image only if it is classified rightly and no attack of the cascade changed that: an
    upper bound on the true one. Killed and called again, nothing that has its row is done again.
    """
    if batch < 1:
        raise UsageError(f"the batch must be at least 1, got {batch}.")
    images = data.split(split)
    if len(images) == 0:
        raise UsageError(f"the {split} split of {data.spec} is empty, so there is nothing to evaluate.")
    summaries: list[dict[str, object]] = []
    fallen: dict[int, Fall] = {}
    for radius in _radii(suite, threat):
        name = suite.name if radius is None else f"{suite.name}-{spell(radius).replace(':', '-').replace('/', '_')}"
        job = _Job(model, images, suite.entries, radius, run.rows(name), seed, batch, notify, name)
        if not job.rows.done:
            job.fill(fallen, data.classes)
            flags = suspicions(model, job.first_images())
            job.rows.close(summarise(name, suite, radius, job.rows.read(), flags))
        summaries.append(job.rows.summary)
        fallen = _fallen(job.rows)
    return summaries


@dataclass(frozen=True, slots=True)
class _Job:
    """One evaluation: a cascade at one radius."""

    model: nn.Module
    images: Split
    entries: tuple[Entry, ...]
    threat: Threat | None
    rows: Rows
    seed: int
    batch: int
    notify: Notify
    name: str

    def fill(self, fallen: dict[int, Fall], classes: Sequence[str]) -> None:
        """Give every image that has none its row."""
        finished = self.rows.finished()
        todo = torch.tensor([row for row in range(len(self.images)) if row not in finished], dtype=torch.int64)
        done = len(finished)
        for row_B, x, label_B in batches(self.images, todo.split(self.batch) if len(todo) else []):
            judged = self._judge(row_B, x, label_B, fallen)
            if 0 in row_B:
                _write_gallery(self.rows.folder / "gallery.npz", judged, classes, self.threat)
            self.rows.add(judged.columns(self.images.ids))
            done += len(row_B)
            self.notify(self.name, done, len(self.images), {})

    def first_images(self) -> Tensor:
        return self.images.images(torch.arange(min(self.batch, len(self.images)))).to(device_of(self.model))

    def _judge(self, row_B: Tensor, x: Tensor, label_B: Tensor, fallen: dict[int, Fall]) -> Batch:
        judged = classify(self.model, row_B, x, label_B)
        judged.let_fall(fallen)
        for entry in self.entries:
            assert self.threat is not None
            strike(self.model, judged, entry, self.threat, seed=self.seed)
        return judged


def _radii(suite: Suite, threat: Threat | None) -> list[Threat | None]:
    """The threats to try, smallest first; None for a suite without attacks."""
    if not suite.entries:
        return [None]
    if threat is None:
        raise UsageError(f"suite {suite.name!r} attacks, so it needs a threat. Write for example --threat linf:8/255.")
    radii = sorted({threat.eps * share for share in suite.shares})
    return [with_eps(threat, eps) for eps in radii if eps <= 1 or not isinstance(threat, Linf)]


def _fallen(rows: Rows) -> dict[int, Fall]:
    table, shown = rows.read(), _read_gallery(rows.folder / "gallery.npz")
    columns = (table[name] for name in ("row", "fell_to", "prediction", "size"))
    return {
        row: Fall(str(to), int(str(prediction)), float(str(size)), shown[row] if row < len(shown) else None)
        for row, to, prediction, size in ((int(str(first)), *rest) for first, *rest in zip(*columns, strict=True))
        if to not in (STANDING, WRONG)
    }


def _write_gallery(path: Path, batch: Batch, classes: Sequence[str], threat: Threat | None) -> None:
    """The first images before and after, for the report to show."""
    if threat is None:
        return
    shown = slice(0, _GALLERY)

    def write(beside: Path) -> None:
        with beside.open("wb") as handle:
            np.savez_compressed(
                handle,
                clean=_pictures(batch.x[shown]).mul(255).round().byte().numpy(),
                adversarial=_pictures(batch.x_adv[shown]).numpy(),
                label=batch.label_B[shown].numpy(),
                clean_prediction=batch.clean_prediction_B[shown].numpy(),
                prediction=batch.prediction_B[shown].numpy(),
                fell_to=np.array(batch.fell_to[shown]),
                classes=np.array(classes),
                eps=threat.eps,
                norm=spell(threat).partition(":")[0],
            )

    write_whole(path, write)


def _read_gallery(path: Path) -> Sequence[Tensor]:
    """What the first images became; the gallery begins with row 0."""
    if not path.exists():
        return ()
    with np.load(path) as stored:
        return list(torch.from_numpy(stored["adversarial"]).permute(0, 3, 1, 2))


def _pictures(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
