"""What a study is, and the one function that runs any of them.

A study is a frozen dataclass of settings. `run` measures: what is per image through `Context.map` or `Context.stream`,
sums over images through `map_chunks`, the rest through `Context.once`. So its images are shared by the processes of a
launch, and an interrupted study resumes. `summarize` turns the tables and parts into a `StudyRecord`:

    @dataclass(frozen=True)
    class Confidence:
        title: ClassVar[str] = "Confidence"
        about: ClassVar[str] = "how sure is the model of what it predicts?"
        needs_threat: ClassVar[bool] = False

        def refuse(self, model: nn.Module) -> None: ...

        def run(self, ctx: Context) -> None:
            ctx.map("clean", lambda batch: {"confidence": ctx.logits(batch.x).softmax(1).amax(1)})

        def summarize(self, ctx: Context) -> StudyRecord:
            mean = statistics.fmean(ctx.table("clean")["confidence"])
            table = Table("Confidence", "Mean largest probability.", ["mean"], [[mean]])
            return StudyRecord("confidence", self.title, f"It is {mean:.1%} sure.", [table], {"mean": mean})
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.attacks import Engine
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.core.numeric import Count, Seed, check_ranges
from vitadel.core.progress import Notify, silent
from vitadel.evaluate.context import Context, callers_modes_off
from vitadel.evaluate.images import TensorImages
from vitadel.evaluate.store import Row, TableRows
from vitadel.runs import Run, describe
from vitadel.runs.schema import StudyRecord
from vitadel.threats import Threat, spell


class Study(Protocol):
    """Settings that know how to measure and how to sum up."""

    title: ClassVar[str]
    about: ClassVar[str]
    needs_threat: ClassVar[bool]

    def refuse(self, model: nn.Module) -> None:
        """Raise if this model cannot be studied; called before anything is written."""

    def run(self, ctx: Context) -> None:
        """Fill the tables and parts; called in every process, each of which has its share of the images."""

    def summarize(self, ctx: Context) -> StudyRecord:
        """The result, from tables and parts; called in one process. `run_study` adds settings, threat and seconds."""


def run_study(study: "AnyStudy", ctx: Context) -> StudyRecord:
    """Run a study and keep its result; what the context's store has already is not computed again.

    Args:
        study: The study; whoever calls has asked its `refuse`.
        ctx: The model, the images and the store. One in a folder gets the result as `result.json`.

    Returns:
        The record, in every process. Its numbers hold `settings`, `seconds` and, if the study attacks, `threat`.

    Raises:
        UsageError: If there are no images, or no threat for a study that needs one.
    """
    if len(ctx.images) == 0:
        raise UsageError("there are no images to study. Choose a longer slice of the data.")
    with callers_modes_off(ctx.model):
        if isinstance(study, OldStudy):
            return ctx.ranks.agree(partial(_carried_out, study, ctx))
        if study.needs_threat:
            threat_of(ctx)
        study.run(ctx)
        ctx.ranks.wait()
        return ctx.ranks.agree(partial(_summarized, study, ctx))


def study(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: "AnyStudy",
    *,
    threat: Threat | str = "linf:8/255",
    seed: int = 0,
    batch: int | None = None,
    notify: Notify = silent,
) -> dict[str, object]:
    """Any study of a model on images in memory, and its result as JSON values.

    Args:
        model: The model, on pixels in [0, 1].
        x: [n, 3, H, W] in [0, 1].
        y: [n] class numbers.
        settings: The study.
        threat: The threat model of a study that attacks.
        seed: Seeds all random numbers.
        batch: Images at a time; no number depends on it.
        notify: Told how far the work is.

    Example:
        >>> study(model, x, y, Saliency(steps=20), threat="linf:4/255")["summary"]
    """
    settings.refuse(model)
    ctx = tensor_context(model, x, y, threat, seed=seed, batch=batch, notify=notify)
    if isinstance(settings, OldStudy):
        with callers_modes_off(model):
            return settings.carry_out(_bench(ctx))
    return run_study(settings, ctx).to_json()


def tensor_context(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str = "linf:8/255",
    *,
    seed: int = 0,
    batch: int | None = None,
    notify: Notify = silent,
) -> Context:
    """The context of a study of images in memory, with its results in memory."""
    engine, radius = Engine(batch_size=batch, precision="float32"), threats.as_threat(threat)
    return Context(model, TensorImages(x, y), threat=radius, seed=seed, engine=engine, progress=notify)


def threat_of(ctx: Context) -> Threat:
    """The context's threat, refused if there is none."""
    if ctx.threat is None:
        raise UsageError("this study attacks, and there is no threat. Write for example threat=Linf(8/255).")
    return ctx.threat


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
        threat = threat_of(ctx)
        common["threat"] = {"text": spell(threat), "eps": threat.eps}
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

    def once(self, name: str, make: Callable[[], Mapping[str, object]]) -> dict[str, Any]:
        part = super().once(name, make)
        self.seconds[f"part {name}"] = part["seconds"]
        return part


# ---------------------------------------------------- of studies that are not converted yet


@runtime_checkable
class OldStudy(Protocol):
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
    images: Any
    parts: Parts
    threat: Threat
    seed: Seed = 0
    batch: Count | None = None
    notify: Notify = silent

    def __post_init__(self) -> None:
        check_ranges(self)


InHand = TensorImages

AnyStudy = OldStudy | Study


def _carried_out(study: OldStudy, ctx: Context) -> StudyRecord:
    result = study.carry_out(_bench(ctx))
    if "exhibits" not in result:
        result = {**result, "title": "", "summary": "", "exhibits": []}
    return StudyRecord.from_json(json.loads(json.dumps(result)))


as_it_is = callers_modes_off


def _bench(ctx: Context) -> Bench:
    parts = Parts(ctx.store.folder)
    return Bench(ctx.model, ctx.images, parts, threat_of(ctx), ctx.seed, ctx.engine.batch_size, ctx.progress)
