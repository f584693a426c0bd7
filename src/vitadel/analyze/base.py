"""What a study is, and the one function that runs any of them.

A study is a frozen dataclass of settings. `run` measures: what is per image through `Context.map` or `Context.stream`,
sums over images through `map_chunks`, the rest through `Context.compute_once`. So its images are shared by the
processes of a launch, and an interrupted study resumes. `summarize` turns the tables and parts into a `StudyRecord`.
CONTRIBUTING.md shows a study from beginning to end.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitadel.attacks import Engine
from vitadel.core.distributed import Ranks
from vitadel.core.files import write_json
from vitadel.core.numeric import check_ranges
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data import refuse_empty
from vitadel.evaluate.context import Context, without_caller_modes
from vitadel.evaluate.images import TensorImages
from vitadel.evaluate.store import Row, TableRows
from vitadel.runs import describe
from vitadel.runs.schema import StudyRecord, ThreatRecord
from vitadel.runs.typed_json import to_json
from vitadel.threats import Threat, as_threat


@runtime_checkable
class Study(Protocol):
    """Settings that know how to measure and how to sum up.

    Example:
        >>> ctx = tensor_context(model, x, y)  # with results in memory
        >>> record = run_study(Lesion(draws=1), ctx)
        >>> record.title
        'Lesions'
        >>> [table.title for table in record.tables]
        ['One removed, in numbers']
    """

    title: ClassVar[str]
    about: ClassVar[str]
    needs_threat: ClassVar[bool]

    def refuse(self, model: nn.Module) -> None:
        """Raise if this model cannot be studied; called before anything is written."""

    def run(self, ctx: Context) -> None:
        """Fill the tables and parts; called in every process, each of which has its share of the images."""

    def summarize(self, ctx: Context) -> StudyRecord:
        """The result, from tables and parts; called in one process. `run_study` adds settings, threat and seconds."""


def run_study(study: Study, ctx: Context) -> StudyRecord:
    """Run a study and keep its result; what the context's store has already is not computed again.

    Args:
        study: The study; the caller has called its `refuse`.
        ctx: The model, the images and the store. One in a folder gets the result as `result.json`.

    Returns:
        The record, in every process. Its numbers hold `settings`, `seconds` and, if the study attacks, `threat`.

    Raises:
        UsageError: If there are no images, or no threat for a study that needs one.
    """
    refuse_empty(ctx.images, "the set of images", "study")
    with without_caller_modes(ctx.model):
        if study.needs_threat:
            _ = ctx.required_threat  # refuses a context without one
        study.run(ctx)
        ctx.ranks.barrier()
        return ctx.ranks.broadcast_from_first(lambda: _summarized(study, ctx))


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
    """Any study of a model on images in memory, and its result as JSON values.

    Args:
        model: The model, on pixels in [0, 1].
        x: [n, 3, H, W] in [0, 1].
        y: [n] class numbers.
        settings: The study.
        threat: The threat model of a study that attacks.
        seed: Seeds all random numbers.
        batch_size: Images at a time; no number depends on it.
        progress: Called with how far the work is.

    Returns:
        The record: `summary`, `exhibits` and the numbers of the study, as in `study/result.json` of a run.

    Raises:
        UsageError: If the model cannot be studied so, or images and labels do not fit.

    Example:
        >>> study(model, x, y, Saliency(steps=20), threat="linf:4/255")["summary"]
    """
    check_ranges(settings)
    settings.refuse(model)
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
    """The context of a study of images in memory, with its results in memory."""
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
    """As `Context.map` for what is summed over images: a row of `table` for every `size` images, keyed by its number.

    Args:
        ctx: The context.
        table: The name of the table.
        work: Takes the indices of at most `size` images and returns the columns of their row.
        size: Images per row. Sums of rows depend on it as floating-point sums do, so it is not a matter of memory:
            `work` halves by `core.oom` what does not fit.
        index: The images, all if not given.
    """
    parts = (torch.arange(len(ctx.images)) if index is None else index).split(size)

    def rows(missing: list[int]) -> Iterator[tuple[int, Row]]:
        for number in missing:
            started = time.perf_counter()
            columns = dict(work(parts[number]))
            yield number, {"seconds": time.perf_counter() - started, **columns}

    ctx.stream(table, rows, index=range(len(parts)))


def _summarized(study: Study, ctx: Context) -> StudyRecord:
    """The record, made by this process alone."""
    timed = _Timed.of(ctx)
    record = study.summarize(timed)
    common: dict[str, object] = {"seconds": sum(timed.seconds.values())}
    if "settings" not in record.numbers:
        common["settings"] = describe(study)
    if study.needs_threat:
        threat = ctx.required_threat
        common["threat"] = to_json(ThreatRecord.of(str(threat), threat.eps))
    record = replace(record, numbers={**common, **record.numbers})
    if ctx.store.folder is not None:
        write_json(ctx.store.folder / "result.json", record.to_json())
    return record


@dataclass(frozen=True, eq=False)
class _Timed(Context):
    """A context of one process that notes how long it took to compute what is read from it."""

    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ctx: Context) -> "_Timed":
        return cls(**{**{one.name: getattr(ctx, one.name) for one in fields(ctx)}, "ranks": Ranks()})

    def table(self, name: str) -> TableRows:
        rows = super().table(name)
        self.seconds[f"table {name}"] = sum(rows["seconds"]) if "seconds" in rows else 0.0
        return rows

    def compute_once(self, name: str, make: Callable[[], Mapping[str, object]]) -> dict[str, Any]:
        part = super().compute_once(name, make)
        self.seconds[f"part {name}"] = part["seconds"]
        return part
