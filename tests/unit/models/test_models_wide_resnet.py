"""WideResNet and GELU ResNet-50: the published sizes, and the units one by one."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.models import family_of, load, save
from vitadel.models.build import OWN_ARCHITECTURES
from vitadel.models.wide_resnet import WideResNet

PUBLISHED = {"wrn28_10": (28, 10, 36_479_194), "wrn34_10": (34, 10, 46_160_474), "wrn70_16": (70, 16, 266_796_506)}


def by_arithmetic(depth: int, width: int, classes: int) -> int:
    """Weights of all convolutions, two numbers per channel of each BatchNorm, and the head."""
    total, channels = 3 * 16 * 9, 16
    for out in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            total += 2 * channels + 9 * channels * out + 2 * out + 9 * out * out
            total += channels * out if channels != out else 0
            channels = out
    return total + 2 * channels + channels * classes + classes


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_as_published(name: str) -> None:
    depth, width, published = PUBLISHED[name]
    with torch.device("meta"):
        net = OWN_ARCHITECTURES[name].build(10)
        assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in net.parameters()) == by_arithmetic(depth, width, 10) == published
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == depth


def test_unit_adds_to_its_input_or_to_a_projection() -> None:
    net = WideResNet(16, 1, 5).eval()
    first, second = net.groups[1][0], net.groups[1][1]  # type: ignore[index]
    for unit in (first, second):
        nn.init.zeros_(unit.conv2.weight)
    x = torch.randn(2, 16, 8, 8)
    torch.testing.assert_close(first(x), F.conv2d(F.relu(first.bn1(x)), first.shortcut.weight, stride=2))
    x = torch.randn(2, 32, 4, 4)
    assert torch.equal(second(x), x)


def by_hand(state: Mapping[str, Tensor], x: Tensor, active: Callable[[Tensor], Tensor]) -> Tensor:
    """The logits from the weights alone: no module, and one line for each line of the definition."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, var, scale, shift = (
            state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = F.conv2d(x, state["stem.weight"], padding=1)
    for unit in sorted({name.rsplit(".", 2)[0] for name in state if name.startswith("groups")}):
        stride = 2 if unit.endswith(".0") and unit != "groups.0.0" else 1
        out = active(norm(f"{unit}.bn1", x))
        if (projection := state.get(f"{unit}.shortcut.weight")) is not None:
            x = F.conv2d(out, projection, stride=stride)
        out = F.conv2d(out, state[f"{unit}.conv1.weight"], stride=stride, padding=1)
        out = F.conv2d(active(norm(f"{unit}.bn2", out)), state[f"{unit}.conv2.weight"], padding=1)
        x = x + out
    return active(norm("bn", x)).mean((2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("act_layer", ["relu", "silu"])
def test_logits_are_those_of_the_definition(act_layer: str) -> None:
    net = WideResNet(16, 2, 5, act_layer).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if "num_batches" not in name:
                value.copy_(value + 0.3 * torch.rand(value.shape, generator=generator, dtype=torch.float64))
    x = torch.rand(3, 3, 16, 16, generator=generator, dtype=torch.float64)
    active = {"relu": lambda z: z.clamp_min(0), "silu": lambda z: z / (1 + (-z).exp())}[act_layer]
    torch.testing.assert_close(net(x), by_hand(net.state_dict(), x, active), rtol=1e-9, atol=1e-9)


def test_silu_is_an_option_that_files_keep_and_costs_no_weights(tmp_path: Path) -> None:
    """WRN-70-16 of Wang et al. 2023 is one with SiLU: 267 M parameters in their table."""
    with torch.device("meta"):
        silu = load("vitadel:wrn70_16", options={"act_layer": "silu"}).net
        assert isinstance(silu, WideResNet)
        assert silu.active is F.silu
        assert sum(p.numel() for p in silu.parameters()) == PUBLISHED["wrn70_16"][2]
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = load("vitadel:wrn28_10", num_classes=3, options={"act_layer": "silu"}, seed=1)
    save(model, tmp_path / "model.safetensors")
    with torch.no_grad():
        named = load("vitadel:wrn28_10_silu", num_classes=3, seed=1)(x)
        assert torch.equal(model(x), named)
        assert torch.equal(load(tmp_path / "model.safetensors")(x), named)
        assert not torch.allclose(load("vitadel:wrn28_10", num_classes=3, seed=1)(x), named, atol=1e-3)


def test_initialization_is_he_fan_out_by_the_seed() -> None:
    model = load("vitadel:wrn28_10", seed=1)
    weight = model.net.get_submodule("groups.1.2.conv1").get_parameter("weight")
    assert weight.std().item() == pytest.approx((2 / (9 * 320)) ** 0.5, rel=0.01)
    assert not model.net.get_submodule("head").get_parameter("bias").any()
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_gelu_replaces_every_relu() -> None:
    kinds = [type(module).__name__ for module in load("vitadel:resnet50_gelu", num_classes=5).modules()]
    assert kinds.count("GELU") == 1 + 16 * 3
    assert not [kind for kind in kinds if "ReLU" in kind]


@pytest.mark.parametrize(
    ("name", "units", "fixed"),
    [
        ("wide", 6, {"groups.1.0", "groups.2.0"}),
        ("resnet18", 8, {"layer2.0", "layer3.0", "layer4.0"}),
        ("resnet50", 16, {"layer1.0", "layer2.0", "layer3.0", "layer4.0"}),
        ("resnetv2_50", 16, {f"stages.{stage}.blocks.0" for stage in range(4)}),
    ],
)
def test_only_a_unit_with_a_projection_changes_shape(name: str, units: int, fixed: set[str]) -> None:
    with torch.device("meta"):
        net = WideResNet(16, 1, 5) if name == "wide" else timm.create_model(name)
    layers = family_of(net).layers(net)
    assert [layer.module for layer in layers] == [net.get_submodule(layer.name) for layer in layers]
    assert len(layers) == units
    assert {layer.name for layer in layers if layer.changes_shape} == fixed


def test_units_are_counted_by_stage_and_none_can_be_skipped() -> None:
    net = timm.create_model("test_efficientnet")
    layers = family_of(net).layers(net)
    assert [layer.name for layer in layers] == [stage["module"] for stage in net.feature_info]
    assert all(layer.changes_shape and layer.module is net.get_submodule(layer.name) for layer in layers)
