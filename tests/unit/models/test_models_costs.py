"""Parameters and multiply-accumulates against closed forms and published numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitadel.models import Model, cost, load

Tiny = Callable[..., Model]


def vit_by_hand(depth: int, dim: int, image: int, patch: int, classes: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a ViT with a class token, MLPs of four times its width."""
    patches = (image // patch) ** 2
    tokens = patches + 1
    block = 12 * dim**2 + 13 * dim  # queries, keys, values, projection, MLP; biases and two LayerNorms
    parameters = (3 * patch**2 + 1) * dim + dim + tokens * dim + depth * block + 2 * dim + (dim + 1) * classes
    inside = tokens * 12 * dim**2 + 2 * tokens**2 * dim
    return parameters, patches * 3 * patch**2 * dim + depth * inside + dim * classes


def test_vit_b_2_at_32_pixels() -> None:
    with torch.device("meta"):
        model = load("timm:vit_base_patch16_224", num_classes=10, image_size=32, patch_size=2)
    measured = cost(model, 32)
    assert (measured.parameters, measured.macs) == vit_by_hand(12, 768, 32, 2, 10)
    assert measured.macs / 1e9 == pytest.approx(23.05, abs=0.02)
    assert measured.parameters / 1e6 == pytest.approx(85.3, abs=0.05)
    assert measured.gflops == pytest.approx(46.1, abs=0.04)


def test_the_figures_that_a_paper_compares_vit_b_2_and_wrn_70_16_by() -> None:
    """Wu et al. 2025: 21.85 and 38.81 "G FLOPs", which are multiply-accumulates without products inside attention."""
    with torch.device("meta"):
        vit = load("timm:vit_base_patch16_224", num_classes=10, image_size=32, patch_size=2)
        wide = load("vitadel:wrn70_16", options={"act_layer": "silu"})
    inside = 12 * 2 * 257**2 * 768
    assert (cost(vit, 32).macs - inside) / 1e9 == pytest.approx(21.85, abs=0.03)
    # normalization layers, which are not counted here, make up the rest
    assert cost(wide, 32).macs / 1e9 == pytest.approx(38.81, abs=0.05)


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_counted_fused_or_not(tiny: Tiny, fused: bool) -> None:
    measured = cost(tiny("vit", fused=fused), 32)
    assert (measured.parameters, measured.macs) == vit_by_hand(2, 48, 32, 8, 5)


@pytest.mark.parametrize("family", ["cait", "xcit", "swin"])
def test_other_families_cost_the_same_fused_or_not(tiny: Tiny, family: str) -> None:
    assert cost(tiny(family, fused=True), 32) == cost(tiny(family, fused=False), 32)


def test_resnet_50_at_224_pixels() -> None:
    with torch.device("meta"):
        measured = cost(load("timm:resnet50"), 224)
    assert measured.macs / 1e9 == pytest.approx(4.09, abs=0.005)
    assert measured.parameters == 25_557_032


def test_levit_128s_at_224_pixels() -> None:
    """Graham et al. 2021 (arXiv:2104.01136) give 7.8 million and 305 million."""
    with torch.device("meta"):
        measured = cost(load("timm:levit_128s"), 224)
    assert measured.macs / 1e6 == pytest.approx(305, abs=0.5)
    assert measured.parameters / 1e6 == pytest.approx(7.8, abs=0.05)


def test_counting_leaves_the_model_unchanged() -> None:
    model = load("timm:test_resnet", num_classes=5, image_size=32)
    model.train()
    frozen = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)).eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    cost(model, 32)
    assert [module.training for module in model.modules()] == modes
    assert not frozen.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_counting_works_in_any_precision(tiny: Tiny, x: Tensor) -> None:
    double = tiny("vit")
    measured = cost(double, 32)
    assert measured == cost(double.float(), 32)
