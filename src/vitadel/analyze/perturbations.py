"""Adversarial perturbations: pictures, frequencies, and alignment with the grid of patches.

Bhojanapalli et al. (2021, arXiv:2103.14586) find the patch grid in perturbations of a ViT, and not in those of a
ResNet; Debenedetti (2022) finds the object in perturbations of robust models, and noise in those of others. This study
measures both: power by frequency (`vitadel.analyze.spectrum`) and alignment with the patches
(`vitadel.analyze.patch_grid`), of the perturbation and of its absolute value.

Shape letters: B images, C channels, H rows, W columns, F frequencies, P positions in a patch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.analyze import attacked_images, spectrum
from vitadel.analyze.attacked_images import Sign, Stretch, finite_mean_interval
from vitadel.analyze.patch_grid import alignment, check_patch, expected_rank
from vitadel.core.numeric import Count, Steps, check_ranges
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.store import TableRows
from vitadel.models import Model, family_of
from vitadel.runs.exhibits import Cell, Exhibit, Line, Lines, Picture, Pictures, Table
from vitadel.runs.schema import StudyRecord
from vitadel.runs.typed_json import tensor_from_json, tensor_to_json
from vitadel.threats import Threat

_DETAIL = 64  # the side of the detail of a large picture, in pixels
_KINDS = {"change": "perturbation", "size": "its size"}


@dataclass(frozen=True, slots=True)
class Perturbations:
    """Perturbations of PGD as pictures, their frequencies, and their alignment with the grid of patches.

    Args:
        images: Number of images shown; all are measured.
        steps: Steps of PGD.
        step_size: Step size of PGD; 1.5 eps / steps if not given.
        stretch: The change that is black or white in the pictures; does not affect numbers.
        sign: Which image is subtracted from the other in the pictures; does not affect numbers.
        patch: Size of the patches; needed for a model without patches to be compared with a grid.
        random_start: Whether PGD starts at a random point, as Debenedetti's; Bhojanapalli et al.'s starts at the image.
    """

    title: ClassVar[str] = "Adversarial perturbations"
    about: ClassVar[str] = "adversarial perturbations: pictures, frequencies, alignment with the patches"
    needs_threat: ClassVar[bool] = True

    images: Count = 6
    steps: Steps = 100
    step_size: attacked_images.StepSize | None = None
    stretch: Stretch = Stretch.EPS
    sign: Sign = Sign.ADDED
    patch: Count | None = None
    random_start: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def check(self, model: nn.Module) -> None:
        size = model.spec.image_size if isinstance(model, Model) and model.spec is not None else None
        if size is not None and (patch := self._patch(model)) is not None:
            check_patch(patch, size, size)

    def run(self, ctx: Context) -> None:
        patch, threat = self._patch(ctx.model), ctx.required_threat
        attack = attacked_images.pgd(self.steps, self.step_size, threat, random_start=self.random_start)

        def measure(batch: Batch) -> dict[str, object]:
            result = ctx.attack(attack, batch)
            adversarial = [
                tensor_to_json(x_adv) if index < self.images else None
                for index, x_adv in zip(batch.index.tolist(), result.x_adv, strict=True)
            ]
            measured = _measured((result.x_adv - batch.x).cpu(), batch.x.cpu(), patch)
            return {**measured, "success": result.success, "adversarial": adversarial}

        ctx.map("perturbations", measure)

    def summarize(self, ctx: Context) -> StudyRecord:
        rows, patch, threat = ctx.table("perturbations"), self._patch(ctx.model), ctx.required_threat
        shown = torch.arange(min(self.images, len(rows)))
        x = ctx.images.images(shown).cpu()
        adversarial = torch.stack([tensor_from_json(one) for one in rows["adversarial"][: len(shown)]])
        exhibits: list[Exhibit] = [
            self._pictures(x, adversarial, ctx.images.labels[shown].tolist(), threat, patch),
            _curve(rows, x.shape[-2:]),
            *([] if patch is None else [_position_curve(rows, patch)]),
            _table(rows, patch),
        ]
        numbers = {
            "n": len(rows),
            "patch": patch,
            "fooled": sum(rows["success"]),
            "fine_share": finite_mean_interval(rows["fine"]),
            "fine_share_of_images": finite_mean_interval(rows["fine_image"]),
            "alignment": {} if patch is None else {kind: mean_alignment(rows, kind, patch) for kind in _KINDS},
            "frequency": spectrum.frequencies(*x.shape[-2:]).tolist(),
            "density": _mean_of(rows["density"]).tolist(),
        }
        return StudyRecord("perturbations", self.title, _summary(rows, patch, threat), exhibits, numbers)

    def _patch(self, model: nn.Module) -> int | None:
        if self.patch is not None:
            return self.patch
        net = model.net if isinstance(model, Model) else model
        return family_of(net).patch_size(net)

    def _pictures(
        self, x: Tensor, adversarial: Tensor, labels: Sequence[int], threat: Threat, patch: int | None
    ) -> Pictures:
        delta = adversarial - x
        color = attacked_images.as_bytes(delta, threat, self.stretch, self.sign).float() / 255
        in_gray = attacked_images.gray(color)
        size = delta.abs().mean(1, keepdim=True)
        size = size / size.amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        corner, side = _corner(x.shape[-2], x.shape[-1], patch)
        columns = {"image": x, "attacked": adversarial, "perturbation": color, "in gray": in_gray, "size": size}
        if side:
            rows, across = slice(corner[0], corner[0] + side), slice(corner[1], corner[1] + side)
            columns |= {"detail, gray": in_gray[:, :, rows, across], "detail, size": size[:, :, rows, across]}
        detail = f" Details are the middle {side} x {side} pixels." if side else ""
        return Pictures(
            "Perturbations",
            f"PGD with {self.steps} steps {'' if self.random_start else 'from the image itself '}at {threat!s}. "
            f"{attacked_images.how_stretched(threat, self.stretch, self.sign)} Size is the mean over channels of the "
            f"absolute change, black for none and white for the largest of that image.{detail}",
            [[Picture.of(one[row].numpy()) for one in columns.values()] for row in range(len(x))],
            rows=[f"label {label}" for label in labels],
            columns=list(columns),
        )


def _measured(delta: Tensor, x: Tensor, patch: int | None) -> dict[str, Tensor]:
    """All numbers of each image, as columns."""
    measured = {
        "density": spectrum.densities(delta).float(),
        "density_image": spectrum.densities(x).float(),
        "fine": spectrum.fine_share(delta),
        "fine_image": spectrum.fine_share(x),
    }
    for kind, pattern in (("change", delta), ("size", delta.abs())) if patch is not None else ():
        aligned = alignment(pattern, patch or 0)
        measured |= {
            f"{kind}_aligned": aligned.true_B,
            f"{kind}_rank": aligned.rank_B,
            f"{kind}_jumps": aligned.jumps_BP.float(),
        }
    return measured


def _corner(height: int, width: int, patch: int | None) -> tuple[tuple[int, int], int]:
    """The corner of the detail, aligned with the patches if there are any, and its side; 0 for small pictures."""
    if min(height, width) <= 2 * _DETAIL:
        return (0, 0), 0
    step = patch or 1
    side = max(1, _DETAIL // step) * step
    rows, columns = ((length - side) // 2 // step * step for length in (height, width))
    return (rows, columns), side


def _mean_of(rows: Sequence[object]) -> Tensor:
    """The mean over images, ignoring NaN."""
    return torch.tensor(rows, dtype=torch.float64).nanmean(0)


def _curve(rows: TableRows, side: Sequence[int]) -> Lines:
    frequency = spectrum.frequencies(*side).tolist()
    density_BF = torch.tensor(rows["density"], dtype=torch.float64)
    low, high = density_BF.nanquantile(0.25, 0).tolist(), density_BF.nanquantile(0.75, 0).tolist()
    return Lines(
        "Power by frequency",
        "Power of the perturbation by frequency, over all directions, relative to white noise of the same power: "
        f"mean over {len(density_BF)} images, the band is their interquartile range. Stripes of one pixel have half a "
        "cycle per pixel. For comparison, the images themselves.",
        [
            Line("perturbation", frequency, _mean_of(rows["density"]).tolist(), low, high),
            Line("image", frequency, _mean_of(rows["density_image"]).tolist(), dashed=True),
        ],
        x_label="cycles per pixel",
        y_label="power",
        log_y=True,
        references=[("white noise", 1.0)],
    )


def _position_curve(rows: TableRows, patch: int) -> Lines:
    lines = []
    for kind, name in _KINDS.items():
        jumps_BP = torch.tensor(rows[f"{kind}_jumps"], dtype=torch.float64)
        error_P = jumps_BP.std(0, correction=1) / math.sqrt(len(jumps_BP)) if len(jumps_BP) > 1 else 0 * jumps_BP[0]
        mean_P = jumps_BP.mean(0)
        low, high = (mean_P - error_P).tolist(), (mean_P + error_P).tolist()
        lines.append(Line(name, list(range(patch)), mean_P.tolist(), low, high))
    return Lines(
        "Differences by position in the patch",
        f"Mean squared difference of neighboring pixels by the position of their border in a patch of {patch} pixels: "
        "0 is the border between two patches. Relative to the mean over all positions; bands are one standard error "
        "over images. A pattern that is independent of the patch grid is flat.",
        lines,
        x_label="pixels from a border between patches",
        y_label="squared difference",
        references=[("all positions", 1.0)],
    )


def mean_alignment(rows: TableRows, kind: str, patch: int) -> dict[str, float]:
    """Means over all images; `first` counts those on which no shifted grid is aligned as well."""
    ranks = rows[f"{kind}_rank"]
    first = sum(rank * patch**2 < 1.5 for rank in ranks)
    return {**finite_mean_interval(rows[f"{kind}_aligned"]), "mean_rank": sum(ranks) / len(ranks), "first": first}


def _table(rows: TableRows, patch: int | None) -> Table:
    fine, own = finite_mean_interval(rows["fine"]), finite_mean_interval(rows["fine_image"])
    cells: list[list[Cell]] = [
        ["share of power beyond 1/4 cycle per pixel", fine["mean"], fine["low"], fine["high"]],
        ["the same of the images", own["mean"], own["low"], own["high"]],
    ]
    for kind, name in _KINDS.items() if patch is not None else ():
        aligned = mean_alignment(rows, kind, patch or 0)
        cells.append([f"alignment with patches of {patch}: {name}", aligned["mean"], aligned["low"], aligned["high"]])
        cells.append([f"share of grids aligned as well: {name}", aligned["mean_rank"], None, None])
    about = (
        " Alignment is 0 for a pattern that is independent of the patches and 1 for one that changes only at their "
        "borders. Below it is the share of all shifted grids, including the true one, that are aligned at least as "
        f"well: {expected_rank(patch):.2f} by chance."
        if patch is not None
        else " The model has no patches; a grid to compare with can be given as patch=16."
    )
    return Table(
        "Frequencies and alignment (table)",
        f"Means over {len(rows)} images with their 95% intervals. White noise has "
        f"{1 - math.pi * spectrum.FINE**2:.2f} of its power beyond a quarter of a cycle per pixel.{about}",
        ["", "mean", "low", "high"],
        cells,
    )


def _summary(rows: TableRows, patch: int | None, threat: Threat) -> str:
    n, fine = len(rows), finite_mean_interval(rows["fine"])["mean"]
    text = (
        f"On {n} images, {sum(rows['success'])} of which are misclassified under attack at {threat!s}, "
        f"{fine:.0%} of the perturbation's power lies beyond a quarter of a cycle per pixel (white noise: 80%)."
    )
    if patch is None:
        return text
    aligned = mean_alignment(rows, "change", patch)
    interval = f"{aligned['low']:+.3f} to {aligned['high']:+.3f}; " if math.isfinite(aligned["low"]) else ""
    return (
        f"{text} Its alignment with patches of {patch} is {aligned['mean']:+.3f} ({interval}0 is none, 1 is complete); "
        f"on {aligned['first']:.0f} of {n} images no shifted grid is aligned as well."
    )
