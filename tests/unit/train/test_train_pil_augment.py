"""Augmentation with PIL: images at their own size, the same in any process."""

import multiprocessing
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.data import CenterCrop, Interpolation, Split, Squash, load
from vitadel.data.pixels import Arrays, InMemory
from vitadel.recipes.augmentation_sets import AUGMENTATION_SETS, AugmentationSet
from vitadel.train.input.augment import Chain, ColorJitter, Erase, Flip, ResizedCrop
from vitadel.train.input.mixing import Mixing
from vitadel.train.input.pil_augment import AugmentedImages, PILAugment, pil_augmented, posterized
from vitadel.train.input.sampler import BatchIndex

RAND = "rand-m9-mstd0.5-inc1"
NOTHING = PILAugment(resized_crop=False, flip=False, color_jitter=0.0)
FULL = PILAugment(rand_augment=RAND, erase=0.5)
ROWS = ([3, 1, 2], [0], [4, 5, 5, 0])


def index(rows: Sequence[int], step: int = 0, copies: Sequence[int] = (), real: int = 6) -> BatchIndex:
    row_B, copy_B = torch.tensor(rows), torch.tensor(copies or [0] * len(rows))
    return BatchIndex(step, row_B, torch.zeros_like(row_B, dtype=torch.bool), row_B + copy_B * real)


