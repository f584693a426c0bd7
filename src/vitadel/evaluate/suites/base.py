"""What a survey is, and how it is carried out so that nothing is looked at twice.

A survey is a frozen dataclass of settings. It looks at the images in portions, cell by cell: a cell is one thing that
is done to every image, such as a corruption at one severity. What the model answered goes onto the sheet of that cell,
a page of the evaluation's rows, as soon as it is known. When all processes have filled their lines, the first of them
draws the conclusion: one row per image, and the summary.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitadel.attacks import Engine, Flag
from vitadel.core.device import device_of
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, check_number, check_seed
from vitadel.core.progress import Notify, silent
from vitadel.core.stats import Accuracy, accuracy, expected_accuracy
from vitadel.data import DataSet, Split, batches
from vitadel.evaluate.context import Context, logits
from vitadel.evaluate.images import refuse_other_classes, refuse_unwritable_names, skipped_flags
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.runs import Rows, Run
from vitadel.runs.exhibits import Exhibit
from vitadel.runs.schema import Measure, SuiteRecord, ThreatRecord
from vitadel.threats import Threat, check_size, spell

# seconds of answers that a kill may cost
_SECONDS = 20.0
# pixel values of a portion: images that are held while every cell looks at them
_VALUES, _MOST = 40_000_000, 4096
# images that are asked about a model's habits
_ASKED = 16

Columns = Mapping[str, Sequence[object]]
Lines = Mapping[int, Mapping[str, object]]
Work = Callable[[Tensor, Tensor], Mapping[str, Sequence[object]]]


class Survey(Protocol):
    """Settings that know how to be carried out on a model and a data set."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    needs_threat: ClassVar[bool]

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise if these cannot be surveyed; called before anything is written."""

    def look(self, desk: "Desk") -> None:
        """Fill the sheets with what this process has to say about its share of the images."""

    def conclude(self, desk: "Desk") -> "Outcome":
        """From full sheets to rows and numbers; only one process is asked."""


class Suite(Protocol):
    """Settings of an evaluation, a frozen dataclass that knows how to carry it out.

    A suite fills tables with one row per image, each process for its share; from full tables come the rows that are
    kept and the record. What a table has is not computed again, so an interrupted evaluation resumes.
    """

    @property
    def name(self) -> str:
        """What it is called on the command line, such as `gray-level`."""

    @property
    def title(self) -> str:
        """What reports call it."""

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
        """From full tables to columns with one value per image, beside `index`, `id` and `label`; one process."""

    def summarize(self, ctx: Context) -> SuiteRecord:
        """From full tables to the numbers; one process."""


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
        ctx.ranks.wait()
        if ctx.ranks.rank == 0:
            one = replace(ctx, ranks=Ranks())  # the others do not wait for its reading of tables
            own = {"index": range(len(ctx.images)), "id": ctx.images.ids, "label": ctx.images.labels.tolist()}
            ctx.store.finish({**own, **suite.rows(one)}, suite.summarize(one).to_json())
    ctx.ranks.wait()
    return SuiteRecord.from_json(ctx.store.checked()[0])


def measured(
    suite: Suite,
    ctx: Context,
    *,
    clean: Accuracy | None,
    measures: Sequence[Measure],
    sentence: str,
    conventions: Mapping[str, object],
    exhibits: Sequence[Exhibit],
    tables: Sequence[str],
    flags: Sequence[Flag] = (),
    threat: Threat | None = None,
) -> SuiteRecord:
    """The record of a suite that is quoted by its measures.

    Args:
        suite: The suite.
        ctx: Its context.
        clean: Accuracy before any perturbation; None where labels do not apply.
        measures: The numbers, one of them the main one.
        sentence: The main finding.
        conventions: What else determines the numbers; preprocessing and seed are added.
        exhibits: What it shows.
        tables: The tables it filled, whose times are added up.
        flags: Reasons to doubt the numbers, beside what the model itself gives away.
        threat: The threat that it attacked within.
    """
    seconds = sum(sum(ctx.table(name)["seconds"]) for name in tables)
    return SuiteRecord(
        ctx.name or suite.name,
        suite.name,
        len(ctx.images),
        clean=clean,
        threat=None if threat is None else ThreatRecord.of(spell(threat), threat.eps),
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
    """What the model gives away on a few images; gradients matter only where something attacked."""
    x = ctx.images.images(torch.arange(min(_ASKED, len(ctx.images)))).to(ctx.device)
    return [flag for flag in sanity_flags(ctx.model, x) if attacks or flag.code == "randomized"]


@runtime_checkable
class Referring(Protocol):
    """A survey whose settings name files: what is in them is part of what a run is, as much as their names."""

    def named_files(self, data: DataSet, split: str) -> Mapping[str, str]:
        """A hash of what each file or folder that the settings name holds; called before anything is written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a survey found: one line per image, and what to say of them all.

    `columns` has `right`, the main verdict on every image, and what else is worth keeping; `clean` is the answer to
    each image as it is, None where there is no right one.
    """

    columns: Mapping[str, Sequence[object]]
    clean: Accuracy | None
    measures: Sequence[Measure]
    sentence: str
    conventions: Mapping[str, object]
    exhibits: Sequence[Exhibit]
    flags: Sequence[Flag] = ()
    threat: Threat | None = None


@dataclass(slots=True)
class Sheet:
    """The lines of one cell: those of before, read once, and those to come."""

    page: Rows
    known: dict[int, dict[str, object]]

    @classmethod
    def open(cls, page: Rows) -> "Sheet":
        return cls(page, _by_row(page.read()))

    def missing(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row not in self.known]

    def fill(
        self,
        rows: Sequence[int],
        fetch: Callable[[Tensor], Tensor],
        work: Work,
        *,
        batch: int,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Let `work` see the images that have no line yet, some at a time; what it says is written down in portions."""
        waiting: list[Columns] = []
        since = time.monotonic()
        try:
            for part in torch.tensor(self.missing(rows), dtype=torch.int64).split(batch):
                if not len(part):
                    break
                for line in _fitting(part, fetch, work):
                    waiting.append(line)
                    tell(len(line["row"]))
                if time.monotonic() - since > _SECONDS:
                    self._write(waiting)
                    waiting, since = [], time.monotonic()
        finally:  # an error or Ctrl-C costs nothing that was found
            self._write(waiting)

    def _write(self, waiting: Sequence[Columns]) -> None:
        if waiting:
            columns = {name: [value for part in waiting for value in part[name]] for name in waiting[0]}
            self.page.add(columns)
            self.known.update(_by_row(columns))


