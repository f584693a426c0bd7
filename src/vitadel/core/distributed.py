"""Images shared out over the processes of a launch by torchrun or `accelerate launch`.

Torch is imported when it is needed: reports read run folders without it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Agreed = TypeVar("Agreed")


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which process this is, of how many. They share a run folder and otherwise do not talk."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_launch(cls) -> "Ranks":
        """What the launcher says; alone without one."""
        from torch import distributed

        ranks = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if ranks.world > 1 and not distributed.is_initialized():
            # the first to come waits for the last, however many more images fell to its share
            distributed.init_process_group("gloo", timeout=timedelta(days=30))
        return ranks

    def share(self, rows: list[int]) -> list[int]:
        """This process's part of the rows; neighbors go to different processes."""
        return [row for row in rows if row % self.world == self.rank]

    def agree(self, make: Callable[[], Agreed]) -> Agreed:
        """What the first process makes, in all of them."""
        from torch import distributed

        made: list[Agreed | None] = [make() if self.rank == 0 else None]
        if self.world > 1:
            distributed.broadcast_object_list(made)
        return made[0]  # type: ignore[return-value]

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            from torch import distributed

            distributed.barrier()


def best_device() -> "torch.device":
    """The GPU of this process, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
