"""Adversarial images in a run folder: the perturbations, in half precision where predictions remain the same.

Shape letters: B images.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitadel.core.errors import UsageError, spelled
from vitadel.core.files import read_npz, write_atomically, write_npz
from vitadel.evaluate.context import Context, logits
from vitadel.evaluate.images import Images
from vitadel.evaluate.store import ResultStore, Row
from vitadel.models import read_tensors, write_tensors
from vitadel.runs.schema import WRONG_BEFORE, Gallery

# float16 has eleven bits: shortened by this factor first, a perturbation cannot become longer by rounding
_SHORTER = 1 - 2**-10
# between an evaluation's name and that of its file, in the folders of larger radii
_OF = "--"
# the folder of the images, and in memory their table
_FOLDER, IMAGES = "found", "x_adv"
# the number of images shown in reports, always the first ones, and the columns shown with them
_GALLERY, _SHOWN = 8, ("label", "clean_prediction", "prediction", "broken_by")


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Writes adversarial images into the folder of an evaluation, or into its store if that is in memory.

    Args:
        ctx: The evaluation.
        everything: Whether all adversarial images are written, not only those of the gallery.
    """

    ctx: Context
    everything: bool

    def keep(self, rows: Sequence[Row]) -> None:
        """Write the images `x_adv` of finished rows, before the rows are written."""
        folder = self.ctx.store.folder
        if folder is None:
            self.ctx.store.append(IMAGES, {name: [row[name] for row in rows] for name in ("index", "x_adv")})
            return
        for row in rows:
            if row["index"] < _GALLERY:
                _write_attempt(folder, row["index"], row["x_adv"])
        broken = {row["index"]: row["x_adv"] for row in rows if row["success"]}
        if self.everything and broken:
            self._write(folder / _FOLDER, broken)

    def _write(self, folder: Path, images: Mapping[int, Tensor]) -> None:
        """Write perturbations in float16, or in float32 where rounding changes the prediction."""
        index = torch.tensor(sorted(images))
        x0 = self.ctx.images.images(index).cpu()
        x = torch.stack([images[one] for one in index.tolist()])
        delta = x - x0
        small = (delta * _SHORTER).half()
        model = self.ctx.model
        same_B = logits(model, apply(x0, small)).argmax(1) == logits(model, x).argmax(1)
        arrays = {
            "rows": index[same_B].numpy(),
            "deltas": small[same_B].numpy(),
            "exact_rows": index[~same_B].numpy(),
            "exact_deltas": delta[~same_B].numpy(),
        }
        write_npz(folder / f"{int(index[0]):09d}.npz", arrays)


def copy_from(smaller: ResultStore | None, store: ResultStore) -> None:
    """Link the adversarial images of a smaller radius, which are adversarial within this one too."""
    folder = store.folder
    assert folder is not None
    for file in () if smaller is None or smaller.folder is None else (smaller.folder / _FOLDER).glob("*.npz"):
        # a name with _OF is of a radius smaller still, and stays
        name = file.name if _OF in file.name else f"{file.parents[1].name}{_OF}{file.name}"
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        if not (folder / _FOLDER / name).exists():
            _link(file, folder / _FOLDER / name)


def check_complete(store: ResultStore, broken: Collection[int]) -> None:
    """Raise a UsageError if a file of adversarial images is missing."""
    assert store.folder is not None
    lost = set(broken).difference(*map(_indices, (store.folder / _FOLDER).glob("*.npz")))
    if lost:
        raise UsageError(
            f"{store.folder / _FOLDER} has lost {len(lost)} of the adversarial images, such as that of image "
            f"{min(lost)}. Restore its files, or delete {store.folder} and run the same command again."
        )


def write_gallery(ctx: Context, rows: Mapping[str, Sequence[Any]], *, broken_before: Collection[int]) -> None:
    """Write the first images, clean and attacked, for reports; without those whose attacked image is lost.

    Args:
        ctx: The evaluation.
        rows: Its rows.
        broken_before: The images that were broken within the smaller radius, and were not attacked again.
    """
    folder, threat = ctx.store.folder, ctx.threat
    if folder is None or threat is None or (folder / "gallery.npz").exists():
        return
    clean = ctx.images.images(torch.arange(min(_GALLERY, len(ctx.images))))
    after = clean.clone()
    kept: list[int] = []
    for index in range(len(clean)):
        x_adv = _read_attempt(folder, index, clean[index])
        if x_adv is None and ctx.smaller is not None and ctx.smaller.folder is not None and index in broken_before:
            x_adv = _read_attempt(ctx.smaller.folder, index, clean[index])
            if x_adv is not None:
                _write_attempt(folder, index, x_adv)  # for the next radius
        if x_adv is not None:
            after[index] = x_adv
        if x_adv is not None or rows["broken_by"][index] == WRONG_BEFORE:  # these are not attacked
            kept.append(index)
    if not kept:
        return
    Gallery(
        clean=clean[kept].permute(0, 2, 3, 1).mul(255).round().byte().numpy(),
        adversarial=after[kept].permute(0, 2, 3, 1).contiguous().numpy(),
        classes=() if ctx.data is None else ctx.data.classes,
        eps=threat.eps,
        norm=threat.name,
        **{name: [rows[name][index] for index in kept] for name in _SHOWN},
    ).write(folder / "gallery.npz")


