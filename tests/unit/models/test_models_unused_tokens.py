"""Leaving out tokens the head never reads: the same logits and gradients at a lower cost."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitadel import models
from vitadel.models import family_of

_WIDTH, _HIDDEN, _TOKENS = 32, 128, 17


def vit(**more: str | float) -> nn.Module:
    options = {"depth": 3, "embed_dim": _WIDTH, "num_heads": 2, **more}
    net = models.load("timm:vit_tiny_patch16_224", image_size=32, patch_size=8, num_classes=5, options=options).net
    return net.double().eval()


def without_unused_tokens(net: nn.Module) -> nn.Module:
    other = copy.deepcopy(net)
    family_of(other).prune_unused_tokens(other)
    return other


def logits_and_gradient(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    z = net(x)
    (gradient,) = torch.autograd.grad(z.square().sum(), x)
    return z.detach(), gradient


@pytest.mark.parametrize("options", [{}, {"init_values": 0.1}, {"global_pool": "avg"}, {"reg_tokens": 2}], ids=str)
def test_logits_and_gradients_are_unchanged(options: dict[str, str | float]) -> None:
    net = vit(**options)
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for one, other in zip(logits_and_gradient(net, x), logits_and_gradient(without_unused_tokens(net), x), strict=True):
        assert float(one.abs().max()) > 1e-5
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-15)


def test_the_last_block_computes_one_token() -> None:
    net, x = vit(), torch.rand(1, 3, 32, 32, dtype=torch.float64)
    each_token = 2 * (_WIDTH * _WIDTH + 2 * _WIDTH * _HIDDEN)  # the projection after the attention, and the MLP
    assert flops(net, x) - flops(without_unused_tokens(net), x) == (_TOKENS - 1) * each_token


@pytest.mark.parametrize(
    "name", ["xcit_nano_12_p16_224", "swin_tiny_patch4_window7_224", "deit_tiny_distilled_patch16_224"]
)
def test_families_that_read_more_tokens_are_unchanged(name: str) -> None:
    net = models.load(f"timm:{name}", image_size=224, num_classes=5).net.eval()
    x = torch.rand(1, 3, 224, 224)
    assert flops(net, x) == flops(without_unused_tokens(net), x)


def flops(net: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(x)
    return int(counter.get_total_flops())
