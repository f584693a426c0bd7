"""Crops and resizes against Pillow by hand, and every picture mode."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data import CenterCrop, Interpolation, Preprocess, Squash, parse_preprocess

BOTH = [(Interpolation.BILINEAR, Image.Resampling.BILINEAR), (Interpolation.BICUBIC, Image.Resampling.BICUBIC)]


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    return Image.fromarray(pixels)


def chw(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


@pytest.mark.parametrize(("ours", "pillows"), BOTH)
def test_center_crop_is_a_resize_and_a_crop(ours: Interpolation, pillows: Image.Resampling) -> None:
    picture = noise(31, 20)
    # 20 -> 10 makes 31 -> 15 (cut); the corner lies at (15 - 8) / 2 = 3.5 -> 4 and (10 - 8) / 2 = 1
    expected = picture.resize((15, 10), pillows).crop((4, 1, 12, 9))
    got = CenterCrop(8, 10, ours)(picture)
    assert got.dtype == torch.uint8
    assert torch.equal(got, chw(expected))


def test_center_crop_of_a_tall_image() -> None:
    picture = noise(12, 40)
    expected = picture.resize((9, 30), Image.Resampling.BILINEAR).crop((0, 11, 8, 19))  # 0.5 and 11 round to even
    assert torch.equal(CenterCrop(8)(picture), chw(expected))


@pytest.mark.parametrize(
    ("size", "resized", "corner"),
    [
        ((31, 20), (20, 13), (5, 2)),
        ((20, 31), (13, 20), (2, 5)),
        ((9, 9), (13, 13), (2, 2)),
        ((5, 7), (13, 18), (2, 4)),
        ((64, 63), (13, 13), (2, 2)),
        ((63, 13), (63, 13), (26, 2)),
    ],
)
def test_center_crop_matches_torchvision(
    size: tuple[int, int], resized: tuple[int, int], corner: tuple[int, int]
) -> None:
    picture = noise(*size)
    left, top = corner
    expected = picture.resize(resized, Image.Resampling.BILINEAR).crop((left, top, left + 10, top + 10))
    assert torch.equal(CenterCrop(10, 13)(picture), chw(expected))


@pytest.mark.parametrize(("ours", "pillows"), BOTH)
def test_squash_ignores_the_aspect_ratio(ours: Interpolation, pillows: Image.Resampling) -> None:
    picture = noise(31, 20)
    assert torch.equal(Squash(9, ours)(picture), chw(picture.resize((9, 9), pillows)))


@pytest.mark.parametrize("preprocess", [CenterCrop(8, 8), CenterCrop(8, 8, Interpolation.BICUBIC), Squash(8)])
def test_an_image_of_the_right_size_is_unchanged(preprocess: Preprocess) -> None:
    picture = noise(8, 8)
    assert preprocess.is_noop_for(8, 8)
    assert torch.equal(preprocess(picture), chw(picture))


def test_keeps_is_true_if_an_image_is_unchanged() -> None:
    assert not CenterCrop(8).is_noop_for(8, 8)
    assert not CenterCrop(8, 8).is_noop_for(8, 9)
    assert not Squash(8).is_noop_for(9, 8)


def test_gray_is_repeated() -> None:
    picture = noise(8, 8, "L")
    got = Squash(8)(picture)
    assert all(torch.equal(got[channel], torch.from_numpy(np.array(picture))) for channel in range(3))


def test_transparency_is_dropped() -> None:
    picture = noise(8, 8, "RGBA")
    assert torch.equal(Squash(8)(picture), chw(picture)[:3])


def test_cmyk_becomes_rgb() -> None:
    picture = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow ink: red
    assert Squash(8)(picture)[:, 3, 3].tolist() == [255, 0, 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80"])
def test_palette_becomes_its_colors(transparency: int | bytes | None) -> None:
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    if transparency is not None:
        picture.info["transparency"] = transparency
    assert Squash(8)(picture)[:, 0, 0].tolist() == [10, 20, 30]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    picture = Image.fromarray(np.full((8, 8), 257 * 100, dtype=np.uint16))
    assert picture.mode.startswith("I")
    assert Squash(8)(picture).unique().tolist() == [100]


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("crop:224", CenterCrop(224), "crop224-of-256-bilinear"),
        ("crop:32:32", CenterCrop(32, 32), "crop32-of-32-bilinear"),
        ("crop:224:bicubic", CenterCrop(224, None, Interpolation.BICUBIC), "crop224-of-256-bicubic"),
        ("crop:224:248:bicubic", CenterCrop(224, 248, Interpolation.BICUBIC), "crop224-of-248-bicubic"),
        ("squash:32", Squash(32), "squash32-bilinear"),
        ("squash:32:bicubic", Squash(32, Interpolation.BICUBIC), "squash32-bicubic"),
    ],
)
def test_preprocessing_is_read_and_written_as_text(text: str, expected: Preprocess, name: str) -> None:
    assert parse_preprocess(text) == expected
    assert expected.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop", "cannot read the preprocess 'crop'. Write crop:SIZE[:RESIZE][:INTERPOLATION] or squash:SIZE"),
        ("squash:32:40", "cannot read the preprocess 'squash:32:40'."),
        ("crop:a:32", "cannot read the preprocess 'crop:a:32'."),
        ("crop:1:2:3", "cannot read the preprocess 'crop:1:2:3'."),
        ("squah:32", "unknown preprocess 'squah'. Did you mean 'squash'? Known: crop, squash."),
        ("crop:224:bicubik", "unknown interpolation 'bicubik'. Did you mean 'bicubic'? Known: bicubic, bilinear."),
        ("squash:0", "Squash.size must lie in [1, 4096], got 0. Write the model's input size, such as 224."),
        ("squash:99999999", "Squash.size must lie in [1, 4096], got 99999999."),
        ("crop:99999999", "CenterCrop.size must lie in [1, 4096], got 99999999."),
        ("crop:224:99999999", "CenterCrop.resize must lie in [1, 4096], got 99999999."),
        ("squash:" + "9" * 5000, "a size in pixels is too large a number"),
        ("squash:\N{FULLWIDTH DIGIT EIGHT}", "unknown interpolation"),
        ("crop:\N{FULLWIDTH DIGIT EIGHT}:32", "cannot read the preprocess"),
        ("crop:224:200", "CenterCrop.resize must be at least the size 224, got 200. The crop would reach beyond"),
    ],
)
def test_invalid_text_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_preprocess(text)
