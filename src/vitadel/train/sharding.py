"""Weights cut into parts, one per process (torch's FSDP2), and made whole again for files."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device) -> None:
    """Cut the weights of every block, then what is left: a process gathers one block at a time while it computes."""
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What a network repeats: the members of its lists, outermost ones only."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from _blocks(child)


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors uncut; all processes have to ask together."""
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def all_finite(net: nn.Module) -> bool:
    """Whether every weight that this process holds is a number."""
    held = [one.to_local() if isinstance(one, DTensor) else one for one in net.parameters()]
    return bool(torch.stack([one.detach().isfinite().all() for one in held]).all())


def cut_like(value: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, if `like` is cut."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


@torch.no_grad()
def fill(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a network that may be cut."""
    net.load_state_dict({name: cut_like(tensors[name], own) for name, own in net.state_dict().items()})
