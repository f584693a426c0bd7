"""The protocol of suites, and the functions that run any suite and skip images that have results already."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from vitadel.attacks import NamedAttack, Scaling
from vitadel.core.distributed import Ranks
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.data import DataSet, check_not_empty
from vitadel.evaluate.context import Context, threat_needed, without_caller_modes
from vitadel.evaluate.images import skipped_flags
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.store import CachedStore, ResultStore, has_rows, summarizing
from vitadel.runs.exhibits import Exhibit
from vitadel.runs.schema import Measure, SuiteRecord, ThreatRecord
from vitadel.threats import Threat, check_size

# number of images for the sanity checks
_SANITY_IMAGES = 16


@runtime_checkable
class Suite(Protocol):
    """An evaluation: a frozen dataclass of settings, with methods to run it and to summarize its results.

    `run` fills tables with one row per image, each process for its part of the images; `rows` and `summarize` compute
    the final rows and the record from full tables. Images with a row are skipped, so an interrupted evaluation resumes.

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
        """Description in one line."""

    @property
    def needs_threat(self) -> bool:
        """Whether it attacks within the context's threat."""

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError if model and data cannot be evaluated; called before anything is written."""

    def run(self, ctx: Context) -> None:
        """Fill the tables with `ctx.map` and `ctx.stream`; called in every process."""

    def rows(self, ctx: Context) -> Mapping[str, Sequence[Any]]:
        """The columns of the final rows besides `index`, `id` and `label`, from full tables; called in one process."""

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The record, from full tables; called in one process."""


# opens the store of an evaluation by its name
OpenStore = Callable[[str], ResultStore]


@runtime_checkable
class SuiteWithRadii(Protocol):
    """A suite that is evaluated at several radii, or on a rescaled model, each with its own store and record."""

    def check_threat(self, model: nn.Module, threat: Threat | None, scaling: Scaling | None) -> list[Threat | None]:
        """The threats to evaluate within; raises a UsageError if the attacks cannot run within one of them."""

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        """Its attacks; none for clean accuracy alone."""

    def threats(self, threat: Threat | None) -> list[Threat | None]:
        """The threats to evaluate within, smallest first; None for a suite without attacks."""

    def with_kept_images(self) -> Suite:
        """The same suite, which also writes the adversarial examples."""

    def evaluate(self, ctx: Context, open_store: OpenStore, scaling: Scaling | None) -> list[SuiteRecord]:
        """One record per evaluation, smallest radius first; see `evaluate_suite`."""


def attacks_of(suite: Suite) -> tuple[NamedAttack, ...] | None:
    """The attacks that a suite runs one after the other; None for a suite of another kind."""
    return suite.attacks if isinstance(suite, SuiteWithRadii) else None


def evaluate_suite(
    suite: Suite, ctx: Context, open_store: OpenStore, *, scaling: Scaling | None = None
) -> list[SuiteRecord]:
    """Run a suite, once or at each of its radii; finished evaluations are only read.

    Args:
        suite: The suite.
        ctx: The model, the images and the threat.
        open_store: Opens the store of an evaluation by its name, such as `Run.results`.
        scaling: Attack robust images once more, with gradients of a rescaled model; in addition, as separate
            evaluations, attack and score the rescaled model itself, which is how the paper scores.

    Returns:
        The records, smallest radius first.
    """
    with without_caller_modes(ctx.model):
        if isinstance(suite, SuiteWithRadii):
            return suite.evaluate(ctx, open_store, scaling)
        return [run_suite(suite, replace(ctx, store=open_store(suite.name), name=suite.name))]


def check_suite(
    suite: Suite,
    model: nn.Module,
    data: DataSet,
    *,
    threat: Threat | None,
    split: str = "test",
    scaling: Scaling | None = None,
) -> None:
    """Raise a UsageError if a suite cannot run; for callers that have not claimed a run folder yet.

    That model and data have the same classes, and names that can be written, is checked once for all suites.
    """
    images, threats = data.split(split), [threat]
    check_not_empty(images, f"the {split} split of {data.spec}", "evaluate")
    if suite.needs_threat and threat is None:
        raise threat_needed(suite.name)
    if isinstance(suite, SuiteWithRadii):
        threats = suite.check_threat(model, threat, scaling)
    for one in threats if suite.needs_threat else ():
        assert one is not None
        check_size(one, (3, *images.pixels.image_size))
    suite.check(model, data, split)


def evaluation_name(suite: str, threat: Threat | None) -> str:
    """The name of the evaluation of a suite within a threat: `quick-linf-8_255`."""
    return suite if threat is None else f"{suite}-{str(threat).replace(':', '-').replace('/', '_')}"


def run_suite(suite: Suite, ctx: Context) -> SuiteRecord:
    """Run a suite and write its rows and its record into the context's store; a finished one is only read.

    Args:
        suite: The settings.
        ctx: The model, the images, and the store for this suite alone.

    Returns:
        The record, checked against the rows.
    """
    if not ctx.store.finished:
        resumed = has_rows(ctx.store)
        suite.run(ctx)
        ctx.ranks.barrier()
        if ctx.ranks.rank == 0:
            # reading tables waits for no other process here
            local = replace(ctx, ranks=Ranks(), store=CachedStore(source=ctx.store))
            own = {"index": range(len(ctx.images)), "id": ctx.images.ids, "label": ctx.images.labels.tolist()}
            with summarizing(ctx.store, resumed=resumed):
                ctx.store.finish({**own, **suite.rows(local)}, suite.summarize(local).to_json())
    ctx.ranks.barrier()
    source = "the summary" if ctx.store.folder is None else ctx.store.folder / "summary.json"
    return SuiteRecord.from_json(ctx.store.read_verified()[0], source)


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
    """The record of a suite that reports measures: its own numbers, and the fields common to all suites.

    Args:
        suite: The suite.
        ctx: Its context.
        tables: The tables it filled, whose times are summed.
        clean: Accuracy before any perturbation, or whether each image is correct; None where labels do not apply.
        measures: The numbers, one of them the main one.
        sentence: The main finding.
        conventions: What else determines the numbers; preprocessing and seed are added.
        exhibits: Its tables and figures.
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
        threat=None if threat is None else ThreatRecord.of(str(threat), threat.eps, threat.eps_unit),
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
    """Flags of the sanity checks on a few images; those about gradients only if the suite attacks."""
    x = ctx.images.images(torch.arange(min(_SANITY_IMAGES, len(ctx.images)))).to(ctx.device)
    return [flag for flag in sanity_flags(ctx.model, x) if attacks or flag.code == "randomized"]


@runtime_checkable
class SuiteWithFiles(Protocol):
    """A suite whose settings name files, whose contents are part of the run's fingerprint."""

    def named_files(self, data: DataSet, split: str) -> Mapping[str, str]:
        """A hash of each file or folder that the settings name; called before anything is written."""
