"""Other patches and other images from the same weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.models import Model, Option, load, save
from vitadel.models.families.base import differs_in, fit_kernel

Tiny = Callable[..., Model]
KERNEL, POSITIONS = "patch_embed.proj.weight", "pos_embed"
AT_224: dict[str, tuple[str, int, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 1, {"depth": 1, "embed_dim": 48}),
    "deit": ("timm:deit_tiny_patch16_224", 1, {"depth": 1, "embed_dim": 48}),
    "deit3": ("timm:deit3_small_patch16_224", 0, {"depth": 1, "embed_dim": 48}),  # its class token has no position
    "distilled": ("timm:deit_tiny_distilled_patch16_224", 2, {"depth": 1, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 0, {"depth": 1, "embed_dim": 48}),
}


@pytest.mark.parametrize(("name", "largest"), [("xcit_nano_12_p16_224", 16), ("xcit_nano_12_p8_224", 8)])
@pytest.mark.parametrize("patch", [16, 8, 4, 2, 1])
def test_patches_of_xcit_tile_the_image(name: str, largest: int, patch: int) -> None:
    options: dict[str, Option] = {"depth": 1, "embed_dim": 48}
    if patch > largest:
        with pytest.raises(UsageError, match=f"this XCiT can have patches of 8, 4, 2, 1, got patch_size={patch}"):
            load(f"timm:{name}", image_size=32, patch_size=patch, options=options)
        return
    model = load(f"timm:{name}", num_classes=5, image_size=32, patch_size=patch, options=options)
    assert model.spec is not None
    assert model.spec.patch_size == patch
    with model.taps.read("embed") as seen:
        model(torch.rand(1, 3, 32, 32))
    assert seen["embed"].shape[1] * patch**2 == 32 * 32


@pytest.mark.parametrize("patch", [3, 32, 5, 17])
def test_unsupported_patch_sizes_of_xcit_are_refused(patch: int) -> None:
    with pytest.raises(UsageError, match=rf"patches of 16, 8, 4, 2, 1, got patch_size={patch}\."):
        load("timm:xcit_nano_12_p16_224", image_size=96, patch_size=patch, options={"depth": 1})


def test_patch_size_of_xcit_changes_no_weight(tmp_path: Path) -> None:
    old = load("timm:xcit_nano_12_p16_224", num_classes=5, options={"depth": 1, "embed_dim": 48}, seed=1)
    save(old, tmp_path / "old.safetensors")
    new = load(tmp_path / "old.safetensors", image_size=32, patch_size=2)
    for key, value in old.net.state_dict().items():
        assert torch.equal(new.net.state_dict()[key], value)
    # and the change is in the checkpoint
    save(new, tmp_path / "new.safetensors")
    x = torch.rand(1, 3, 32, 32)
    assert torch.equal(load(tmp_path / "new.safetensors")(x), new(x))


def test_xcit_at_patch_4_matches_the_published_adaptation() -> None:
    """Strides 1, 1, 2, 2 in the stem, as the authors of the CIFAR fine-tunes describe it."""
    model = load("timm:xcit_nano_12_p16_224", image_size=32, patch_size=4, options={"depth": 1})
    stem = [m for m in model.net.get_submodule("patch_embed").modules() if isinstance(m, torch.nn.Conv2d)]
    assert [layer.stride for layer in stem] == [(1, 1), (1, 1), (2, 2), (2, 2)]


@pytest.mark.parametrize("patch", [4, 2])
@pytest.mark.parametrize("family", AT_224)
def test_only_kernel_and_positions_change(tmp_path: Path, family: str, patch: int) -> None:
    name, prefix, options = AT_224[family]
    old = load(name, num_classes=5, options=options, seed=1)
    save(old, tmp_path / "old.safetensors")
    model = load(tmp_path / "old.safetensors", image_size=32, patch_size=patch, seed=2)
    before, after = old.net.state_dict(), model.net.state_dict()
    assert after[KERNEL].shape == (48, 3, patch, patch)
    assert after[POSITIONS].shape == (1, prefix + (32 // patch) ** 2, 48)
    assert torch.equal(after[POSITIONS][:, :prefix], before[POSITIONS][:, :prefix])
    changed = {key for key in before if not torch.equal(after[key], before[key])}
    assert changed == {KERNEL, POSITIONS}
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 5)


def test_positions_are_interpolated_on_the_grid(tmp_path: Path) -> None:
    old = load("timm:vit_tiny_patch16_224", image_size=64, patch_size=8, options={"depth": 1, "embed_dim": 48})
    ramp = torch.linspace(-1, 1, 8)
    with torch.no_grad():
        grid = old.net.get_parameter(POSITIONS)[:, 1:].unflatten(1, (8, 8))
        grid[..., 0], grid[..., 1], grid[..., 2] = ramp[:, None], ramp, 3.0  # rows, columns, a constant
    save(old, tmp_path / "old.safetensors")
    new = load(tmp_path / "old.safetensors", image_size=128).net.get_parameter(POSITIONS)[0, 1:].unflatten(0, (16, 16))
    at = (torch.arange(16) + 0.5) / 2 - 0.5  # the positions of the new tokens among the old
    expected = -1 + 2 * at / 7
    inner = slice(4, 12)
    torch.testing.assert_close(new[inner, inner, 0], expected[inner, None].expand(8, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(new[inner, inner, 1], expected[inner].expand(8, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(new[..., 2], torch.full((16, 16), 3.0))


def enlarged(patches: Tensor, size: int) -> Tensor:
    return F.interpolate(patches, size=size, mode="bicubic", antialias=True)


@pytest.mark.parametrize(("old", "new"), [(16, 4), (16, 2), (16, 8), (16, 14), (16, 1), (4, 16), (8, 32), (14, 16)])
def test_resampled_kernels_give_equal_outputs_on_resized_patches(old: int, new: int) -> None:
    rng = torch.Generator().manual_seed(0)
    kernel = torch.randn(6, 3, old, old, generator=rng)
    fitted = fit_kernel(kernel, torch.Size((new, new)))
    assert fitted.shape == (6, 3, new, new)
    small = torch.rand(5, 3, min(old, new), min(old, new), generator=rng)
    large = enlarged(small, max(old, new))
    outputs = {
        size: F.conv2d(small if size == small.shape[-1] else large, k) for size, k in ((old, kernel), (new, fitted))
    }
    torch.testing.assert_close(outputs[new], outputs[old], rtol=1e-3, atol=1e-3 * outputs[old].abs().max().item())


def test_downsampling_inverts_upsampling() -> None:
    kernel = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    there = fit_kernel(kernel, torch.Size((16, 16)))
    torch.testing.assert_close(fit_kernel(there, torch.Size((4, 4))), kernel, rtol=1e-3, atol=1e-4)
    assert fit_kernel(kernel, torch.Size((4, 4))) is kernel


@pytest.mark.parametrize("patch", [4, 2])
@pytest.mark.parametrize("family", [*AT_224, "swin"])
def test_constant_image_gets_the_same_embedding(tmp_path: Path, family: str, patch: int) -> None:
    swin: tuple[str, int, dict[str, Option]] = ("timm:swin_tiny_patch4_window7_224", 0, {"embed_dim": 24})
    name, _, options = AT_224.get(family, swin)
    old = load(name, num_classes=5, options=options, seed=1)
    save(old, tmp_path / "old.safetensors")
    new = load(tmp_path / "old.safetensors", image_size=32, patch_size=patch)
    color = torch.tensor([0.9, 0.4, 0.1]).view(1, 3, 1, 1)
    outputs = [
        model.net.get_submodule("patch_embed.proj")(color.expand(1, 3, size, size))[0, :, 0, 0]
        for model, size in ((old, 224), (new, 32))
    ]
    assert (outputs[0] - outputs[1]).norm() < 1e-3 * outputs[0].norm()


@pytest.mark.parametrize("family", ["timm:test_vit", "timm:deit_tiny_patch16_224", "timm:cait_xxs24_224"])
@pytest.mark.parametrize(("size", "patch"), [(30, 4), (32, 5), (32, 64)])
def test_patch_sizes_that_do_not_divide_are_refused(family: str, size: int, patch: int) -> None:
    with pytest.raises(
        UsageError, match=f"patches of {patch} does not tile {size} x {size} pixels.*multiple of the patch"
    ):
        load(family, image_size=size, patch_size=patch, options={"depth": 1})


@pytest.mark.parametrize("name", ["timm:xcit_nano_12_p16_224", "timm:swin_tiny_patch4_window7_224"])
def test_image_sizes_that_do_not_divide_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="does not tile 30 x 30 pixels"):
        load(name, image_size=30, patch_size=4)


def test_swin_at_32_pixels_with_patches_of_2(tmp_path: Path) -> None:
    old = load("timm:swin_tiny_patch4_window7_224", num_classes=5, options={"embed_dim": 24}, seed=1)
    save(old, tmp_path / "old.safetensors")
    model = load(tmp_path / "old.safetensors", image_size=32, patch_size=2)
    with model.taps.read("*out") as seen:
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    sides = [seen[f"blocks.{i}.out"].shape[1:3] for i in (0, 2, 4, 10)]
    assert sides == [(16, 16), (8, 8), (4, 4), (2, 2)]
    before, after = old.net.state_dict(), model.net.state_dict()
    changed = {
        key for key in before if before[key].shape != after[key].shape or not torch.equal(before[key], after[key])
    }
    # windows of 7 do not fit into the last two stages
    tables = {f"layers.{s}.blocks.{b}.attn.relative_position_bias_table" for s, n in ((2, 6), (3, 2)) for b in range(n)}
    assert changed == {KERNEL, *tables}


@pytest.mark.parametrize(
    ("stored", "wanted", "resampled"),
    [
        ({"k": (2, 3, 4, 4)}, {"k": (2, 3, 8, 8)}, True),
        ({"k": (2, 3, 4, 4)}, {"k": (2, 3, 4, 4)}, False),  # the same
        ({"k": (2, 3, 4, 4)}, {"k": (5, 3, 8, 8)}, False),  # of another width as well
        ({"k": (2, 3, 4)}, {"k": (2, 3, 4, 4)}, False),
        ({}, {"k": (2, 3, 4, 4)}, False),
        ({"k": (2, 3, 4, 4)}, {}, False),
    ],
)
def test_only_weights_that_differ_along_resampled_axes_are_resampled(
    stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]], resampled: bool
) -> None:
    given, built = ({name: torch.zeros(shape) for name, shape in side.items()} for side in (stored, wanted))
    assert differs_in(given, built, "k", (2, 3)) is resampled
