"""The processes of a training: their launch, weights sharded over them (torch's FSDP2), and the signal to stop."""

import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, convert_outputs_to_fp32, parse_flag_from_env
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from vitadel.core.distributed import Ranks, set_launch_environment
from vitadel.models import Model

# what `accelerate` leaves on a model that it has prepared
_PREPARED = ("forward", "_is_accelerate_prepared")


def launch_ranks() -> Ranks:
    """The processes of this launch, in the process group that accelerate sets up for training."""
    set_launch_environment()
    process_state()
    return Ranks.of_launch()


def process_state() -> PartialState:
    """accelerate's process group; without a GPU, `cpu` must be set, or every process would run on its own."""
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu)


def make_accelerator(*, bf16: bool, find_unused_parameters: bool) -> Accelerator:
    """An accelerator of this precision, independent of earlier trainings in this process."""
    # accelerate keeps the first precision of a process and refuses any other
    AcceleratorState._reset_state()
    # an objective may make two forward passes before its backward pass; a broadcast in between would modify the buffers
    options = DistributedDataParallelKwargs(broadcast_buffers=False, find_unused_parameters=find_unused_parameters)
    return Accelerator(mixed_precision="bf16" if bf16 else "no", kwargs_handlers=[options])


def prepare(
    accelerator: Accelerator, model: Model, optimizer: Optimizer, *, shard: bool
) -> tuple[nn.Module, Optimizer]:
    """The model in its distributed wrapper, with autocast for updates only, and the optimizer.

    accelerate adds autocast to the forward pass of the model itself, where it would apply to validation and attention
    scaling, too; it is removed here. The conversion of logits to float32 is kept.
    """
    if shard:  # sharded already: no second wrapper around it
        return model, accelerator.prepare(optimizer)
    with warnings.catch_warnings():  # accelerate uses the former name of the setting
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped, optimizer = accelerator.prepare(model, optimizer)
    plain = model.__dict__.pop("_original_forward", None)
    if plain is not None:
        model.forward = convert_outputs_to_fp32(plain)  # type: ignore[method-assign]
    return wrapped, optimizer


def undo_prepare(model: Model) -> None:
    """Remove what `prepare` left on the model."""
    for name in _PREPARED:
        model.__dict__.pop(name, None)


def any_process(accelerator: Accelerator, mine: bool) -> bool:
    """Whether `mine` is true in any process; all of them have to call this."""
    flag = torch.tensor(float(mine), device=accelerator.device)
    return bool(accelerator.reduce(flag, "sum") > 0)


class StopSignal:
    """Whether SIGTERM has arrived; training then stops after the current update, with a checkpoint."""

    def __init__(self) -> None:
        self.requested = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.requested = True


@contextmanager
def stop_on_sigterm() -> Iterator[StopSignal]:
    """A signal that SIGTERM sets; the former handler is restored. Outside of the main thread it is never set."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop.handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the weights of every block, then all others: a process gathers one block at a time while it computes."""
    # a second of imports that only sharded training needs
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a network: the members of its outermost lists of modules."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from _blocks(child)


def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors unsharded; all processes have to call this."""
    from torch.distributed.tensor import DTensor

    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def all_finite(net: nn.Module) -> bool:
    """Whether every weight of this process is finite."""
    from torch.distributed.tensor import DTensor

    local = [one.to_local() if isinstance(one, DTensor) else one for one in net.parameters()]
    return bool(torch.stack([one.detach().isfinite().all() for one in local]).all())


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a full tensor, if `like` is sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


@torch.no_grad()
def load_full_tensors(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load full tensors into a network that may be sharded."""
    net.load_state_dict({name: shard_like(tensors[name], own) for name, own in net.state_dict().items()})
