"""What a suite is, and the driver that carries one out so that no image is computed twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from vitadel.core.distributed import Ranks
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.data import DataSet
from vitadel.evaluate.context import Context
from vitadel.evaluate.images import skipped_flags
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.store import CachedStore
from vitadel.runs.exhibits import Exhibit
from vitadel.runs.schema import Measure, SuiteRecord, ThreatRecord
from vitadel.threats import Threat

# images on which the model is checked
_CHECKED = 16


@runtime_checkable
class Suite(Protocol):
    """Settings of an evaluation, a frozen dataclass that carries it out.

    A suite fills tables with one row per image, each process for its share; from full tables come the rows that are
    kept and the record. What a table has is not computed again, so an interrupted evaluation resumes.

    Example:
        >>> ctx = Context(model, TensorImages(x, y))  # with results in memory
        >>> record = run_suite(GrayLevel(steps=2), ctx)
        >>> record.n
        8
        >>> record.main.name
        'PGD-2 at 1 gray level'
    """

    @property
    def name(self) -> str:
        """Name on the command line, such as `gray-level`."""

    @property
    def title(self) -> str:
        """Title in reports."""

    @property
    def about(self) -> str:
        """What it measures, in a line."""

    @property
    def needs_threat(self) -> bool:
        """Whether it attacks within the context's threat."""

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError if these cannot be evaluated; called before anything is written."""

    def run(self, ctx: Context) -> None:
        """Fill the tables, with `ctx.map` and `ctx.stream`; every process runs it, for its share of the images."""

    def rows(self, ctx: Context) -> Mapping[str, Sequence[Any]]:
        """Columns from full tables with one value per image, besides `index`, `id` and `label`; one process."""

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The numbers from full tables; one process."""


def run_suite(suite: Suite, ctx: Context) -> SuiteRecord:
    """Carry out a suite and keep its rows and its record in the context's store; a finished one is only read.

    Args:
        suite: The settings.
        ctx: The model, the images, and the store for this suite alone.

    Returns:
        The record, checked against the rows.
    """
    if not ctx.store.finished:
        suite.run(ctx)
        ctx.ranks.barrier()
        if ctx.ranks.rank == 0:
            # the others do not wait for its reading of tables
            one = replace(ctx, ranks=Ranks(), store=CachedStore(source=ctx.store))
            own = {"index": range(len(ctx.images)), "id": ctx.images.ids, "label": ctx.images.labels.tolist()}
            ctx.store.finish({**own, **suite.rows(one)}, suite.summarize(one).to_json())
    ctx.ranks.barrier()
    return SuiteRecord.from_json(ctx.store.read_verified()[0])


def suite_record(
    suite: Suite,
    ctx: Context,
    *,
    tables: Sequence[str],
    clean: Accuracy | Sequence[float] | None,
    measures: Sequence[Measure],
    sentence: str,
    conventions: Mapping[str, object] = MappingProxyType({}),
    exhibits: Sequence[Exhibit] = (),
    flags: Sequence[Flag] = (),
    threat: Threat | None = None,
) -> SuiteRecord:
    """The record of a suite that is quoted by its measures: what the suite says, and what is the same for all.

    Args:
        suite: The suite.
        ctx: Its context.
        tables: The tables it filled, whose times are added up.
        clean: Accuracy before any perturbation, or whether each image is correct; None where labels do not apply.
        measures: The numbers, one of them the main one.
        sentence: The main finding.
        conventions: What else determines the numbers; preprocessing and seed are added.
        exhibits: What it shows.
        flags: Reasons why the numbers may be unreliable, in addition to those of the sanity checks.
        threat: The threat that it attacked within.

    Returns:
        The record, with the flags of the sanity checks, the time and the conventions that all suites share.
    """
    seconds = sum(sum(ctx.table(name)["seconds"]) for name in tables)
    return SuiteRecord(
        ctx.name or suite.name,
        suite.name,
        len(ctx.images),
        clean=clean if clean is None or isinstance(clean, Accuracy) else accuracy_of(clean),
        threat=None if threat is None else ThreatRecord.of(str(threat), threat.eps),
        robust=None,
        attacks=(),
        flags=(*_model_flags(ctx, attacks=threat is not None), *skipped_flags(ctx.images), *flags),
        seconds=round(seconds, 3),
        title=suite.title,
        sentence=sentence,
        measures=measures,
        conventions={
            **({} if ctx.data is None else {"preprocess": ctx.data.preprocess.name}),
            "seed": ctx.seed,
            **conventions,
        },
        exhibits=exhibits,
    )


def _model_flags(ctx: Context, *, attacks: bool) -> list[Flag]:
    """What sanity checks of the model find on a few images; gradients matter only where something attacked."""
    x = ctx.images.images(torch.arange(min(_CHECKED, len(ctx.images)))).to(ctx.device)
    return [flag for flag in sanity_flags(ctx.model, x) if attacks or flag.code == "randomized"]


@runtime_checkable
class SuiteWithFiles(Protocol):
    """A suite whose settings name files: what is in them is part of what a run is, as much as their names."""

    def named_files(self, data: DataSet, split: str) -> Mapping[str, str]:
        """A hash of each file or folder that the settings name; called before anything is written."""
