"""The images that fooled a model, kept small: what was added to each, in half precision where that still fools it.

Shape letters: B images.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.files import write_whole
from vitadel.evaluate.cascade import Images, logits

# float16 keeps eleven bits: shortened by this share first, rounding cannot lengthen a delta
_SHORTER = 1 - 2**-10
# between an evaluation's name and that of its file, in the folders of larger radii
_OF = "--"


@dataclass(slots=True)
class Found:
    """Adversarial images of one evaluation on their way to its folder, a file per flush."""

    folder: Path
    model: nn.Module
    images: Images
    waiting: dict[int, Tensor] = field(default_factory=dict)

    def add(self, row: int, x: Tensor) -> None:
        self.waiting[row] = x

    def flush(self) -> None:
        """Write down what is waiting; a rounded image that gets another answer is kept in float32."""
        if not self.waiting:
            return
        rows = torch.tensor(sorted(self.waiting))
        x0 = self.images.images(rows).cpu()
        x = torch.stack([self.waiting[row] for row in rows.tolist()])
        delta = x - x0
        small = (delta * _SHORTER).half()
        fools_B = logits(self.model, apply(x0, small)).argmax(1) == logits(self.model, x).argmax(1)
        arrays = {
            "rows": rows[fools_B].numpy(),
            "deltas": small[fools_B].numpy(),
            "exact_rows": rows[~fools_B].numpy(),
            "exact_deltas": delta[~fools_B].numpy(),
        }

        def write(beside: Path) -> None:
            with beside.open("wb") as handle:
                np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]

        write_whole(self.folder / f"{int(rows[0]):09d}.npz", write)
        self.waiting = {}

    def take_over(self, smaller: Path) -> None:
        """What fell inside a smaller radius has fallen inside this one: its files are linked, not written again."""
        for file in smaller.glob("*.npz"):
            # of a radius smaller still, if the name says so
            name = file.name if _OF in file.name else f"{smaller.parent.name}{_OF}{file.name}"
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / name).exists():
                _link(file, self.folder / name)

    def refuse_gaps(self, fallen: Collection[int]) -> None:
        """Raise if an image that fell is in none of the files: one of them was deleted, or was never written."""
        lost = set(fallen).difference(*map(_rows, self.folder.glob("*.npz")))
        if lost:
            raise UsageError(
                f"{self.folder} has lost {len(lost)} of the images that fell, such as that of row {min(lost)}. "
                f"Restore its files, or delete {self.folder.parent} and run the same command again."
            )


def _link(file: Path, name: Path) -> None:
    try:
        name.hardlink_to(file)
    except OSError:  # not every file system has links

        def copy(beside: Path) -> None:
            shutil.copyfile(file, beside)

        write_whole(name, copy)


def apply(x0: Tensor, delta: Tensor) -> Tensor:
    """The image that a delta stands for."""
    return (x0 + delta.to(x0.dtype)).clamp(0, 1)


def read_found(folder: Path | str, images: Images) -> dict[int, Tensor]:
    """Row to adversarial image for every image that fell, from the folder `found` of an evaluation."""
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        raise UsageError(f"there are no images in {folder}. Evaluate with --keep-images to have them kept.")
    found: dict[int, Tensor] = {}
    for path in paths:
        deltas = _deltas(path)
        if deltas:
            rows = torch.tensor([row for row, _ in deltas])
            x0 = images.images(rows).cpu()
            found.update((row, apply(x, delta)) for x, (row, delta) in zip(x0, deltas, strict=True))
    return found


def _deltas(path: Path) -> list[tuple[int, Tensor]]:
    """What a file says was added to which rows."""
    deltas: list[tuple[int, Tensor]] = []
    for rows, added in (("rows", "deltas"), ("exact_rows", "exact_deltas")):
        pairs = zip(*_arrays(path, rows, added), strict=True)
        deltas += [(int(row), torch.from_numpy(delta)) for row, delta in pairs]
    return deltas


def _rows(path: Path) -> set[int]:
    return {int(row) for rows in _arrays(path, "rows", "exact_rows") for row in rows}


def _arrays(path: Path, *names: str) -> list[NDArray[np.generic]]:
    """Some arrays of a file, which is a zip archive: its checksums are checked on the way."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except Exception as error:  # a damaged archive can raise anything
        raise UsageError(
            f"cannot read {path}: {error}. Restore it, or delete {path.parents[1]} and run the same command again."
        ) from error
