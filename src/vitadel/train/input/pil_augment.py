"""Augmentation with Pillow: crops of files at full size, and RandAugment."""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Probability, Range, check_number, check_ranges, check_seed
from vitadel.core.rng import RandomStreams, fold_seed, seeded_generators
from vitadel.data import Interpolation, Split
from vitadel.train.input.augment import Erase, Jitter, Pair, check_order
from vitadel.train.input.sampler import BatchIndex

_Key = tuple[int, int, int]  # step, row, copy
_Made = tuple[int, Tensor]  # seed, pixels

Workers = Annotated[int, Range(ge=0, le=1024, hint="0 uses this process.")]

_RAND_AUGMENT = re.compile(
    r"rand(-(m\d{1,3}|n\d{1,2}|p(0\.\d{1,4}|[01])|mstd\d{1,3}\.?\d{0,4}|mmax\d{1,3}|inc[01]|t(weights|3aw?)))*",
    re.ASCII,
)
# the stream of erasing, of the seed of an image
_ERASE = 1


@dataclass(frozen=True, slots=True)
class PILAugment:
    """timm's training transforms on one image at a time, without its normalization.

    With `resized_crop`, the crop is taken from the original file and resized to the size of the split's images;
    without, the split's own preprocess applies. Flip, RandAugment, color jitter and erasing follow, in that order.

    There are two differences from timm. timm drops the jitter when RandAugment is on; here it is kept: write
    `color_jitter=0` to train as the authors' timm did. timm erases with N(0, 1), meant for normalized images; here
    `Erase` follows, whose noise is uniform over pixel values. RandAugment fills what it uncovers with ImageNet's mean.

    Args:
        resized_crop: Whether a random crop is taken from the original file and resized.
        scale: The range of the crop's area, as a share of the image's.
        ratio: The range of the crop's width over its height.
        flip: Whether half of the images are flipped horizontally.
        color_jitter: The strength of the changes of brightness, contrast and saturation; 0 for none.
        rand_augment: timm's configuration of RandAugment, such as `rand-m9-mstd0.5-inc1`.
        erase: The probability that a box is erased.
        interpolation: How a crop is resized.
    """

    resized_crop: bool = True
    scale: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)
    flip: bool = True
    color_jitter: Jitter = 0.4
    rand_augment: str | None = None
    erase: Probability = 0.0
    interpolation: Interpolation = Interpolation.BICUBIC

    def __post_init__(self) -> None:
        check_ranges(self)
        check_order("PILAugment.scale", self.scale)
        check_order("PILAugment.ratio", self.ratio)
        if self.rand_augment is not None and not _RAND_AUGMENT.fullmatch(self.rand_augment):
            raise UsageError(
                f"PILAugment.rand_augment is not one of timm's, got {self.rand_augment!r}. "
                "Write for example rand-m9-mstd0.5-inc1."
            )

    def image(self, split: Split, row: int, *, seed: int) -> Tensor:
        """uint8 [3, H, W] of one image before erasing, a function of the seed."""
        check_seed(seed)
        picture = split.pixels.original(row) if self.resized_crop else split.pixels.finished(row)
        with seeded_generators(seed):  # which timm and torchvision draw from
            return _transform(self, *split.pixels.image_size)(picture)

    def erased(self, pixels: Tensor, seed_B: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] with a box of noise in some; on a batch, because `Erase` takes as long for one image."""
        if not self.erase:
            return pixels
        return Erase(self.erase)(pixels / 255, RandomStreams.of(_ERASE, seed_B)).mul(255).round().to(torch.uint8)


def pil_augmented(
    split: Split, indices: Iterable[BatchIndex], augment: PILAugment, *, seed: int, num_workers: int = 0
) -> Generator[tuple[BatchIndex, Tensor, Tensor], None, None]:
    """Yield (index, uint8 pixels, labels), augmented by `num_workers` processes, or in this one.

    An image is a function of (seed, step, row, copy), independent of the process and of the rest of the batch. The
    caller's random state does not change.

    Args:
        split: The images.
        indices: The images to read; an image that is several times in a batch has several copies.
        augment: The transforms.
        seed: The seed of the run.
        num_workers: Processes; 0 uses this process.
    """
    check_seed(seed)
    check_number("pil_augmented(num_workers=)", Workers, num_workers)
    waiting: deque[BatchIndex] = deque()

    def keys() -> Iterator[list[_Key]]:
        for index in indices:
            waiting.append(index)
            copy_B = index.index_B // len(split)
            yield [(index.step, *one) for one in zip(index.row_B.tolist(), copy_B.tolist(), strict=True)]

    images = AugmentedImages(split, augment, seed)
    loader = DataLoader(
        images,
        batch_sampler=_Once(keys()),
        num_workers=num_workers,
        collate_fn=images.collate,
        generator=torch.Generator(),  # or the loader would draw a seed from the global one
    )
    for pixels in loader:
        if isinstance(pixels, UsageError):
            raise pixels
        index = waiting.popleft()
        yield index, pixels, split.labels[index.row_B]


@dataclass(frozen=True, slots=True)
class _Once:
    """A batch sampler over keys of batches."""

    keys: Iterator[list[_Key]]

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.keys


@dataclass(frozen=True, slots=True, eq=False)
class AugmentedImages(Dataset[_Made | UsageError]):
    """The data set of a worker process; it can be pickled, so that workers may be spawned or forked."""

    split: Split
    augment: PILAugment
    seed: int

    def __getitem__(self, key: _Key) -> _Made | UsageError:
        seed = fold_seed(self.seed, *key)
        try:
            return seed, self.augment.image(self.split, key[1], seed=seed)
        except UsageError as error:
            # returned, because an error raised here would reach the user with the traceback of the worker
            return error

    def collate(self, made: list[_Made | UsageError]) -> Tensor | UsageError:
        images = []
        for item in made:
            if isinstance(item, UsageError):
                return item
            images.append(item)
        seeds, pixels = zip(*images, strict=True)
        return self.augment.erased(torch.stack(pixels), torch.tensor(seeds))


@lru_cache(maxsize=8)
def _transform(augment: PILAugment, height: int, width: int) -> Callable[[object], Tensor]:
    from timm.data.auto_augment import posterize
    from timm.data.transforms_factory import transforms_imagenet_train

    # a crop of the full area and aspect ratio does not change a preprocessed image
    crop = (augment.scale, augment.ratio) if augment.resized_crop else ((1.0, 1.0), (width / height, width / height))
    transform: Any = transforms_imagenet_train(
        (height, width),
        scale=crop[0],
        ratio=crop[1],
        hflip=0.5 if augment.flip else 0.0,
        color_jitter=augment.color_jitter or None,
        force_color_jitter=True,
        auto_augment=augment.rand_augment,
        interpolation=augment.interpolation.value,
        normalize=False,
    )
    for op in (op for step in transform.transforms for op in getattr(step, "ops", ())):
        if op.aug_fn is posterize:
            op.aug_fn = posterized
    made: Callable[[object], Tensor] = transform
    return made


def posterized(picture: Any, bits: int, **options: object) -> Any:
    """timm's posterize, also for 0 bits, the highest level: a black image, for which Pillow 13 raises an error."""
    from timm.data.auto_augment import posterize

    if bits < 1:
        return picture.point([0] * 256 * len(picture.getbands()))
    return posterize(picture, bits, **options)
