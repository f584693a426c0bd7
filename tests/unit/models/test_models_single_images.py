"""The gradient of an image does not depend on its batch, also when it is alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitadel.models import Model, load

Tiny = Callable[..., Model]


def gradient(model: Model, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    z_BK = model(x)
    (grad,) = torch.autograd.grad((z_BK * torch.linspace(-1, 1, z_BK.shape[1], dtype=z_BK.dtype)).sum(), x)
    return grad


def agree(model: Model, size: int) -> None:
    x = torch.rand(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    together, alone = gradient(model, x)[:1], gradient(model, x[:1])
    assert float(together.abs().max()) > 0
    torch.testing.assert_close(alone, together, rtol=1e-7, atol=1e-9 * float(together.abs().max()))


@pytest.mark.parametrize("family", ["vit", "deit", "distilled", "cait", "xcit", "swin", "levit"])
def test_transformers_on_single_images(tiny: Tiny, family: str) -> None:
    agree(tiny(family), 32)


@pytest.mark.parametrize("name", ["timm:resnet10t", "timm:test_efficientnet"])
def test_convolutional_networks_on_single_images(noisy_weights: Callable[[Model, int], Model], name: str) -> None:
    agree(noisy_weights(load(name, num_classes=5).double(), 32), 32)


def test_a_network_wrapped_twice_is_prepared_once(tiny: Tiny) -> None:
    net = tiny("xcit").net
    hooks = [len(module._forward_hooks) for module in net.modules()]
    Model(net, tiny("xcit").normalization)
    assert [len(module._forward_hooks) for module in net.modules()] == hooks
    assert max(hooks) == 1
