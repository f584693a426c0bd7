"""Rotations and translations: is there a small rotation and translation that fools the model?

The grid of Bhojanapalli et al. 2021 (arXiv:2103.14586), after Engstrom et al. 2019 (arXiv:1712.02779): 9 x 9
translations of up to 16 pixels and 31 rotations of up to 30 degrees, 2511 transformations of which the identity is one.
A model is robust on an image if it is correct under all of them. On images of less than 128 px the grid is scaled to 3
pixels of 32, Engstrom's on CIFAR.

The search on an image ends with the first transformation that fools the model, which gives the same result as the whole
grid. The first `grid_images` images are evaluated on the whole grid. This gives the accuracy per transformation, and
the order of the search on all other images: greedily, the transformation that fools the model on most grid images that
are still robust. Transformations are tried in blocks of 1, 2, 4 ... 64, so the computation for an image depends on that
order only, not on batches.

Shape letters: B images, M transformations, N grid images.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Degrees, NonNegative, check_ranges
from vitadel.core.stats import accuracy_of, expected_accuracy
from vitadel.data import DataSet
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.suites.base import suite_record
from vitadel.evaluate.suites.pictures import first_images, picture
from vitadel.runs.exhibits import Exhibit, Heatmap, Line, Lines, Matrix, Picture, Pictures
from vitadel.runs.schema import Measure, SuiteRecord
from vitadel.shifts import RotateTranslate, rotated_translated

_MAX_TRANSLATION, _SMALL, _SMALL_SHARE = 16.0, 128, 3 / 32
_LONGEST_BLOCK = 64
_ROBUST = -1  # instead of the number of a transformation that fools the model
_IMAGES = 6  # shown


@dataclass(frozen=True, slots=True)
class Spatial:
    """Accuracy under the worst rotation and translation of every image.

    Args:
        max_translation: Largest translation in pixels; chosen by the image size if not given.
        max_rotation: Largest rotation in degrees.
        translations: Number of translations per axis, evenly spaced, including zero and both ends.
        rotations: Number of rotations, evenly spaced, including zero and both ends.
        grid_images: Number of images that are evaluated under every transformation.
    """

    former_names: ClassVar[dict[str, str]] = {
        "reach": "max_translation",
        "degrees": "max_rotation",
        "shifts": "translations",
        "turns": "rotations",
        "mapped": "grid_images",
    }

    name: ClassVar[str] = "spatial"
    title: ClassVar[str] = "Rotations and translations"
    about: ClassVar[str] = "the worst of 9 x 9 translations and 31 rotations of every image, and the accuracy at each"
    needs_threat: ClassVar[bool] = False

    max_translation: NonNegative | None = None
    max_rotation: Degrees = 30.0
    translations: Count = 9
    rotations: Count = 31
    grid_images: CountOrZero = 32

    def __post_init__(self) -> None:
        check_ranges(self)
        self.transformations(_SMALL)  # checks the settings
        if self.translations * self.rotations < 2:
            raise UsageError("spatial needs more than the identity. Write translations=9,rotations=31.")

    def transformations(self, side: int) -> RotateTranslate:
        """The transformations of images whose shorter side has this number of pixels."""
        default = _MAX_TRANSLATION if side >= _SMALL else _SMALL_SHARE * side
        max_translation = default if self.max_translation is None else self.max_translation
        return RotateTranslate(max_translation, self.max_rotation, self.translations, self.rotations)

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """All models and data are supported."""

    # ---------------------------------------------------------------- running

    def run(self, ctx: Context) -> None:
        """The whole grid on the first images; on the others a search that ends when the model is fooled."""
        grid = self._grid(ctx)
        ctx.map("clean", lambda batch: {"prediction": ctx.predict(batch.x)})
        ctx.map(
            "grid",
            lambda batch: {"wrong": misclassified(ctx, batch, grid)},
            index=range(min(self.grid_images, len(ctx.images))),
            batch_size=max(1, ctx.batch_size // len(grid)),
        )
        order = self._order(ctx)
        correct = ctx.correct(ctx.table("clean")["prediction"])
        ctx.map(
            "search",
            lambda batch: search(ctx, batch, grid, order),
            index=[index for index in range(self.grid_images, len(correct)) if correct[index]],
            batch_size=max(1, ctx.batch_size // _LONGEST_BLOCK),
        )

    def _grid(self, ctx: Context) -> Tensor:
        return self.transformations(min(ctx.image_size)).grid()

    def _wrong_NM(self, ctx: Context) -> Tensor:
        """[N, M]: whether each transformation fools the model on each grid image."""
        rows = ctx.table("grid")
        with rows.understood():
            return torch.tensor(rows["wrong"], dtype=torch.bool).view(-1, len(self._grid(ctx)))

    def _order(self, ctx: Context) -> Tensor:
        """The numbers of all transformations except the identity, in the order of the search."""
        grid, wrong_NM = self._grid(ctx), self._wrong_NM(ctx)
        identity = len(grid) // 2
        order = most_effective_first(grid, wrong_NM[~wrong_NM[:, identity]])
        return order[order != identity]

    # ---------------------------------------------------------------- results

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """The transformation that fools the model on each image, and the number of forward passes."""
        grid, (fooled_by, forwards) = self._grid(ctx), self._results(ctx)
        transforms = [None if number == _ROBUST else grid[number].tolist() for number in fooled_by]
        return {
            "clean_prediction": ctx.table("clean")["prediction"],
            "correct": [float(number == _ROBUST) for number in fooled_by],
            **{
                name: [None if one is None else one[axis] for one in transforms]
                for axis, name in enumerate(("down", "to_the_right", "degrees"))
            },
            "forwards": forwards,
        }

    def _results(self, ctx: Context) -> tuple[list[int], list[int]]:
        """For each image the number of the transformation that fools the model, and of forward passes."""
        order, wrong_NM, searched = self._order(ctx), self._wrong_NM(ctx), ctx.table("search").by_index()
        fooled_by, forwards = [], []
        for index, correct in enumerate(ctx.correct(ctx.table("clean")["prediction"])):
            row, number, passes = searched.get(index), _ROBUST, 1
            if index < len(wrong_NM):
                passes += wrong_NM.shape[1]
                effective = order[wrong_NM[index][order]]
                number = int(effective[0]) if len(effective) else _ROBUST
            elif row is not None:
                number, passes = row["fooled_by"], passes + row["forwards"]
            fooled_by.append(number if correct else len(order) // 2)
            forwards.append(passes)
        return fooled_by, forwards

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The accuracy under the worst transformation, and the mean over all of them on the grid images."""
        grid, wrong_NM, (fooled_by, forwards) = self._grid(ctx), self._wrong_NM(ctx), self._results(ctx)
        worst = accuracy_of([float(number == _ROBUST) for number in fooled_by])
        clean = accuracy_of(ctx.correct(ctx.table("clean")["prediction"]))
        measures = [Measure.of(f"worst of {len(grid)} transformations", worst, main=True)]
        if len(wrong_NM):
            mean = expected_accuracy((~wrong_NM).double().mean(1).tolist())
            measures.append(Measure.of("mean over transformations, grid images", mean))
        length = self.transformations(min(ctx.image_size)).max_translation
        return suite_record(
            self,
            ctx,
            tables=["clean", "grid", "search"],
            clean=clean,
            measures=measures,
            sentence=(
                f"{clean.accuracy:.1%} of {clean.n} images are classified correctly and {worst.accuracy:.1%} under "
                f"each of {len(grid)} transformations; it took {sum(forwards)} forward passes of "
                f"{len(grid) * clean.n}."
            ),
            conventions={
                "translations": f"{self.translations} x {self.translations} of up to {length:g} px",
                "rotations": f"{self.rotations} of up to {self.max_rotation:g} degrees",
                "transform": "one composed affine map, rotation about the center first, bilinear, black outside",
                "grid_images": len(wrong_NM),
                "forwards": sum(forwards),
                "forwards_of_the_whole_grid": len(grid) * clean.n,
            },
            exhibits=[*self._maps(grid, wrong_NM), _pictures(ctx, grid, fooled_by)],
        )

    def _maps(self, grid: Tensor, wrong_NM: Tensor) -> list[Exhibit]:
        """The accuracy per translation and per rotation, if there are grid images."""
        if not len(wrong_NM):
            return []
        share_RTT = (~wrong_NM).double().mean(0).view(self.rotations, self.translations, self.translations)
        lengths = [f"{length:g}" for length in grid[: self.translations, 1].tolist()]
        angles = grid[:: self.translations**2, 2].tolist()
        middle = self.translations // 2
        on_images = f"On the first {len(wrong_NM)} images, which were evaluated under every transformation."
        heat = Heatmap(
            "Accuracy per translation",
            f"{on_images} Left: the mean over all rotations; then without a rotation, and at both ends.",
            [
                Matrix("mean over rotations", share_RTT.mean(0).tolist()),
                Matrix("upright", share_RTT[self.rotations // 2].tolist()),
                Matrix(f"at ±{self.max_rotation:g} degrees", ((share_RTT[0] + share_RTT[-1]) / 2).tolist()),
            ],
            "accuracy",
            "down, px",
            "right, px",
            lengths,
            lengths,
            low=0.0,
            high=1.0,
        )
        mean = expected_accuracy if self.translations > 1 else accuracy_of
        per_image_RN = (~wrong_NM).double().unflatten(1, (self.rotations, -1)).mean(2).T
        lines = Lines(
            "Accuracy per rotation",
            f"{on_images} The band is a 95% interval over images.",
            [
                Line.of("mean over translations", angles, [mean(shares) for shares in per_image_RN.tolist()]),
                Line("not translated", angles, share_RTT[:, middle, middle].tolist(), dashed=True),
            ],
            "degrees",
            "accuracy",
            y_range=(0.0, 1.0),
        )
        return [heat, lines]


def misclassified(ctx: Context, batch: Batch, transform_M3: Tensor) -> Tensor:
    """[B, M]: whether each image is misclassified under each transformation, in batches of `ctx.batch_size`."""
    rows, columns = torch.meshgrid(torch.arange(len(batch)), torch.arange(len(transform_M3)), indexing="ij")
    wrong = []
    for row, column in zip(rows.flatten().split(ctx.batch_size), columns.flatten().split(ctx.batch_size), strict=True):
        x = rotated_translated(batch.x[row.to(ctx.device)], transform_M3[column])
        wrong.append(ctx.predict(x) != batch.y.cpu()[row])
    return torch.cat(wrong).view(len(batch), len(transform_M3))


def search(ctx: Context, batch: Batch, transform_M3: Tensor, order: Tensor) -> dict[str, Tensor]:
    """Try transformations in this order, block by block, until one fools the model.

    Returns:
        For each image `fooled_by`, the number of the first transformation that fools the model or -1, and `forwards`,
        the number of forward passes.
    """
    fooled_by_B, forwards_B = torch.full((len(batch),), _ROBUST), torch.zeros(len(batch), dtype=torch.int64)
    for first, last in blocks(len(order)):
        robust_B = fooled_by_B == _ROBUST
        if not bool(robust_B.any()):
            break
        wrong_BM = misclassified(ctx, batch.where(robust_B), transform_M3[order[first:last]])
        number_B = order[first + wrong_BM.int().argmax(1)]
        fooled_by_B[robust_B] = torch.where(wrong_BM.any(1), number_B, _ROBUST)
        forwards_B[robust_B] += last - first
    return {"fooled_by": fooled_by_B, "forwards": forwards_B}


def blocks(count: int) -> Iterator[tuple[int, int]]:
    """Start and end of the blocks of transformations that are tried together: 1, 2, 4 ... 64, 64 ..."""
    first, length = 0, 1
    while first < count:
        yield first, min(count, first + length)
        first, length = first + length, min(2 * length, _LONGEST_BLOCK)


def most_effective_first(transform_M3: Tensor, wrong_NM: Tensor) -> Tensor:
    """[M] numbers of transformations in the order of a search.

    First, greedily, those that fool the model on most images that are still robust; then all others, by the number of
    images on which they fool the model. Ties, and the order without images, are decided by size, largest first: the
    corners of the grid are the most effective.
    """
    size_M = (transform_M3 / transform_M3.abs().amax(0).clamp_min(1e-9)).square().sum(1)
    if not len(wrong_NM):
        return size_M.argsort(descending=True, stable=True)
    rank_M = wrong_NM.double().sum(0) + size_M / 10  # sizes are at most 3, so they only decide ties
    left_N, chosen = torch.ones(len(wrong_NM), dtype=torch.bool), list[int]()
    while bool((new_M := wrong_NM[left_N].double().sum(0)).any()):
        best = int((new_M * (len(wrong_NM) + 1) + rank_M / (len(wrong_NM) + 1)).argmax())
        chosen.append(best)
        left_N &= ~wrong_NM[:, best]
    others = rank_M.argsort(descending=True, stable=True).tolist()
    return torch.tensor(list(dict.fromkeys([*chosen, *others])))


def _pictures(ctx: Context, grid: Tensor, fooled_by: Sequence[int]) -> Pictures:
    index = first_images(ctx, _IMAGES)
    x, labels = ctx.images.images(index), ctx.images.labels[index].tolist()
    above = [picture(image, ctx.class_name(label)) for image, label in zip(x, labels, strict=True)]
    below: list[Picture | None] = []
    for image, number in zip(x, fooled_by, strict=False):
        if number == _ROBUST:
            below.append(None)
            continue
        down, right, degrees = grid[number].tolist()
        note = f"{down:+.2g}, {right:+.2g} px, {degrees:+.3g}°" if any((down, right, degrees)) else "wrong as it is"
        below.append(picture(rotated_translated(image[None], grid[number, None])[0], note))
    caption = (
        "The first images of the data set, and below the first transformation found that fools the model, if any does: "
        "down, to the right, and rotated."
    )
    return Pictures("Transformations that fool the model", caption, [above, below], ["clean", "transformed"])