@dataclass(slots=True)
class Desk:
    """Where a survey is worked on: the model, the images, and the sheets."""

    model: nn.Module
    data: DataSet
    images: Split
    threat: Threat | None
    rows: Rows
    seed: int
    engine: Engine
    ranks: Ranks
    notify: Notify
    name: str
    _sheets: dict[str, Sheet] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.pixels.image_size

    @property
    def share(self) -> list[int]:
        """The rows this process has to look at."""
        return self.ranks.share(list(range(len(self.images))))

    @property
    def batch(self) -> int:
        rows = self.engine.on(self.device, 3 * self.size[0] * self.size[1]).batch_size
        assert rows is not None
        return rows

    def sheet(self, name: str) -> Sheet:
        """The sheet of this name; read from disk once."""
        if name not in self._sheets:
            self._sheets[name] = Sheet.open(self.rows.page(name))
        return self._sheets[name]

    def lines(self, name: str) -> Lines:
        """All lines of a sheet, also those that other processes wrote meanwhile."""
        self._sheets.pop(name, None)
        return self.sheet(name).known

    def answers(self, name: str) -> list[int]:
        """The predictions on a full sheet, in order of rows."""
        lines = self.lines(name)
        return [int(str(lines[row]["prediction"])) for row in range(len(self.images))]

    def portions(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Callable[[Tensor], Tensor]]]:
        """Some of these rows at a time with a way to fetch their pixels; the next ones are read in the background."""
        many = max(1, min(_MOST, _VALUES // (3 * self.size[0] * self.size[1])))
        order = torch.tensor(list(rows), dtype=torch.int64).split(many) if len(rows) else ()
        for part, x, _ in batches(self.images, order, ahead=1):
            place = {row: at for at, row in enumerate(part.tolist())}

            def fetch(wanted: Tensor, x: Tensor = x, place: Mapping[int, int] = place) -> Tensor:
                return x[[place[row] for row in wanted.tolist()]].to(self.device)

            yield part.tolist(), fetch

    def fill(self, name: str, work: Work) -> None:
        """Let `work` see every image of this process's share once, as it is."""
        sheet, share = self.sheet(name), self.share
        missing = sheet.missing(share)
        tell = self.meter(len(share), len(share) - len(missing))
        for rows, fetch in self.portions(missing):
            sheet.fill(rows, fetch, work, batch=self.batch, tell=tell)

    def meter(self, total: int, done: int = 0) -> Callable[[int], None]:
        """Tells how far the work has come, whenever it is told of some more."""
        state = {"done": done}

        def tell(more: int) -> None:
            state["done"] += more
            self.notify(self.name, state["done"], total, {})

        return tell

    def answer(self, x: Tensor, rows: Tensor) -> Tensor:
        """[B, K] logits on the CPU, checked against the labels of these rows."""
        return answer(self.model, x, self.images.labels[rows])

    def classify(self, rows: Tensor, x: Tensor) -> dict[str, list[object]]:
        """The work of looking at images as they are."""
        return {"prediction": list(self.answer(x, rows).argmax(1).tolist())}


def answer(model: nn.Module, x: Tensor, label_B: Tensor) -> Tensor:
    """[B, K] logits on the CPU; refused if they cannot be answers about images with these labels."""
    z_BK = logits(model, x)
    if z_BK.ndim != 2 or len(z_BK) != len(x) or int(label_B.max()) >= z_BK.shape[1]:
        raise UsageError(
            f"the model returns outputs of shape {list(z_BK.shape)} for {len(x)} images, the data has labels up to "
            f"{int(label_B.max())}. Is it the model for this data set?"
        )
    if bad := int((~z_BK.isfinite()).any(1).sum()):
        raise UsageError(f"the model returned NaN or infinite logits for {bad} of {len(x)} images.")
    return z_BK


def survey(
    model: nn.Module,
    data: DataSet,
    settings: Survey | Suite,
    run: Run,
    *,
    threat: Threat | None = None,
    seed: int = 0,
    batch: int | None = None,
    split: str = "test",
    ranks: Ranks | None = None,
    notify: Notify = silent,
) -> dict[str, object]:
    """Carry out a survey and return the summary that is also written to the run folder, with one row per image.

    Killed and called again, with another batch or on other ranks, it goes on from the last answers that were written.
    """
    check_seed(seed)
    check_number("the batch", Count | None, batch)
    refuse_survey(model, data, settings, threat=threat, split=split)
    images, ranks = data.split(split), ranks or Ranks()
    if not hasattr(settings, "look"):
        store, engine = run.results(settings.name), Engine(batch_size=batch)
        ctx = Context(model, images, data, threat, seed, engine, ranks, store, notify, settings.name)
        return run_suite(settings, ctx).to_json()
    assert not hasattr(settings, "summarize")
    rows = run.rows(settings.name)
    if not rows.done:
        engine = Engine(batch_size=batch)
        desk = Desk(model, data, images, threat, rows, seed, engine, ranks, notify, settings.name)
        settings.look(desk)
        ranks.wait()
        if ranks.rank == 0:
            _close(desk, settings, settings.conclude(desk))
    ranks.wait()
    return rows.checked()[0]


def refuse_survey(
    model: nn.Module, data: DataSet, settings: Survey | Suite, *, threat: Threat | None, split: str = "test"
) -> None:
    """Raise what `survey` would refuse: for callers that take a run folder first."""
    images = data.split(split)
    if len(images) == 0:
        raise UsageError(f"the {split} split of {data.spec} is empty, so there is nothing to evaluate.")
    if settings.needs_threat:
        if threat is None:
            raise UsageError(
                f"suite {settings.name!r} attacks, so it needs a threat. Write for example --threat linf:8/255."
            )
        check_size(threat, (3, *images.pixels.image_size))
    settings.refuse(model, data, split)
    refuse_other_classes(model, data)
    refuse_unwritable_names(data, split)


def _close(desk: Desk, settings: Survey, found: Outcome) -> None:
    number = len(desk.images)
    own: dict[str, Sequence[object]] = {
        "row": list(range(number)),
        "id": list(desk.images.ids),
        "label": desk.images.labels.tolist(),
    }
    desk.rows.add({**own, **found.columns})
    threat = found.threat
    summary = SuiteRecord(
        desk.name,
        settings.name,
        number,
        clean=found.clean,
        threat=None if threat is None else ThreatRecord.of(spell(threat), threat.eps),
        robust=None,
        attacks=(),
        flags=(*_habits(desk, found), *skipped_flags(desk.images), *found.flags),
        seconds=round(sum(map(_seconds, desk._sheets.values())), 3),
        title=settings.title,
        sentence=found.sentence,
        measures=found.measures,
        conventions={"preprocess": desk.data.preprocess.name, "seed": desk.seed, **found.conventions},
        exhibits=found.exhibits,
    )
    desk.rows.close(summary.to_json())


def share_of(right: Sequence[float]) -> Accuracy:
    """A share of images, or the mean of shares per image, with its interval."""
    if all(one in (0, 1) for one in right):
        return accuracy(int(sum(right)), len(right))
    return expected_accuracy(right)


def _habits(desk: Desk, found: Outcome) -> list[Flag]:
    """What the model gives away on a few images; gradients matter only where something attacked."""
    x = desk.images.images(torch.arange(min(_ASKED, len(desk.images)))).to(desk.device)
    flags = sanity_flags(desk.model, x)
    return [flag for flag in flags if found.threat is not None or flag.code == "randomized"]


def _seconds(sheet: Sheet) -> float:
    return sum(float(str(line["seconds"])) for line in sheet.known.values())


def _by_row(columns: Columns) -> dict[int, dict[str, object]]:
    rows = columns.get("row", ())
    return {int(str(row)): {name: values[at] for name, values in columns.items()} for at, row in enumerate(rows)}


def _fitting(rows: Tensor, fetch: Callable[[Tensor], Tensor], work: Work) -> Iterator[dict[str, list[object]]]:
    """What `work` says of these rows; those that do not fit into memory are cut in two."""
    started = time.perf_counter()
    try:
        said = work(rows, fetch(rows))
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise UsageError("out of memory with a single image. Use a smaller model or another device.") from None
    else:
        seconds = (time.perf_counter() - started) / len(rows)
        lines = {name: list(values) for name, values in said.items()}
        yield {"row": list(rows.tolist()), **lines, "seconds": [seconds] * len(rows)}
        return
    torch.cuda.empty_cache()
    for half in rows.split((len(rows) + 1) // 2):
        yield from _fitting(half, fetch, work)
