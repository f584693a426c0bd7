"""Weights that contradict the image size of a network are refused, unless another size was requested."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.models import (
    Model,
    Option,
    family_of,
    load,
    normalization_is_unknown,
    save,
    save_adapters,
    tora,
    write_tensors,
)
from vitadel.models.families.base import Geometry
from vitadel.models.spec import SPEC_KEY

Tiny = Callable[..., Model]
NAMES = {
    "vit": ("timm:vit_tiny_patch16_224", {"depth": 2, "embed_dim": 48}),
    "distilled": ("timm:deit_tiny_distilled_patch16_224", {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", {"depth": 2, "embed_dim": 48}),
}


@pytest.fixture
def file(tiny: Tiny, tmp_path: Path) -> Callable[[str], Path]:
    """The weights of a small model as others would save them, without the image size."""

    def make(family: str) -> Path:
        torch.save(tiny(family).float().net.state_dict(), tmp_path / f"{family}.pth")
        return tmp_path / f"{family}.pth"

    return make


@pytest.mark.parametrize("family", NAMES)
def test_weights_of_small_images_are_refused_for_large_images(
    tiny: Tiny, file: Callable[[str], Path], x: Tensor, family: str
) -> None:
    (name, options), path = NAMES[family], file(family)
    with pytest.raises(UsageError) as refused:
        load(f"{name}@{path}", num_classes=5, options=options)
    assert str(refused.value) == (
        f"the weights in {name}@{path} have patches of 8, a grid of 4 x 4 tokens, so they are of images of 32 x 32; "
        f"{name} was to take images of 224 x 224 in patches of 16. Write --image-size 32 --patch-size 8 "
        "(image_size=32, patch_size=8 in Python), or the sizes you want them resampled to."
    )
    again = load(f"{name}@{path}", num_classes=5, options=options, image_size=32, patch_size=8)
    assert torch.equal(again(x.float()), tiny(family).float()(x.float()))


def test_requested_sizes_are_resampled(file: Callable[[str], Path], x: Tensor) -> None:
    name, options = NAMES["vit"]
    text = f"{name}@{file('vit')}"

    def read(**sizes: int) -> Model:
        return load(text, num_classes=5, options=options, **sizes)  # type: ignore[arg-type]

    assert read(image_size=64, patch_size=8)(torch.ones(1, 3, 64, 64)).shape == (1, 5)
    assert read(image_size=32, patch_size=4)(x.float()).shape == (2, 5)
    assert read(image_size=224, patch_size=8)(torch.ones(1, 3, 224, 224)).shape == (1, 5)  # from 4 x 4 to 28 x 28
    # an image size does not determine the patch size: patches of 8 would be resampled to 16
    with pytest.raises(UsageError, match=r"have patches of 8, .* Write --image-size 32 --patch-size 8 "):
        read(image_size=32)


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("patch", [8, 16, 56])
def test_a_patch_size_alone_does_not_change_the_size_of_images(
    file: Callable[[str], Path], family: str, patch: int
) -> None:
    """Positions of 4 x 4 patches of 8 became those of images of 224 x 224, which the weights have never seen."""
    name, options = NAMES[family]
    with pytest.raises(UsageError, match=r"of images of 32 x 32; .* 224 x 224 .* Write --image-size 32 --patch-size 8"):
        load(f"{name}@{file(family)}", num_classes=5, options=options, patch_size=patch)


def test_a_patch_size_alone_divides_the_same_images_into_other_patches(tmp_path: Path) -> None:
    model = load("timm:test_vit", num_classes=5, options={"depth": 1})
    torch.save(model.net.state_dict(), tmp_path / "w.pth")
    again = load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, options={"depth": 1}, patch_size=8)
    assert again.spec is not None
    assert (again.spec.image_size, again.spec.patch_size) == (160, 8)


def test_a_grid_alone_is_a_contradiction(tmp_path: Path) -> None:
    options: dict[str, Option] = {"depth": 1}
    model = load("timm:test_vit", num_classes=5, image_size=64, options=options)
    torch.save(model.net.state_dict(), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"a grid of 4 x 4 tokens, so they are of images of 64 x 64; .* 160 x 160"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, options=options)
    load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, options=options, image_size=160)  # requested


def test_weights_of_the_default_size_need_no_sizes(tmp_path: Path) -> None:
    for name in ("timm:test_vit", "timm:xcit_nano_12_p16_224", "timm:test_resnet"):
        model = load(name, num_classes=5, seed=1)
        torch.save(model.net.state_dict(), tmp_path / "w.pth")
        again = load(f"{name}@{tmp_path / 'w.pth'}", num_classes=5)
        assert again.spec == model.spec


def test_image_size_of_swin_is_inferred_from_late_windows(tiny: Tiny, tmp_path: Path) -> None:
    name = "timm:swin_tiny_patch4_window7_224"
    model = load(name, num_classes=5, image_size=32, patch_size=4, options={"embed_dim": 24})
    assert family_of(model.net).geometry(model.net.state_dict(), model.net) == Geometry(4, 8, 7)
    torch.save(model.net.state_dict(), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"a grid of 8 x 8 tokens, so they are of images of 32 x 32; .* 224 x 224 "):
        load(f"{name}@{tmp_path / 'w.pth'}", num_classes=5, options={"embed_dim": 24})
    again = load(f"{name}@{tmp_path / 'w.pth'}", num_classes=5, image_size=32, options={"embed_dim": 24})
    assert torch.equal(again(torch.ones(1, 3, 32, 32)), model(torch.ones(1, 3, 32, 32)))


def test_swin_with_other_windows_is_another_architecture(tmp_path: Path) -> None:
    name, options = "timm:swin_tiny_patch4_window7_224", {"embed_dim": 24}
    wide = load(name, num_classes=5, image_size=64, options={**options, "window_size": 2})
    torch.save(wide.net.state_dict(), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"windows of 2; .* Choose an architecture with such windows, or options="):
        load(f"{name}@{tmp_path / 'w.pth'}", num_classes=5, options=options)


def test_headers_that_contradict_their_weights_are_refused(tmp_path: Path) -> None:
    model = load("timm:test_vit", num_classes=5, image_size=32, patch_size=4, options={"depth": 1})
    assert model.spec is not None
    for change in ({"image_size": 64}, {"patch_size": 8}, {"image_size": 4096}):
        text = json.dumps({**json.loads(model.spec.to_json()), **change})
        write_tensors(tmp_path / "m.safetensors", model.net.state_dict(), {SPEC_KEY: text})
        with pytest.raises(UsageError, match=r"patches of 4, a grid of 8 x 8 tokens, so they are of images of 32 x 32"):
            load(tmp_path / "m.safetensors")
    save(model, tmp_path / "m.safetensors")
    assert load(tmp_path / "m.safetensors", image_size=64).spec is not None  # requested


def test_sizes_inside_a_network_with_adapters_are_checked(tmp_path: Path) -> None:
    base = load("timm:test_vit", num_classes=5, image_size=32, patch_size=4, options={"depth": 1})
    model = tora(base)
    assert model.spec is not None
    text = json.dumps({**json.loads(model.spec.to_json()), "image_size": 64})
    write_tensors(tmp_path / "m.safetensors", model.net.state_dict(), {SPEC_KEY: text})
    with pytest.raises(UsageError, match="a grid of 8 x 8 tokens"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("pos_embed", (1, 18, 64)),  # a class token and 17 others
        ("pos_embed", (17, 64)),
        ("pos_embed", (1, 0, 64)),
        ("pos_embed", (2, 37, 64)),  # of 6 x 6 patches
        ("pos_embed", (0, 37, 64)),
        ("pos_embed", (1, 37, 0)),
        ("pos_embed", (1, 37, 7)),
        ("patch_embed.proj.weight", (64, 3, 4, 8)),
        ("patch_embed.proj.weight", (64, 3, 4)),
        ("patch_embed.proj.weight", (64, 3, 0, 0)),
        ("patch_embed.proj.weight", (1, 1, 300, 300)),  # too large to be resampled
        ("patch_embed.proj.weight", (7, 3, 4, 4)),
    ],
)
def test_weights_that_cannot_be_resampled_are_a_mismatch(tmp_path: Path, key: str, shape: tuple[int, ...]) -> None:
    sizes = {"num_classes": 5, "image_size": 32, "patch_size": 8}
    state = load("timm:test_vit", options={"depth": 1}, **sizes).net.state_dict()  # type: ignore[arg-type]
    torch.save({**state, key: torch.ones(shape)}, tmp_path / "w.pth")
    given, wanted = (re.escape(str(list(one))) for one in (shape, state[key].shape))
    with pytest.raises(UsageError, match=f"1 of another shape: {re.escape(key)} {given} instead of {wanted}"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}", options={"depth": 1}, **sizes)  # type: ignore[arg-type]


def test_a_bias_table_that_cannot_be_resampled_is_a_mismatch(tmp_path: Path) -> None:
    name, sizes = "timm:swin_tiny_patch4_window7_224", {"num_classes": 5, "image_size": 32, "patch_size": 4}
    state = load(name, options={"embed_dim": 24}, **sizes).net.state_dict()  # type: ignore[arg-type]
    key = "layers.0.blocks.0.attn.relative_position_bias_table"
    # timm's resampling overflows for windows of thousands of tokens, and takes long for thousands of heads
    for rows, heads in ((0, 3), (5, 3), (16, 3), ((2 * 257 - 1) ** 2, 3), (529, 50_000)):
        torch.save({**state, key: torch.ones(rows, heads, dtype=torch.bool)}, tmp_path / "w.pth")
        with pytest.raises(UsageError, match=rf"bias_table \[{rows}, {heads}\] instead of \[169, 3\]"):
            load(f"{name}@{tmp_path / 'w.pth'}", options={"embed_dim": 24}, **sizes)  # type: ignore[arg-type]


def test_weights_without_a_description_are_foreign(tmp_path: Path) -> None:
    model = load("timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 1})
    save(model, tmp_path / "m.safetensors")
    save_adapters(tora(model), tmp_path / "added.safetensors")
    for name in ("timm:test_vit@w.pth", "vitadel:wrn28_10@w.pth", f"timm:test_vit@w.pth+{tmp_path}/added.safetensors"):
        assert normalization_is_unknown(name)
        assert normalization_is_unknown(f"{name}#rob") or "added" not in name
    for own in ("timm:test_vit", "zoo:cifar10-vit-tiny-short", tmp_path, tmp_path / "m.safetensors", "a@b"):
        assert not normalization_is_unknown(own)
