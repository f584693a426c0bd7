"""Properties of every corruption, and refusals."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.shifts import CORRUPTIONS, GROUPS, SEVERITIES, TABLES, Corruption

RANDOM = [name for name in CORRUPTIONS if name not in (
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate"
)]  # fmt: skip


def images(count: int, height: int = 32, width: int = 32) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 6, height), torch.linspace(0, 9, width), indexing="ij")
    smooth = torch.stack([(x + y).sin(), (x - y).cos(), (x * y / 5).sin()]) / 2 + 0.5
    noise = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    return ((0.7 * smooth + 0.3 * noise) * 255).round() / 255


def test_corruptions_have_groups_and_five_severities() -> None:
    assert len(CORRUPTIONS) == 19
    assert {kind.group for kind in CORRUPTIONS.values()} == set(GROUPS)
    assert [kind.group for kind in CORRUPTIONS.values()].count("extra") == 4
    for kind in CORRUPTIONS.values():
        assert len(kind.imagenet) == len(kind.cifar) == 5


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_results_are_eight_bit_and_do_not_depend_on_batch_or_order(name: str, table: str) -> None:
    x, index = images(3), torch.tensor([4, 11, 2])
    before = x.clone()
    for severity in SEVERITIES:
        corruption = Corruption(name, severity, table)
        y = corruption(x, index, seed=7)
        assert y.shape == x.shape
        assert torch.equal((y * 255).round() / 255, y)
        assert y.min() >= 0
        assert y.max() <= 1
        assert not torch.equal(y, x)
        backwards = corruption(x.flip(0), index.flip(0), seed=7).flip(0)
        assert torch.equal(y, backwards)
        assert torch.equal(corruption(x[1:2], index[1:2], seed=7), y[1:2])
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_larger_batch_changes_no_pixel(name: str) -> None:
    x, index = images(24), torch.arange(24)
    whole = Corruption(name, 1)(x, index, seed=0)
    parts = [Corruption(name, 1)(x[part], index[part], seed=0) for part in index.split(1)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_layout_in_memory_does_not_matter(name: str) -> None:
    x, index = images(2, 40, 48), torch.arange(2)
    other = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(Corruption(name, 2)(other, index, seed=0), Corruption(name, 2)(x, index, seed=0))


@pytest.mark.parametrize("name", RANDOM)
def test_seed_index_and_severity_each_change_the_noise(name: str) -> None:
    x = images(1).expand(2, -1, -1, -1)
    y = Corruption(name, 3)(x, torch.tensor([0, 1]), seed=0)
    assert not torch.equal(y[0], y[1])
    assert not torch.equal(Corruption(name, 3)(x, torch.tensor([0, 1]), seed=1), y)
    one, two = (Corruption("gaussian_noise", s)(x, torch.tensor([0, 1]), seed=0) - x for s in (1, 2))
    assert abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1].item()) < 0.1


@pytest.mark.parametrize("shape", [(16, 16), (17, 40), (64, 33), (225, 225)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_other_sizes_are_supported(name: str, shape: tuple[int, int]) -> None:
    x = images(1, *shape)
    y = Corruption(name, 5)(x, torch.tensor([0]), seed=0)
    assert y.shape == x.shape
    assert torch.isfinite(y).all()
    assert not torch.equal(y, x)


@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "glass_blur", "motion_blur", "gaussian_blur",
                                  "elastic_transform", "contrast", "pixelate"])  # fmt: skip
def test_a_constant_image_changes_by_at_most_one_level(name: str, level: int) -> None:
    """By rounding, as in the original: a disk whose weights add up to 1 - 4e-9 leaves 254 of white."""
    x = torch.full((1, 3, 40, 40), level / 255)
    for severity in SEVERITIES[:3]:  # the larger disks of defocus_blur brighten
        lost = ((x - Corruption(name, severity)(x, torch.tensor([0]), seed=0)) * 255).round().unique().tolist()
        assert set(lost) <= ({0, 1} if level else {0})
        assert lost == [0] or name in ("defocus_blur", "elastic_transform", "contrast")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_black_and_white_images_are_supported(name: str) -> None:
    x = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 32, 32)
    for severity in SEVERITIES:
        y = Corruption(name, severity)(x, torch.arange(2), seed=0)
        assert torch.isfinite(y).all()


@pytest.mark.parametrize(
    "name", ["shot_noise", "impulse_noise", "frost", "elastic_transform", "saturate", "jpeg_compression"]
)
def test_float_types_are_kept(name: str) -> None:
    x, index = images(2), torch.arange(2)
    y = Corruption(name, 3)(x, index, seed=0)
    double = Corruption(name, 3)(x.double(), index, seed=0)
    assert double.dtype == torch.float64
    assert torch.equal(double.float(), y)


def test_the_table_follows_the_size_and_is_recorded() -> None:
    corruption = Corruption("gaussian_noise", 3)
    assert corruption.table_for(32, 32) == "cifar"
    assert corruption.table_for(224, 224) == corruption.table_for(32, 48) == "imagenet"
    x, index = torch.full((2, 3, 32, 32), 128 / 255), torch.arange(2)
    assert torch.equal(corruption(x, index, seed=0), Corruption("gaussian_noise", 3, "cifar")(x, index, seed=0))
    spread = Corruption("gaussian_noise", 3, "imagenet")(x, index, seed=0).std() / corruption(x, index, seed=0).std()
    assert spread.item() == pytest.approx(0.18 / 0.08, rel=0.1)
    assert corruption.describe(32, 32) == {
        "corruption": "gaussian_noise", "severity": 3, "table": "cifar", "parameters": [0.08], "jpeg": None,
    }  # fmt: skip
    assert Corruption("frost", 1, jpeg=85).describe(224, 224)["frost"] == "procedural"


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "spatter"])
def test_corruptions_do_not_synchronize_with_the_device(name: str, table: str) -> None:
    """A meta tensor has no data: reading a value raises."""
    index = torch.empty(3, dtype=torch.long, device="meta")
    for severity in SEVERITIES:
        y = Corruption(name, severity, table).apply(
            torch.empty(3, 3, 64, 48, device="meta"), RandomStreams.of(0, index)
        )
        assert y.shape == (3, 3, 64, 48)
        assert y.is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_gpu_gives_the_same_images(name: str) -> None:
    x, index = images(4, 224, 224), torch.arange(4)
    for severity in SEVERITIES:
        y = Corruption(name, severity)(x, index, seed=0)
        on_gpu = Corruption(name, severity)(x.cuda(), index, seed=0).cpu()
        apart = ((on_gpu - y).abs() * 255).round()
        assert (apart > 1).double().mean().item() < 1e-3  # a rounded coordinate may fall on the next pixel
        assert (apart > 0).double().mean().item() < 0.02


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Corruption("fogg", 1), "Did you mean 'fog'"),
    (lambda: Corruption("fog", 0), r"Corruption.severity must lie in \[1, 5\], got 0"),
    (lambda: Corruption("fog", 6), r"Corruption.severity must lie in \[1, 5\], got 6"),
    (lambda: Corruption("fog", 1, "cifr"), "Did you mean 'cifar'"),
    (lambda: Corruption("fog", 1, jpeg=0), r"Corruption.jpeg must lie in \[1, 100\], got 0. ImageNet-C's files"),
])  # fmt: skip
def test_invalid_settings_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(("x", "index", "message"), [
    (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([0]), "got torch.uint8. Write x.float"),
    (torch.zeros(1, 1, 32, 32), torch.tensor([0]), "Repeat the channel of a gray image"),
    (torch.zeros(3, 32, 32), torch.tensor([0]), r"got \[3, 32, 32\]"),
    (torch.zeros(1, 3, 8, 32), torch.tensor([0]), "at least 16 px"),
    (torch.zeros(0, 3, 32, 32), torch.tensor([]), "got \\[0, 3, 32, 32\\]"),
    (torch.zeros(2, 3, 32, 32), torch.tensor([0]), "2 images, got indices of shape"),
    (torch.zeros(1, 3, 32, 32), torch.tensor([0.5]), "one whole number per image"),
    (torch.full((1, 3, 32, 32), 1.2), torch.tensor([0]), r"got \[1.2, 1.2\]"),
    (torch.full((1, 3, 32, 32), -0.1), torch.tensor([0]), "Normalization belongs inside the model"),
    (torch.full((1, 3, 32, 32), torch.nan), torch.tensor([0]), r"in \[0, 1\]"),
])  # fmt: skip
def test_invalid_images_are_refused(x: Tensor, index: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Corruption("fog", 1)(x, index, seed=0)


def test_gray_images_keep_equal_channels_where_the_corruption_does() -> None:
    gray = images(1)[:, :1].expand(-1, 3, -1, -1)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "fog", "brightness", "contrast",
                 "elastic_transform", "pixelate", "gaussian_blur"):  # fmt: skip
        y = Corruption(name, 3)(gray, torch.tensor([0]), seed=0)
        assert torch.equal(y[:, 0], y[:, 1]), name
        assert torch.equal(y[:, 0], y[:, 2]), name


def test_frost_accepts_a_folder_path(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), (0, 0, 255)).save(tmp_path / "blue.png")
    y = Corruption("frost", 2, "imagenet", frost=tmp_path)(torch.zeros(1, 3, 32, 32), torch.tensor([0]), seed=0)
    assert (y[0, :, 0, 0] * 255).round().tolist() == [0, 0, 153]
