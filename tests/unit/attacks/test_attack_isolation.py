"""A model inside `frozen` is in evaluation mode without weight gradients; outside it is unchanged."""

import pytest
import torch
from torch import nn

from vitadel.attacks.isolation import eval_without_weight_gradients


def half_frozen() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    net[1].eval()
    net[0].weight.requires_grad_(False)
    return net


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


def flags(net: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in net.parameters()]


def test_modes_and_flags_are_restored_per_module() -> None:
    net = half_frozen()
    before = modes(net), flags(net)
    with eval_without_weight_gradients(net):
        assert not any(modes(net))
        assert not any(flags(net))
    assert (modes(net), flags(net)) == before
    assert before == ([True, True, False, True, True, True], [False, True, True, True, True, True])


def test_modes_and_flags_are_restored_after_an_error() -> None:
    net = half_frozen()
    before = modes(net), flags(net)
    with pytest.raises(RuntimeError, match="mid-way"), eval_without_weight_gradients(net):
        raise RuntimeError("mid-way")
    assert (modes(net), flags(net)) == before


def test_modes_changed_inside_are_restored() -> None:
    net = half_frozen()
    before = modes(net)
    with eval_without_weight_gradients(net):
        net.train()
    assert modes(net) == before


def test_freezing_can_be_nested() -> None:
    net = half_frozen()
    before = modes(net), flags(net)
    with eval_without_weight_gradients(net):
        with eval_without_weight_gradients(net):
            pass
        assert not any(modes(net))
        assert not any(flags(net))
    assert (modes(net), flags(net)) == before


def test_a_plain_function_is_left_alone() -> None:
    with eval_without_weight_gradients(torch.sum):
        assert torch.sum(torch.ones(3)) == 3
