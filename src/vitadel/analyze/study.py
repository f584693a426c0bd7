"""What a study is, and how its parts outlive a kill.

A study is a frozen dataclass of settings. It asks for its parts one by one; a part that is known is read, another is
made and written at once: `study/parts/NAME.json` in the run folder, and the whole in `study/result.json`.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.core.device import refuse_meta
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.core.numeric import Count, Seed, check_ranges
from vitadel.core.progress import Notify, silent
from vitadel.runs import Run
from vitadel.threats import Threat

Made = TypeVar("Made")


class Images(Protocol):
    """Pixels in [0, 1] and labels by row: a split, or tensors in hand."""

    @property
    def labels(self) -> Tensor:
        """The class of every image."""

    def __len__(self) -> int: ...

    def images(self, rows: Tensor) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU or where the caller has them."""


class Study(Protocol):
    """Settings that know how to be carried out; one that needs no threat is given one and does not look at it."""

    about: ClassVar[str]
    needs_threat: ClassVar[bool]

    def refuse(self, model: nn.Module) -> None:
        """Raise if this model cannot be studied; called before anything is written."""

    def carry_out(self, bench: "Bench") -> dict[str, object]:
        """Everything found out, as plain JSON; no number depends on `batch`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The finished parts of a study, kept in `folder`, or only in memory."""

    folder: Path | None = None
    _held: dict[str, dict[str, object]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> "Parts":
        return cls(run.folder / "study")

    def once(self, name: str, make: Callable[[], Mapping[str, object]]) -> dict[str, object]:
        """The part called `name`: as it was found when it was made, with the seconds that took."""
        path = self.folder / "parts" / f"{name}.json" if self.folder else None
        if name not in self._held and path is not None and path.exists():
            self._held[name] = _read_part(path)
        if name in self._held:
            return self._held[name]
        started = time.perf_counter()
        made = {**make(), "seconds": time.perf_counter() - started}
        if path is not None:
            write_json(path, made)
        # as it would be read again, so that a resumed study goes on with the very same values
        found: dict[str, object] = json.loads(json.dumps(made))
        self._held[name] = found
        return found

    @property
    def seconds(self) -> float:
        """What the parts asked for took, whenever they were made."""
        return sum(float(str(part["seconds"])) for part in self._held.values())

    def close(self, result: Mapping[str, object]) -> None:
        if self.folder is not None:
            write_json(self.folder / "result.json", result)


def _read_part(path: Path) -> dict[str, object]:
    part = read_json(path)
    if not isinstance(part.get("seconds"), int | float):
        raise UsageError(f"{path} is no part of a study. Delete it and run the same command again.")
    return part


@dataclass(frozen=True, slots=True)
class Bench:
    """What a study has before it: the model, the images, what is known already, and how to go about it."""

    model: nn.Module
    images: Images
    parts: Parts
    threat: Threat
    seed: Seed = 0
    batch: Count | None = None
    notify: Notify = silent

    def __post_init__(self) -> None:
        check_ranges(self)


class InHand:
    """Tensors as a caller has them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if x.ndim != 4 or not x.is_floating_point() or len(x) == 0:
            raise UsageError(f"images must be floats [n, channels, rows, columns], got {x.dtype} of {list(x.shape)}.")
        if y.ndim != 1 or len(y) != len(x) or y.is_floating_point():
            raise UsageError(f"got {len(x)} images and labels {y.dtype} of {list(y.shape)}. Give a number per image.")
        if x.is_meta or y.is_meta:
            raise UsageError("images and labels on the meta device have no values. Make them outside of it.")
        if not (float(x.min()) >= 0 and float(x.max()) <= 1):
            raise UsageError(
                f"pixels must lie in [0, 1], got [{float(x.min()):.3g}, {float(x.max()):.3g}]. "
                "Normalization belongs inside the model: vitadel.models.wrap(net, mean=..., std=...)."
            )
        self._x, self.labels = x.detach().clone(), y.detach().cpu().long().clone()

    def __len__(self) -> int:
        return len(self._x)

    def images(self, rows: Tensor) -> Tensor:
        return self._x[rows.to(self._x.device)].float()


def study(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Study,
    *,
    threat: Threat | str = "linf:8/255",
    seed: int = 0,
    batch: int | None = None,
    notify: Notify = silent,
) -> dict[str, object]:
    """Any study of `model` on the images `x` with labels `y`: `study(model, x, y, TORAGates())`."""
    settings.refuse(model)
    radius = threats.as_threat(threat)
    with as_it_is(model):
        return settings.carry_out(Bench(model, InHand(x, y), Parts(), radius, seed, batch, notify))


@contextmanager
def as_it_is(model: nn.Module) -> Iterator[None]:
    """Neither a caller's inference mode nor mixed precision reaches what is computed inside."""
    with torch.inference_mode(False), torch.autocast(device_of(model).type, enabled=False):
        yield


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives; one without weights works anywhere."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        refuse_meta(model)
    return device


def in_batches(rows: Tensor, size: int, work: Callable[[Tensor], Made]) -> Iterator[tuple[Tensor, Made]]:
    """What `work` makes of some rows at a time; rows that do not fit into memory are cut in two."""
    for part in rows.split(size):
        yield from _fitting(part, work)


def _fitting(rows: Tensor, work: Callable[[Tensor], Made]) -> Iterator[tuple[Tensor, Made]]:
    try:
        made = work(rows)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise UsageError("out of memory with a single image. Use a smaller model or another device.") from None
    else:
        yield rows, made
        return
    torch.cuda.empty_cache()
    for half in rows.split((len(rows) + 1) // 2):
        yield from _fitting(half, work)
