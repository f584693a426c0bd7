"""Buffers of a model are restored, by whoever saves them."""

import pytest
import torch
from torch import Tensor, nn

from vitadel.core.buffers import MOST_BYTES, SavedBuffers, restored_buffers


class Counting(nn.Module):
    """A network whose forward pass changes a small buffer, and a large one, and replaces a third."""

    small: Tensor
    large: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("small", torch.zeros(3))
        self.register_buffer("large", torch.zeros(MOST_BYTES // 4 + 1))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.small += 1
        self.large += 1
        self.replaced = self.replaced + 1
        return self.norm(x)


def copies(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.named_buffers() if name != "sparse"}


def unchanged(net: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in copies(net).items())


def test_all_buffers_are_restored_also_after_an_error() -> None:
    net, x = Counting(), torch.rand(4, 3)
    before = copies(net)
    with restored_buffers(net):
        net(x)
    assert unchanged(net, before)
    net.norm = nn.BatchNorm1d(5)  # which refuses three features, after the other buffers have changed
    before = copies(net)
    with pytest.raises(RuntimeError), restored_buffers(net):
        net(x)
    assert unchanged(net, before)


def test_large_buffers_are_not_copied_by_default() -> None:
    net = Counting()
    saved = SavedBuffers.of(net)
    net(torch.rand(4, 3))
    assert "Counting.small" in saved.changed()
    assert "Counting.large" not in saved.changed()
    saved.restore()
    assert net.small.sum() == 0
    assert net.large[0] == 1
