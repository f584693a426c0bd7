"""The protocol of studies, and the functions that run any study.

A study is a frozen dataclass of settings. `run` measures: values per image with `Context.map` or `Context.stream`, sums
over images with `map_chunks`, everything else with `Context.compute_once`. The images are thereby distributed over the
processes of a launch, and an interrupted study resumes. `summarize` turns the results into a `StudyRecord`.
CONTRIBUTING.md contains a complete example.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitadel.attacks import Engine
from vitadel.attacks.oracle import in_own_precision
from vitadel.core.distributed import Ranks
from vitadel.core.files import write_json
from vitadel.core.numeric import check_ranges
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data import check_not_empty
from vitadel.evaluate.context import Context, without_caller_modes
from vitadel.evaluate.images import TensorImages
from vitadel.evaluate.store import Row, TableRows, has_rows, summarizing
from vitadel.runs import describe
from vitadel.runs.schema import StudyRecord, ThreatRecord
from vitadel.runs.typed_json import to_json
from vitadel.threats import Threat, as_threat


@runtime_checkable
class Study(Protocol):
    """Settings of a study, with methods to run it and to summarize its results.

    Example:
        >>> ctx = tensor_context(model, x, y)  # with results in memory
        >>> record = run_study(Lesion(draws=1), ctx)
        >>> record.title
        'Lesions'
        >>> [table.title for table in record.tables]
        ['Single removals (table)']
    """

    title: ClassVar[str]
    about: ClassVar[str]
    needs_threat: ClassVar[bool]

    def check(self, model: nn.Module) -> None:
        """Raise a UsageError if this model cannot be studied; called before anything is written."""

    def run(self, ctx: Context) -> None:
        """Fill the tables; called in every process, each of which computes its part of the images."""

    def summarize(self, ctx: Context) -> StudyRecord:
        """The record, from full tables; called in one process. `run_study` adds settings, threat and seconds."""


def run_study(study: Study, ctx: Context) -> StudyRecord:
    """Run a study; stored results are not computed again.

    Args:
        study: The study; the caller has called its `check`.
        ctx: The model, the images and the store. If the store has a folder, the record is written to `result.json`.

    Returns:
        The record, in every process. Its numbers hold `settings`, `seconds` and, if the study attacks, `threat`.

    Raises:
        UsageError: If there are no images, or no threat for a study that needs one.
    """
    check_not_empty(ctx.images, "the set of images", "study")
    with without_caller_modes(ctx.model), _rounding_pixels(ctx.model):
        if study.needs_threat:
            _ = ctx.required_threat  # raises if there is none
        resumed = has_rows(ctx.store)
        study.run(ctx)
        ctx.ranks.barrier()
        return ctx.ranks.broadcast_from_first(lambda: _summarized(study, ctx, resumed=resumed))


@contextmanager
def _rounding_pixels(model: nn.Module) -> Iterator[None]:
    """Context manager: a model in half precision takes pixels in float32, as in `evaluate`."""
    handle = model.register_forward_pre_hook(lambda model, args: (in_own_precision(model, args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def study(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Study,
    *,
    threat: Threat | str = "linf:8/255",
    seed: int = 0,
    batch_size: int | None = None,
    progress: ProgressCallback = silent,
) -> dict[str, object]:
    """Run a study of a model on images in memory.

    Args:
        model: The model, on pixels in [0, 1].
        x: [n, 3, H, W] in [0, 1].
        y: [n] class numbers.
        settings: The study.
        threat: The threat model of a study that attacks.
        seed: Seeds all random numbers.
        batch_size: Batch size; does not affect results.
        progress: Called with the progress.

    Returns:
        The record as JSON values: `summary`, `exhibits` and the numbers of the study, as in `study/result.json`.

    Raises:
        UsageError: If the model cannot be studied so, or images and labels do not fit.

    Example:
        >>> study(model, x, y, Saliency(steps=20), threat="linf:4/255")["summary"]
    """
    check_ranges(settings)
    settings.check(model)
    ctx = tensor_context(model, x, y, threat, seed=seed, batch_size=batch_size, progress=progress)
    return run_study(settings, ctx).to_json()


def tensor_context(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str = "linf:8/255",
    *,
    seed: int = 0,
    batch_size: int | None = None,
    progress: ProgressCallback = silent,
) -> Context:
    """The context of a study in memory, which keeps its results in a `MemoryStore`.

    Args:
        model: Any module that takes pixels in [0, 1].
        x: [B, 3, H, W] the images.
        y: [B] their labels.
        threat: The threat model of studies that attack.
        seed: Seeds all random numbers.
        batch_size: Images per batch; by default what the engine chooses for the device.
        progress: Called with the progress.
    """
    engine = Engine(batch_size=batch_size, precision="float32")
    return Context(model, TensorImages(x, y), threat=as_threat(threat), seed=seed, engine=engine, progress=progress)


def map_chunks(
    ctx: Context,
    table: str,
    work: Callable[[Tensor], Mapping[str, object]],
    *,
    size: int = 64,
    index: Tensor | None = None,
) -> None:
    """As `Context.map` for sums over images: the table has one row per chunk of `size` images.

    Args:
        ctx: The context.
        table: The name of the table.
        work: Takes the indices of at most `size` images and returns the columns of their row.
        size: Images per row. Floating-point sums depend on it, so it is fixed; `work` splits a chunk that does not fit
            into memory with `core.oom`.
        index: The images, all if not given.
    """
    parts = (torch.arange(len(ctx.images)) if index is None else index).split(size)

    def rows(missing: list[int]) -> Iterator[tuple[int, Row]]:
        for number in missing:
            started = time.perf_counter()
            columns = dict(work(parts[number]))
            yield number, {"seconds": time.perf_counter() - started, **columns}

    ctx.stream(table, rows, index=range(len(parts)))


def _summarized(study: Study, ctx: Context, *, resumed: bool) -> StudyRecord:
    """The record; computed by this process only."""
    timed = _TimedContext.of(ctx)
    with summarizing(ctx.store, resumed=resumed):
        record = study.summarize(timed)
    common: dict[str, object] = {"seconds": sum(timed.seconds.values())}
    if "settings" not in record.numbers:
        common["settings"] = describe(study)
    if study.needs_threat:
        threat = ctx.required_threat
        common["threat"] = to_json(ThreatRecord.of(str(threat), threat.eps, threat.eps_unit))
    record = replace(record, numbers={**common, **record.numbers})
    if ctx.store.folder is not None:
        write_json(ctx.store.folder / "result.json", record.to_json())
    return record


@dataclass(frozen=True, eq=False)
class _TimedContext(Context):
    """A context of one process that records the time spent on each table and value that it reads."""

    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ctx: Context) -> "_TimedContext":
        return cls(**{**{one.name: getattr(ctx, one.name) for one in fields(ctx)}, "ranks": Ranks()})

    def table(self, name: str) -> TableRows:
        rows = super().table(name)
        self.seconds[f"table {name}"] = sum(rows["seconds"]) if "seconds" in rows else 0.0
        return rows

    def compute_once(self, name: str, make: Callable[[], Mapping[str, object]]) -> dict[str, Any]:
        part = super().compute_once(name, make)
        self.seconds[f"part {name}"] = part["seconds"]
        return part