ORDER = [index(rows, step) for step, rows in enumerate(ROWS)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six smooth pictures of two classes, wider than high."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(6):
        rng = np.random.default_rng(number)
        small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        path = folder / "test" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((50, 40), Image.Resampling.BICUBIC).save(path)
    return folder


@pytest.fixture(scope="module")
def files(root: Path) -> Split:
    return load(f"folder:{root}", preprocess=CenterCrop(16, 18)).test


@pytest.fixture(scope="module")
def in_memory_split(files: Split) -> Split:
    return files.load_into_memory()


def made(split: Split, augment: PILAugment, order: Sequence[BatchIndex] = ORDER, **options: int) -> list[Tensor]:
    return [
        pixels.to(torch.float32).div_(255)
        for _, pixels, _ in pil_augmented(split, order, augment, **{"seed": 0, **options})
    ]


def test_batches_are_rows_bytes_and_labels(files: Split) -> None:
    got = list(pil_augmented(files, ORDER, FULL, seed=0))
    assert [each for each, _, _ in got] == ORDER
    for (_, x, y), expected in zip(got, ROWS, strict=True):
        assert torch.equal(y, files.labels[expected])
        assert x.shape == (len(expected), 3, 16, 16)
        assert x.dtype == torch.uint8


@pytest.mark.parametrize("kind", ["files", "in_memory_split"])
def test_no_augmentation_gives_the_images(kind: str, request: pytest.FixtureRequest) -> None:
    split: Split = request.getfixturevalue(kind)
    for x, rows in zip(made(split, NOTHING), ROWS, strict=True):
        assert torch.equal(x, split.images(torch.tensor(rows)))


@pytest.mark.parametrize("augment", [FULL, PILAugment(), PILAugment(False, flip=False, erase=1.0)])
def test_an_image_depends_on_seed_step_row_and_copy_alone(files: Split, augment: PILAugment) -> None:
    rows = [2, 0, 5]
    [x] = made(files, augment, [index(rows, 7)])
    # alone, elsewhere in a batch, after other steps
    assert torch.equal(made(files, augment, [index([5], 7)])[0], x[2:])
    assert torch.equal(made(files, augment, [index([1], 6), index([4, 0], 7)])[1][1], x[1])
    for other in (
        made(files, augment, [index(rows, 8)]),
        made(files, augment, [index(rows, 7)], seed=1),
        made(files, augment, [index(rows, 7, [1, 1, 1])]),
    ):
        assert not any(torch.equal(one, another) for one, another in zip(other[0], x, strict=True))


def test_copies_of_an_image_in_one_batch_differ(in_memory_split: Split) -> None:
    [x] = made(in_memory_split, FULL, [index([3, 3, 3], 0, [0, 1, 2])])
    assert len(x.flatten(1).unique(dim=0)) == 3


def test_workers_and_the_main_process_agree(files: Split) -> None:
    for one, other in zip(made(files, FULL), made(files, FULL, num_workers=2), strict=True):
        assert torch.equal(one, other)


def test_arguments_of_workers_can_be_pickled(files: Split) -> None:
    one = AugmentedImages(files, FULL, 3)
    other = pickle.loads(pickle.dumps(one))  # noqa: S301
    first, second = one[0, 4, 0], other[0, 4, 0]
    assert isinstance(first, tuple)
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_state_is_left_alone(in_memory_split: Split, workers: int) -> None:
    before = random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state()
    made(in_memory_split, FULL, num_workers=workers)
    assert random.getstate() == before[0]
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_closing_early_leaves_no_process(in_memory_split: Split, workers: int) -> None:
    def endless() -> Iterator[BatchIndex]:
        while True:
            yield index([0])

    reader = pil_augmented(in_memory_split, endless(), FULL, seed=0, num_workers=workers)
    next(reader)
    reader.close()
    assert multiprocessing.active_children() == []


def test_crops_are_cut_from_the_original(files: Split, in_memory_split: Split) -> None:
    crop = PILAugment(scale=(0.3, 0.3), ratio=(1.0, 1.0), flip=False, color_jitter=0.0)
    [sharp], [blurred] = made(files, crop, [index(range(6))]), made(in_memory_split, crop, [index(range(6))])
    assert not torch.allclose(sharp, blurred, atol=0.05)
    # 30% of the 50 x 40 original, as a square
    side = round((0.3 * 2000) ** 0.5)
    originals = [files.pixels.original(row) for row in range(6)]
    assert {picture.size for picture in originals} == {(50, 40)}
    for picture, got in zip(originals, (sharp * 255).round().to(torch.uint8), strict=True):
        windows = (
            picture.crop((left, top, left + side, top + side)).resize((16, 16), Image.Resampling.BICUBIC)
            for top in range(40 - side + 1)
            for left in range(50 - side + 1)
        )
        assert any((np.asarray(window) == got.permute(1, 2, 0).numpy()).all() for window in windows)


def test_each_part_changes_images_only_when_enabled(in_memory_split: Split) -> None:
    plain = in_memory_split.images(torch.arange(6))
    for augment in (
        PILAugment(resized_crop=False, flip=True, color_jitter=0.0),
        PILAugment(resized_crop=False, flip=False, color_jitter=0.4),
        PILAugment(resized_crop=False, flip=False, color_jitter=0.0, rand_augment=RAND),
        PILAugment(resized_crop=False, flip=False, color_jitter=0.0, erase=1.0),
        PILAugment(resized_crop=True, flip=False, color_jitter=0.0, interpolation=Interpolation.BILINEAR),
    ):
        [x] = made(in_memory_split, augment, [index(range(6))])
        assert not torch.equal(x, plain)
    [flipped] = made(in_memory_split, PILAugment(resized_crop=False, color_jitter=0.0), [index(range(6))])
    same = [torch.equal(one, other) for one, other in zip(flipped, plain, strict=True)]
    mirrored = [torch.equal(one.flip(-1), other) for one, other in zip(flipped, plain, strict=True)]
    assert [a != b for a, b in zip(same, mirrored, strict=True)] == [True] * 6


def test_jitter_stays_on_beside_rand_augment(in_memory_split: Split) -> None:
    jittered, plain = (
        made(in_memory_split, PILAugment(False, flip=False, color_jitter=jitter, rand_augment=RAND), [index(range(6))])[
            0
        ]
        for jitter in (0.4, 0.0)
    )
    assert not any(torch.equal(one, other) for one, other in zip(jittered, plain, strict=True))


def test_erasing_matches_ours_with_eight_bit_values(in_memory_split: Split) -> None:
    plain = in_memory_split.images(torch.arange(6))
    [x] = made(in_memory_split, PILAugment(False, flip=False, color_jitter=0.0, erase=1.0), [index(range(6))])
    seeds = torch.tensor([fold_seed(0, 0, row, 0) for row in range(6)])
    torch.testing.assert_close(x, Erase(1.0)(plain, RandomStreams.of(1, seeds)), rtol=0, atol=0.501 / 255)


def test_images_that_are_not_square_keep_their_shape() -> None:
    pixels = torch.arange(360).remainder(251).to(torch.uint8).view(2, 3, 10, 6)
    tall = Split("tall", ("a", "b"), torch.tensor([0, 1]), InMemory(pixels))
    assert torch.equal(made(tall, NOTHING, [index(range(2), real=2)])[0], tall.images(torch.arange(2)))
    for augment in (FULL, NOTHING):
        assert made(tall, augment, [index(range(2), real=2)])[0].shape == (2, 3, 10, 6)
    assert tall.pixels.finished(0).size == (6, 10)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_a_one_line_error(root: Path, tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "broken"
    (folder / "test" / "cat").mkdir(parents=True)
    whole = (root / "test" / "cat" / "0.png").read_bytes()
    (folder / "test" / "cat" / "0.png").write_bytes(whole)
    (folder / "test" / "cat" / "1.png").write_bytes(whole[: len(whole) // 2])
    split = load(f"folder:{folder}", preprocess=Squash(8)).test
    broken = next(row for row, name in enumerate(split.ids) if name.endswith("1.png"))
    with pytest.raises(UsageError, match=r"^cannot read the image [^\n]*1.png: [^\n]*$"):
        made(split, FULL, [index([1 - broken, broken], real=2)], num_workers=workers)


def test_images_are_read_in_rgb_at_their_own_size(tmp_path: Path) -> None:
    (tmp_path / "test" / "cat").mkdir(parents=True)
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    Image.fromarray(gray).save(tmp_path / "test" / "cat" / "gray.png")
    split = load(f"folder:{tmp_path}", preprocess=Squash(8)).test
    picture = split.pixels.original(0)
    assert (picture.mode, picture.size) == ("RGB", (4, 3))
    assert (np.asarray(picture) == gray[:, :, None]).all()
    assert (
        np.asarray(split.pixels.finished(0)) == split.pixels.read(torch.tensor([0]))[0].permute(1, 2, 0).numpy()
    ).all()
    resident = split.load_into_memory().pixels
    assert (np.asarray(resident.original(0)) == np.asarray(split.pixels.finished(0))).all()
    pictures = torch.arange(2 * 3 * 4 * 6, dtype=torch.uint8).view(2, 3, 4, 6)
    arrays = Arrays(pictures, Squash(5))
    assert (arrays.image_size, arrays.finished(1).size) == ((5, 5), (5, 5))
    assert (np.asarray(arrays.original(1)) == pictures[1].permute(1, 2, 0).numpy()).all()


# The sixteen


def test_sixteen_augmentation_sets_match_their_names() -> None:
    assert len(AUGMENTATION_SETS) == 16
    for name, chosen in AUGMENTATION_SETS.items():
        parts = set(name.split("+")) - {"base"}
        on = {"mixup": chosen.mixup, "cutmix": chosen.cutmix, "rand": chosen.rand_augment, "erase": chosen.erase}
        assert {part for part, value in on.items() if value} == parts
    values = {(s.mixup, s.cutmix, s.rand_augment, s.erase) for s in AUGMENTATION_SETS.values()}
    assert values == {(m, c, r, e) for m in (0, 0.8) for c in (0, 1.0) for r in (None, RAND) for e in (0, 0.25)}


@pytest.mark.parametrize("chosen", AUGMENTATION_SETS.values(), ids=AUGMENTATION_SETS)
def test_each_set_runs(in_memory_split: Split, chosen: AugmentationSet) -> None:
    rows = torch.arange(6)
    if chosen.rand_augment:
        augment = PILAugment(rand_augment=chosen.rand_augment, erase=chosen.erase)
        [(_, pixels, y)] = pil_augmented(in_memory_split, [index(range(6))], augment, seed=0)
        x = pixels.to(torch.float32).div_(255)
    else:
        device = Chain((ResizedCrop(flip=False), Flip(), ColorJitter(), Erase(chosen.erase)))
        x, y = device(in_memory_split.images(rows), RandomStreams.of(0, rows)), in_memory_split.labels
    mixed, shares = Mixing(chosen.mixup, chosen.cutmix)(x, y, 2, seed=3)
    assert mixed.shape == (6, 3, 16, 16)
    assert mixed.min() >= 0
    assert mixed.max() <= 1
    torch.testing.assert_close(shares.sum(1), torch.ones(6))
    assert torch.equal(mixed, x) is not bool(chosen.mixup or chosen.cutmix)


# Invalid settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"rand_augment": "rand-q9"},
            "PILAugment.rand_augment is not one of timm's, got 'rand-q9'.*rand-m9-mstd0.5-inc1",
        ),
        ({"rand_augment": "rand-m9-p.5"}, "is not one of timm's, got 'rand-m9-p.5'"),
        ({"rand_augment": "rand-n999999999"}, "is not one of timm's, got 'rand-n999999999'"),
        ({"rand_augment": "rand-m\N{FULLWIDTH DIGIT NINE}"}, "is not one of timm's"),
        ({"rand_augment": "m9"}, "PILAugment.rand_augment is not one of timm's, got 'm9'"),
        ({"erase": 2.0}, r"PILAugment.erase must lie in \[0, 1\], got 2"),
        ({"color_jitter": -0.4}, "PILAugment.color_jitter must not be negative, got -0.4"),
        ({"scale": (1.0, 0.5)}, r"PILAugment.scale must be two positive numbers.*got \(1, 0.5\)"),
        ({"ratio": (0.0, 0.5)}, r"PILAugment.ratio\[0\] must be positive, got 0.0"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PILAugment(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", [RAND, "rand-m9-n3-mstd0.5", "rand-mstd1-tweights", "rand-m7-mstd0.5-inc1-p0.8", "rand"]
)
def test_spellings_of_timm_are_accepted(in_memory_split: Split, text: str) -> None:
    assert made(in_memory_split, PILAugment(rand_augment=text), [index([0])])[0].shape == (1, 3, 16, 16)


def test_the_highest_level_of_posterize_is_black(in_memory_split: Split) -> None:
    picture = Image.new("RGB", (2, 2), (200, 100, 50))
    assert posterized(picture, 0).getcolors() == [(4, (0, 0, 0))]
    assert posterized(picture, -1).getcolors() == [(4, (0, 0, 0))]
    assert posterized(picture, 4).getcolors() == [(4, (192, 96, 48))]
    assert posterized(picture, 8) is picture
    highest = PILAugment(rand_augment="rand-m10-n9-inc1", resized_crop=False)
    for seed in range(40):  # Pillow 13 refuses arguments of timm for some of them
        assert highest.image(in_memory_split, 0, seed=seed).shape == (3, 16, 16)


def test_a_negative_number_of_workers_is_refused(in_memory_split: Split) -> None:
    with pytest.raises(
        UsageError, match=r"pil_augmented\(num_workers=\) must lie in \[0, 1024\], got -1. 0 uses this process"
    ):
        next(pil_augmented(in_memory_split, ORDER, FULL, seed=0, num_workers=-1))
