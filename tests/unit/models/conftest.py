"""Small models of every family, and an image for them."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitadel.models import Model, Option, load

# name and geometry: eight tokens a side for Swin's shifted windows, four elsewhere
TINY: dict[str, tuple[str, int, dict[str, Option]]] = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "deit": ("timm:deit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "distilled": ("timm:deit_tiny_distilled_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "levit": ("timm:levit_128s", 8, {"stem_type": "s8", "num_heads": 2}),
}


@pytest.fixture(scope="session")
def _built() -> dict[str, Model]:
    return {}


@pytest.fixture
def tiny(_built: dict[str, Model]) -> Callable[..., Model]:
    """`tiny(name, fused=None)`: a float64 model of that family whose every weight matters."""

    def make(name: str, *, fused: bool | None = None) -> Model:
        if name not in _built:
            arch, patch, options = TINY[name]
            _built[name] = load(arch, num_classes=5, image_size=32, patch_size=patch, options=options).double()
            _add_noise(_built[name])
            if name == "levit":
                _update_statistics(_built[name], image_size=32)
        model = copy.deepcopy(_built[name])
        for module in model.modules():
            if fused is not None and hasattr(module, "fused_attn"):
                module.fused_attn = fused  # type: ignore[assignment]
        return model

    return make


@pytest.fixture
def noisy_weights() -> Callable[[Model, int], Model]:
    """`stirred(model, image_size)`: a model with BatchNorm, whose every weight now matters."""

    def make(model: Model, image_size: int) -> Model:
        _add_noise(model)
        _update_statistics(model, image_size)
        return model

    return make


@pytest.fixture
def x() -> Tensor:
    return torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _add_noise(model: Model) -> None:
    """Initial weights make attention uniform and layer scales zero: a wrong tap would hardly show."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=rng))


def _update_statistics(model: Model, image_size: int) -> None:
    """Where BatchNorm is all that keeps the stream small, stirred weights need its statistics."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        rng = torch.Generator().manual_seed(5)
        model.train()(torch.rand(16, 3, image_size, image_size, dtype=torch.float64, generator=rng))
    for norm in norms:
        norm.momentum = 0.1
    model.eval()
