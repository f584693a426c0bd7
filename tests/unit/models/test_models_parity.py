"""The wrapped network is the bare network, tapped or not."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import timm
import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models import RAW_PIXELS, Model, Normalization, load, wrap
from vitadel.models.wide_resnet import WideResNet

Tiny = Callable[..., Model]
ATTENTIVE = ("vit", "deit", "distilled", "cait", "xcit", "swin", "levit")


def normalized(model: Model, x: Tensor) -> Tensor:
    """What the bare network is given: timm's own mean and std, as float32 holds them."""
    mean, std = (torch.tensor(model.net.pretrained_cfg[key]).to(x)[:, None, None] for key in ("mean", "std"))  # type: ignore[index]
    return (x - mean) / std


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", ATTENTIVE)
def test_wrapped_and_bare_networks_agree(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused)
    spec = model.spec
    assert spec is not None
    given = {"img_size": spec.image_size, "patch_size": spec.patch_size}
    sizes = {key: given[key] for key in {"xcit": (), "levit": ("img_size",)}.get(family, given)}
    bare = timm.create_model(spec.name.removeprefix("timm:"), num_classes=5, **sizes, **spec.options).double().eval()
    if family == "xcit":  # timm has no such setting; one halving fewer makes 16 into 8
        bare.patch_embed.proj[0][0].stride = (1, 1)
    for module in bare.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    bare.load_state_dict(model.net.state_dict())
    expected = bare(normalized(model, x))
    assert expected.std() > 1e-3
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("name", ["resnet18", "resnetv2_50x1_bit"])
def test_wrapped_and_bare_convolutional_networks_agree(x: Tensor, name: str) -> None:
    model = load(f"timm:{name}", num_classes=5, image_size=32).double()
    bare = timm.create_model(name, num_classes=5).double().eval()
    bare.load_state_dict(model.net.state_dict())
    assert torch.equal(model(x), bare(normalized(model, x)))


def test_own_networks_take_raw_pixels(x: Tensor) -> None:
    gelu = load("vitadel:resnet50_gelu", num_classes=5, image_size=32).double()
    bare = timm.create_model("resnet50", num_classes=5).double().eval()
    bare.load_state_dict(gelu.net.state_dict())
    assert gelu.normalization == RAW_PIXELS
    assert not torch.allclose(gelu(x), bare(x))
    by_hand = [name for name, module in bare.named_modules() if isinstance(module, nn.ReLU)]
    assert len(by_hand) == 1 + 16 * 3
    for name in by_hand:
        bare.set_submodule(name, nn.GELU())
    assert torch.equal(gelu(x), bare(x))


def test_wrapped_and_bare_wide_resnets_agree(x: Tensor) -> None:
    net = WideResNet(10, 1, 5).double().eval()
    model = wrap(net, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    mean, std = (torch.tensor(v, dtype=x.dtype).view(1, 3, 1, 1) for v in ((0.5, 0.25, 0.0), (0.5, 0.25, 1.0)))
    assert torch.equal(model(x), net((x - mean) / std))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", ATTENTIVE)
def test_identity_edits_change_nothing(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused)
    taps, expected = model.taps, model(x)
    everything, nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, 1, 1)
    neutral: list[Callable[[], object]] = [
        lambda: taps.read("*"),
        lambda: taps.edit("*", lambda a: a),
        lambda: taps.scale(1.0),
        lambda: taps.scale([1.0] * len(taps.attentions())),
        lambda: taps.mask(everything),
        lambda: taps.mask(nothing),
    ]
    for make in (*([one] for one in neutral), neutral):
        with ExitStack() as stack:
            for block in make:
                stack.enter_context(block())  # type: ignore[arg-type]
            torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_normalization_that_is_none_leaves_pixels_alone(x: Tensor) -> None:
    seen: list[Tensor] = []
    net = WideResNet(10, 1, 5).double().eval()
    net.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    Model(net, RAW_PIXELS)(x)
    assert seen[0] is x


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,)), ((0.5,), (-1.0,))])
def test_invalid_normalization_is_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="one mean and one positive std per channel"):
        Normalization(mean, std)


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (3, 32, 32), (2, 32, 32, 3), (2, 3, 32, 32, 1)])
def test_wrong_input_shapes_name_the_expected_one(tiny: Tiny, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"images of shape \[B, 3, H, W\], got") as error:
        tiny("vit")(torch.rand(shape).double())
    assert str(list(shape)) in str(error.value)


@pytest.mark.parametrize("family", ATTENTIVE)
@pytest.mark.parametrize(("height", "width"), [(48, 48), (16, 32), (32, 16)])
def test_patch_models_take_their_size_only(tiny: Tiny, family: str, height: int, width: int) -> None:
    with pytest.raises(UsageError, match=f"takes 32 x 32 images, got {height} x {width}"):
        tiny(family)(torch.rand(1, 3, height, width).double())


def test_convolutional_models_take_any_size(x: Tensor) -> None:
    model = load("timm:resnet18", num_classes=5, image_size=32).double()
    assert model(x[..., :24, :]).shape == (2, 5)


def test_the_wrapper_has_the_mode_of_its_network() -> None:
    net = WideResNet(10, 1, 5)
    for mode in (True, False):
        assert Model(net.train(mode), RAW_PIXELS).training is mode
