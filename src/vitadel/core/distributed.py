"""The processes of one launch: rank and number, how they distribute images, and where they wait for each other.

Launched by `torchrun`, `accelerate launch`, `srun` or `mpirun`. Torch is imported when it is needed: reports read run
folders without it.
"""

import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

from vitadel.core.errors import UsageError, short_reason

if TYPE_CHECKING:
    import torch

Agreed = TypeVar("Agreed")

# processes that met wait this long for each other: the last one may have many more images
_LONGEST_WAIT = timedelta(days=30)

# what other launchers call torchrun's RANK, WORLD_SIZE and LOCAL_RANK. `srun` sets the first row; a batch script
# outside of `srun` has the second row only, and is one process
_LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
# the first node of a list such as `gpu[03-05,7],login`
_FIRST_NODE = re.compile(r"([^\[,]*)(?:\[([0-9]+)[^\]]*\])?([^,]*)")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process and the number of processes."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_launch(cls, *, patience: timedelta = timedelta(minutes=10)) -> "Ranks":
        """The rank that the launcher gave this process; a single process without a launcher.

        Args:
            patience: How long the processes of a launch look for each other.

        Raises:
            UsageError: If they do not find each other, as with another `MASTER_PORT` in each of them.
        """
        from torch import distributed

        set_launch_environment()
        ranks = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if ranks.world_size > 1 and not distributed.is_initialized():
            ranks._join(patience)
        return ranks

    def _join(self, patience: timedelta) -> None:
        """Connect to the other processes of the launch, which all start at about the same time."""
        from torch import distributed
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        try:
            store, _, _ = next(rendezvous("env://", self.rank, self.world_size, timeout=patience))
        except (distributed.DistError, ValueError) as error:
            address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
            raise UsageError(
                f"process {self.rank} of {self.world_size} did not meet the others at {address}:{port} within "
                f"{patience.total_seconds():.0f} s ({short_reason(error)}). "
                "Export MASTER_ADDR and MASTER_PORT (a free port), the same for all processes."
            ) from error
        store.set_timeout(_LONGEST_WAIT)
        distributed.init_process_group(
            "gloo",
            store=PrefixStore("vitadel", store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=_LONGEST_WAIT,
        )

    @classmethod
    def current(cls) -> "Ranks":
        """The rank in the process group, if there is one; a single process otherwise."""
        from torch import distributed

        if not distributed.is_initialized():
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size())

    def local_part(self, index: list[int]) -> list[int]:
        """The indices that this process works on; neighbors go to different processes."""
        return [one for one in index if one % self.world_size == self.rank]

    def gather(self, value: "torch.Tensor") -> "torch.Tensor":
        """The tensors of all processes, stacked; all of them have to call this."""
        import torch

        if self.world_size == 1:
            return value[None]
        values = [torch.empty_like(value) for _ in range(self.world_size)]
        torch.distributed.all_gather(values, value.contiguous())
        return torch.stack(values)

    def mean(self, value: "torch.Tensor") -> "torch.Tensor":
        """The mean of the tensors of all processes, which may overwrite `value`; all of them have to call this."""
        import torch

        if self.world_size == 1:
            return value
        value = value.contiguous()
        torch.distributed.all_reduce(value)
        return value / self.world_size

    def broadcast_from_first(self, make: Callable[[], Agreed]) -> Agreed:
        """What `make` returns in the first process, in all processes; the others do not call it."""
        from torch import distributed

        made: list[Agreed | None] = [make() if self.rank == 0 else None]
        if self.world_size > 1:
            distributed.broadcast_object_list(made)
        return made[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            from torch import distributed

            distributed.barrier()


def set_launch_environment() -> None:
    """Set the variables that torchrun sets in a process of `srun` or `mpirun`; torch and accelerate read them.

    These are `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`; variables that are set already stay.

    Raises:
        UsageError: The node of the first process is unknown.
    """
    environment = os.environ
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return
    for rank, world_size, local in _LAUNCHERS:
        in_batch_script = world_size == "SLURM_NTASKS" and "SLURM_JOB_ID" in environment
        if rank in environment and world_size in environment and not in_batch_script:
            if (size := _number(world_size)) > 1:
                first = {"MASTER_ADDR": _address(environment), "MASTER_PORT": str(_port(environment))}
                own = {"RANK": str(_number(rank)), "WORLD_SIZE": str(size), "LOCAL_RANK": environment.get(local, "0")}
                environment.update({name: environment.get(name, value) for name, value in first.items()} | own)
            return


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise UsageError(f"{name} should be a number, got {text!r}. It is set by the launcher; unset it without one.")
    return int(text)


def _address(environment: Mapping[str, str]) -> str:
    """The node of the first process."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST")
    if "SLURM_PROCID" in environment and nodes:
        first = _FIRST_NODE.match(nodes)
        assert first is not None, "it matches any text"
        several = any(sign in nodes for sign in ",[")
        return "".join(part or "" for part in first.groups()) if several else "127.0.0.1"
    local = next(
        (environment[name] for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS") if name in environment), None
    )
    size = next((environment[name] for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in environment), None)
    if local is not None and size is not None and local != size:
        _raise_unknown_node()
    return "127.0.0.1"


def _raise_unknown_node() -> NoReturn:
    raise UsageError(
        "the processes run on several nodes and the address of the first one is unknown. "
        "Export MASTER_ADDR with the name of its node."
    )


def _port(environment: Mapping[str, str]) -> int:
    """A port that all processes of this launch compute, and that usually differs from that of any other launch.

    A launcher that sets no number of its job, such as MPICH's, is recognized by its process. Of a process that a script
    starts for every rank, that is the script, and the ranks do not meet: `MASTER_PORT` is needed then.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID")
    launch = [environment[name] for name in names if name in environment] or [str(os.getppid())]
    return 20000 + zlib.crc32("/".join(launch).encode()) % 20000


def is_first_process() -> bool:
    """Whether this is the first of the processes that a launcher started, the only one that prints."""
    return os.environ.get("RANK", "0") == "0"


def best_device() -> "torch.device":
    """The GPU of this process, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
