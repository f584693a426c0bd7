"""Frost from photographs and procedural frost."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.shifts import Corruption
from vitadel.shifts.frost import (
    ORIGINAL,
    from_photographs,
    frost,
    photos_in,
    procedural,
    read_photo,
    windows_by_index,
    windows_by_slices,
)


def photo(path: Path, height: int, width: int, blue: int) -> None:
    """Red counts rows, green columns: a window of it shows where it was cut out."""
    rows, cols = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    Image.fromarray(np.stack([rows, cols, np.full_like(rows, blue)], 2).astype(np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photo(tmp_path / "a.png", 60, 90, 10)
    photo(tmp_path / "b.png", 100, 41, 20)
    (tmp_path / "readme.txt").write_text("not a photograph")
    return tmp_path


def test_windows_are_uniform_over_photographs(folder: Path) -> None:
    rng = RandomStreams.of(0, torch.arange(2000))
    ice = from_photographs(torch.zeros(2000, 3, 40, 40), rng, folder, 1)
    for image in ice[:50]:
        assert torch.equal(image[0] - image[0, :1, :1], torch.arange(40.0)[:, None].expand(40, 40))
        assert torch.equal(image[1] - image[1, :1, :1], torch.arange(40.0).expand(40, 40))
    top, left, blue = ice[:, 0, 0, 0], ice[:, 1, 0, 0], ice[:, 2, 0, 0]
    assert abs((blue == 10).double().mean().item() - 0.5) < 4 * 0.5 / 2000**0.5
    assert top[blue == 10].unique().tolist() == list(range(20))  # the last place is never drawn, as in the original
    assert left[blue == 10].unique().tolist() == list(range(50))
    assert left[blue == 20].unique().tolist() == [0]


def test_the_cifar_table_takes_every_fifth_pixel(folder: Path, tmp_path: Path) -> None:
    photo(tmp_path / "a.png", 250, 255, 10)
    (tmp_path / "b.png").unlink()
    ice = from_photographs(torch.zeros(9, 3, 32, 32), RandomStreams.of(0, torch.arange(9)), folder, 5)
    assert (ice[:, 0, 1:] - ice[:, 0, :-1]).unique().item() == 5
    assert (ice[:, 1, :, 1:] - ice[:, 1, :, :-1]).unique().item() == 5
    assert (ice[:, :2] % 5).unique().item() == 2


def test_a_small_photograph_is_enlarged(folder: Path) -> None:
    ice = from_photographs(torch.zeros(3, 3, 120, 130), RandomStreams.of(0, torch.arange(3)), folder, 1)
    assert ice.shape == (3, 3, 120, 130)
    assert ice[:, 2].unique().tolist() == [10, 20]


@pytest.mark.parametrize("stride", [1, 5])
def test_an_enlarged_photograph_is_larger_than_the_image_and_keeps_its_shape(tmp_path: Path, stride: int) -> None:
    photo(tmp_path / "a.png", 41 * stride, 60 * stride, 10)
    # 41 rows must become 51, and 60 columns in proportion 74.6
    assert read_photo(tmp_path / "a.png", stride, 50, 50).shape == (3, 51, 75)
    assert read_photo(tmp_path / "a.png", stride, 30, 80).shape == (3, 56, 81)
    assert read_photo(tmp_path / "a.png", stride, 40, 59).shape == (3, 41, 60)


def test_the_last_of_the_original_six_is_never_drawn(tmp_path: Path) -> None:
    for number, name in enumerate(ORIGINAL):
        photo(tmp_path / name, 40, 40, number)
    assert [path.name for path in photos_in(tmp_path)] == list(ORIGINAL[:5])
    assert Corruption("frost", 1, frost=tmp_path).describe(32, 32)["frost"] == list(ORIGINAL[:5])


def test_windows_by_index_match_slices() -> None:
    pixels = torch.rand(3, 40 * 50 + 30 * 35)  # two photographs, 50 and 35 wide
    corner, row = torch.tensor([0, 3 * 50 + 7, 40 * 50 + 2 * 35 + 1]), torch.tensor([50, 50, 35])
    ours = windows_by_slices(pixels, corner, row, 20, 16)
    assert torch.equal(ours, windows_by_index(pixels, corner, row, 20, 16))
    assert torch.equal(ours[2], pixels[:, 2000:].view(3, 30, 35)[:, 2:22, 1:17])


def test_other_photographs_of_the_same_name_are_distinguished(folder: Path) -> None:
    before = Corruption("frost", 1, frost=folder).describe(224, 224)
    photo(folder / "b.png", 100, 41, 21)
    after = Corruption("frost", 1, frost=folder).describe(224, 224)
    assert before["frost"] == after["frost"] == ["a.png", "b.png"]
    assert before["frost_sha256"] != after["frost_sha256"]


def test_weights_of_image_and_frost(folder: Path) -> None:
    levels = torch.randint(256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(0)).double()
    rng = RandomStreams.of(0, torch.arange(2))
    ice = from_photographs(levels, rng, folder, 1).double()
    y = frost(levels / 255, rng, 0.8, 0.6, folder, 1) * 255
    assert torch.equal(y.round(), (0.8 * levels + 0.6 * ice).clamp(0, 255).floor())


def test_photographs_that_cannot_be_read_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.png").write_bytes((folder / "a.png").read_bytes()[:60])
    with pytest.raises(
        UsageError, match=r"cannot read the frost photograph .*a\.png: damaged, or not an image\. Replace"
    ):
        from_photographs(torch.zeros(1, 3, 24, 24), RandomStreams.of(0, torch.arange(1)), folder, 1)

    for pixels in (np.full((60, 90), 0.5, np.float32), np.full((60, 90), 30000, np.uint16)):
        Image.fromarray(pixels).save(folder / "a.png", "TIFF")
        with pytest.raises(UsageError, match=r"the frost photograph .*a\.png has more than 8 bits a channel"):
            from_photographs(torch.zeros(1, 3, 23, 24), RandomStreams.of(0, torch.arange(1)), folder, 1)

    def locked(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", locked)
    with pytest.raises(UsageError, match=r"cannot read the frost photograph .*a\.png: Permission denied"):
        Corruption("frost", 1, frost=folder).describe(24, 24)
    monkeypatch.setattr(Path, "iterdir", locked)
    with pytest.raises(UsageError, match="cannot list the frost folder .*: Permission denied. Make it readable"):
        photos_in(folder)


def test_a_folder_without_photographs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no photographs"):
        Corruption("frost", 1, frost=tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        Corruption("frost", 1, frost=tmp_path / "none")
    with pytest.raises(UsageError, match="only the corruption frost"):
        Corruption("fog", 1, frost=tmp_path)


def test_procedural_frost_has_the_colors_and_spectrum_of_photographs() -> None:
    x = torch.zeros(60, 3, 224, 224)
    ice = procedural(x, RandomStreams.of(0, torch.arange(60)))
    means = (ice.mean((2, 3)) * 255).round()
    tints = torch.tensor([[78.0, 149, 166], [201, 205, 215], [138, 153, 165], [112, 123, 135]])
    nearest = torch.cdist(means, tints).argmin(1)
    assert (means - tints[nearest]).abs().max() <= 6  # white cuts the brightest tint a little
    shares = nearest.bincount(minlength=4) / 60
    assert (shares - torch.tensor([0.2, 0.4, 0.2, 0.2])).abs().max() < 4 * (0.24 / 60) ** 0.5
    spread = ice[nearest == 3].std((2, 3)).mean(0) * 255
    torch.testing.assert_close(spread, torch.tensor([44.0, 43, 42]), rtol=0.05, atol=0)
    power = torch.fft.fft2(ice[nearest == 2][:, 0].double()).abs().square().mean(0)
    frequency = torch.hypot(torch.fft.fftfreq(224)[:, None], torch.fft.fftfreq(224)) * 224
    rings = torch.arange(2, 100)
    level = torch.stack([power[(frequency >= ring - 0.5) & (frequency < ring + 0.5)].mean() for ring in rings]).log()
    place = rings.double().log()
    slope = ((place - place.mean()) * (level - level.mean())).sum() / (place - place.mean()).square().sum()
    assert slope.item() == pytest.approx(-1.6, abs=0.1)


def test_postscript_named_as_a_photograph_is_not_executed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **kwargs: pytest.fail("it was run"))
    (folder / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 90 90\n%%EndComments\nshowpage\n")
    with pytest.raises(UsageError, match=r"cannot read the frost photograph .*a\.png: damaged, or not an image"):
        from_photographs(torch.zeros(1, 3, 24, 24), RandomStreams.of(0, torch.arange(1)), folder, 1)