def _attempt(folder: Path, index: int) -> Path:
    return folder / "shown" / f"{index}.safetensors"


def _write_attempt(folder: Path, index: int, x_adv: Tensor) -> None:
    write_atomically(_attempt(folder, index), lambda temporary: write_tensors(temporary, {"x": x_adv.float()}, {}))


def _read_attempt(folder: Path, index: int, like: Tensor) -> Tensor | None:
    """One of the first images after the last attack on it; None if it was not attacked."""
    path = _attempt(folder, index)
    if not path.exists():
        return None
    remedy = "Delete it: the gallery then leaves that image out."
    try:
        x = read_tensors(path)[0].get("x")
    except UsageError as error:
        raise UsageError(f"{error} {remedy}") from error
    if x is None or x.shape != like.shape:
        raise UsageError(f"{path} holds no image of these data. {remedy}")
    return x


def _link(file: Path, name: Path) -> None:
    try:
        name.hardlink_to(file)
    except OSError:  # not every file system has links

        def copy(temporary: Path) -> None:
            shutil.copyfile(file, temporary)

        write_atomically(name, copy)


def apply(x0: Tensor, delta: Tensor) -> Tensor:
    """The image with a perturbation added."""
    return (x0 + delta.to(x0.dtype)).clamp(0, 1)


def read_adversarial_images(folder: Path | str, images: Images) -> dict[int, Tensor]:
    """The adversarial images of an evaluation with `keep_images`.

    Args:
        folder: The folder `found` of the evaluation.
        images: The clean images, such as the split that was evaluated.

    Returns:
        Image index to adversarial image [3, H, W], for every image that an attack broke.
    """
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        raise UsageError(f"there are no images in {folder}. Evaluate with {spelled('keep_images')} to have them kept.")
    result: dict[int, Tensor] = {}
    for path in paths:
        deltas = _deltas(path)
        if deltas:
            x0 = _images_of(path, deltas, images)
            result.update((index, apply(x, delta)) for x, (index, delta) in zip(x0, deltas.items(), strict=True))
    return result


def _images_of(path: Path, deltas: Mapping[int, Tensor], images: Images) -> Tensor:
    """The images of the perturbations in a file; raises a UsageError if these are of other images."""
    advice = "Give the images of that evaluation."
    if wrong := [index for index in deltas if not 0 <= index < len(images)]:
        raise UsageError(f"{path} has a perturbation of image {wrong[0]}, and there are {len(images)} images. {advice}")
    x0 = images.images(torch.tensor(list(deltas))).cpu()
    if wrong := [index for index, delta in deltas.items() if delta.shape != x0.shape[1:]]:
        shapes = f"{list(deltas[wrong[0]].shape)}, and the images are {list(x0.shape[1:])}"
        raise UsageError(f"{path} has a perturbation of shape {shapes}. {advice}")
    return x0


def _deltas(path: Path) -> dict[int, Tensor]:
    """The perturbations in a file, by image index."""
    deltas: dict[int, Tensor] = {}
    arrays = _arrays(path)
    for rows, values in (("rows", "deltas"), ("exact_rows", "exact_deltas")):
        if len(arrays[rows]) != len(arrays[values]):
            raise UsageError(
                f"{path} has {len(arrays[values])} {values} of {len(arrays[rows])} images. {_remedy(path)}"
            )
        deltas |= dict(zip(arrays[rows].tolist(), map(torch.from_numpy, arrays[values]), strict=True))
    return deltas


def _indices(path: Path) -> set[int]:
    arrays = _arrays(path)
    return {*arrays["rows"].tolist(), *arrays["exact_rows"].tolist()}


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, whose checksums are verified by reading it."""
    rows, deltas = ("rows", "exact_rows"), ("deltas", "exact_deltas")
    return read_npz(path, {**dict.fromkeys(rows, ("iu", 1)), **dict.fromkeys(deltas, ("f", 4))}, _remedy(path))


def _remedy(path: Path) -> str:
    return f"Restore it, or delete {path.parents[1]} and run the same command again."
