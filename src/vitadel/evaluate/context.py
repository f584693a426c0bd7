"""The context of suites and studies: the model, the images, and the results so far.

All of them use one primitive: for each image of this process that has no row in a table yet, compute and append.
Batches are read ahead and halved when they do not fit into memory, rows are written at least every 20 seconds, progress
is reported, and an interrupted evaluation resumes because images with a row are skipped:

    ctx.map("clean", lambda batch: {"prediction": ctx.predict(batch.x)})
    ctx.map("pgd", lambda batch: ctx.attack(PGD(), batch).columns())
    robust = [not broken for broken in ctx.table("pgd")["success"]]

Shape letters: B images, K classes.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitadel.attacks import Attack, AttackResult, Engine
from vitadel.attacks.isolation import isolated
from vitadel.attacks.oracle import as_logits, in_own_precision
from vitadel.core.device import device_of
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError, short_repr, spelled
from vitadel.core.files import parse_json
from vitadel.core.flags import Flag
from vitadel.core.numeric import check_seed
from vitadel.core.oom import in_batches, run_in_parts
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data import DataSet, Split, batches
from vitadel.evaluate.images import Images
from vitadel.evaluate.store import MemoryStore, ResultStore, Row, TableRows, TableWriter, as_column, indices
from vitadel.goals import Goal, Untargeted
from vitadel.threats import Threat

# the largest number of pixel values, and of images, read at a time
_VALUES, _IMAGES = 40_000_000, 4096
# the table of the flags
FLAGS = "flags"


def threat_needed(suite: str = "") -> UsageError:
    """The error for a suite or another computation that needs a threat and has none."""
    what = f"suite {suite!r} attacks, so it" if suite else "an attack"
    return UsageError(f"{what} needs a threat. Write {spelled('threat', 'linf:8/255')}.")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some images: `index` [B] int64 on the CPU, `x` [B, 3, H, W] and `y` [B] on the model's device."""

    index: Tensor
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def where(self, chosen_B: Tensor) -> "Batch":
        """The images for which a mask [B] is true."""
        return Batch(self.index[chosen_B.cpu()], self.x[chosen_B.to(self.x.device)], self.y[chosen_B.to(self.y.device)])


Work = Callable[[Batch], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Context:
    """A model, images and the store of the results.

    Args:
        model: The model that is evaluated.
        images: The images with their labels.
        data: The data set that the images are a split of; None for tensors.
        threat: The threat model, if any.
        seed: Seeds all random numbers, together with the index of an image.
        engine: How searches run: batch size, precision, compilation.
        ranks: The processes that share the images.
        store: Where results are stored.
        progress: Called with the progress.
        name: Name of the computation in progress reports.
        smaller: The results within a smaller radius, if any.

    Raises:
        UsageError: If the seed is not an int of 64 bits.
    """

    model: nn.Module
    images: Images
    data: DataSet | None = None
    threat: Threat | None = None
    seed: int = 0
    engine: Engine = field(default_factory=Engine)
    ranks: Ranks = field(default_factory=Ranks)
    store: ResultStore = field(default_factory=MemoryStore)
    progress: ProgressCallback = silent
    name: str = ""
    smaller: ResultStore | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

    # -------------------------------------------------------- model and images

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def required_threat(self) -> Threat:
        """The threat model; raises a UsageError if there is none."""
        if self.threat is None:
            raise threat_needed()
        return self.threat

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = self.images.images(torch.zeros(1, dtype=torch.int64)).shape[-2:]
        return height, width

    @property
    def batch_size(self) -> int:
        """Images per batch: the engine's setting, or its default for the device."""
        rows = self.engine.on(self.device, 3 * self.image_size[0] * self.image_size[1]).batch_size
        assert rows is not None
        return rows

    def class_name(self, label: int) -> str:
        """The name of a class in the data set, or its number if it has none."""
        names = () if self.data is None else self.data.classes
        return names[label] if 0 <= label < len(names) else str(label)

    def correct(self, predictions: Sequence[int]) -> list[float]:
        """1.0 for each image whose prediction is its label, else 0.0; there must be one prediction for each."""
        try:
            prediction_N = torch.as_tensor(predictions)
        except (RuntimeError, TypeError, ValueError):  # of an edited file
            prediction_N = torch.empty(0)
        if prediction_N.shape != self.images.labels.shape or prediction_N.is_floating_point():
            raise UsageError(
                f"there are {len(self.images)} images, and their predictions in {self.store.folder or 'memory'} are "
                f"not one class each: {short_repr(predictions)}. Delete its tables and run the same command again."
            )
        return (prediction_N == self.images.labels).double().tolist()

    def local_part(self, index: Iterable[int] | None = None) -> list[int]:
        """This process's part of all images, or of those in `index`."""
        return self.ranks.local_part(list(range(len(self.images)) if index is None else index))

    def batch(self, index: Tensor | Sequence[int], x: Tensor | None = None) -> Batch:
        """The images in `index` on the model's device; `x` are their pixels if already read."""
        index = torch.as_tensor(index, dtype=torch.int64)
        x = self.images.images(index) if x is None else x
        return Batch(index, x.to(self.device), self.images.labels[index].to(self.device))

    # ------------------------------------------------------------- per image

    def map(self, table: str, work: Work, *, index: Iterable[int] | None = None, batch_size: int | None = None) -> None:
        """Compute and append a row for each image of this process that has none in `table`.

        Args:
            table: The name of the table.
            work: Takes a `Batch` and returns columns: for each name a tensor, an array or a sequence of B values. No
                value may depend on the other images of the batch.
            index: The images, all if not given.
            batch_size: Images per batch, `Context.batch_size` if not given.

        Raises:
            UsageError: If a single image does not fit into memory.
        """
        self.map_tables({table: work}, index=index, batch_size=batch_size)

    def map_tables(
        self, works: Mapping[str, Work], *, index: Iterable[int] | None = None, batch_size: int | None = None
    ) -> None:
        """As `map` for several tables, with every image read once for all of them."""
        local = self.local_part(index)
        missing = {table: _without(local, indices(self.store, table)) for table in works}
        writers = {table: TableWriter(self.store, table) for table in works}
        total = len(local) * len(works)
        done = total - sum(map(len, missing.values()))
        try:
            for part, x in self._read_ahead(sorted(set[int]().union(*missing.values()))):
                position = {index: number for number, index in enumerate(part)}
                for table, work in works.items():
                    todo = [index for index in part if index in missing[table]]
                    for columns in self._computed(work, todo, x, position, batch_size or self.batch_size):
                        writers[table].add(columns)
                        done += len(columns["index"])
                        self.progress(self._task_name(table, works), done, total, {})
        finally:  # also after an error or Ctrl-C
            for writer in writers.values():
                writer.flush()

    def _computed(
        self, work: Work, index: Sequence[int], x: Tensor, position: Mapping[int, int], batch_size: int
    ) -> Iterator[dict[str, Sequence[object]]]:
        def timed(index_B: Tensor) -> dict[str, Sequence[object]]:
            started = time.perf_counter()
            columns = work(self.batch(index_B, x[[position[one] for one in index_B.tolist()]]))
            plain = {name: as_column(values) for name, values in columns.items()}
            return {"seconds": [(time.perf_counter() - started) / len(index_B)] * len(index_B), **plain}

        for index_B, columns in in_batches(torch.tensor(index, dtype=torch.int64), batch_size, timed):
            yield {"index": index_B.tolist(), **columns}

    def _read_ahead(self, index: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """The images in `index`, in parts that fit into memory; the next part of a split is read in the background."""
        if not index:
            return
        size = max(1, min(_IMAGES, _VALUES // (3 * self.image_size[0] * self.image_size[1])))
        order = torch.tensor(index, dtype=torch.int64).split(size)
        if isinstance(self.images, Split):
            yield from ((part.tolist(), x) for part, x, _ in batches(self.images, order, ahead=1))
        else:
            yield from ((part.tolist(), self.images.images(part)) for part in order)

    def stream(
        self,
        table: str,
        results: Callable[[list[int]], Iterator[tuple[int, Row]]],
        *,
        index: Iterable[int] | None = None,
        before_write: Callable[[list[Row]], None] | None = None,
        counts: Callable[[Row], Mapping[str, float]] = lambda row: {},
    ) -> None:
        """As `map`, for an engine that finishes images out of order.

        Args:
            table: The name of the table.
            results: Takes the images without a row and yields the index and the row of each as soon as it is finished.
            index: The images, all if not given.
            before_write: Called with the rows before they are written, and may change them.
            counts: Numbers of a row whose sums are shown in the progress report.
        """
        local = self.local_part(index)
        known = TableRows(self.store.read(table))
        missing = _without(local, set(known.index))
        writer, done = TableWriter(self.store, table, before_write), len(local) - len(missing)
        sums: dict[str, float] = {}
        for row in known.by_index().values():
            _add(sums, counts(row))
        try:
            for finished, row in results(list(missing)) if missing else ():
                _add(sums, counts(row))
                writer.add({name: [value] for name, value in {"index": finished, **row}.items()})
                done += 1
                self.progress(self._task_name(table), done, len(local), sums)
        finally:
            writer.flush()

    def table(self, name: str) -> TableRows:
        """All rows of a table in order of `index`; waits for the rows of other processes."""
        self.ranks.barrier()
        return TableRows(self.store.read(name))

    def _task_name(self, table: str, works: Mapping[str, Work] | None = None) -> str:
        return f"{self.name} {table}".strip() if works is None or len(works) == 1 else self.name

    # --------------------------------------------------------- not per image

    def compute_once(self, name: str, make: Callable[[], Mapping[str, object]]) -> dict[str, Any]:
        """A value that is not per image: computed by one process, stored, and read by all.

        Every process has to call it.

        Args:
            name: Name of the value, unique within the store.
            make: Computes the value, a dict of plain JSON values; called if it is not stored yet.

        Returns:
            The value as read from JSON, and the `seconds` it took.
        """
        if self.ranks.rank == 0 and self._part(name) is None:
            started = time.perf_counter()
            value = dict(make())
            self.store.write_part(name, {**value, "seconds": time.perf_counter() - started})
        self.ranks.barrier()
        part = self._part(name)
        assert part is not None, "written above"
        return part

    def _part(self, name: str) -> dict[str, Any] | None:
        part = self.store.read_part(name)
        if part is not None and not isinstance(part.get("seconds"), int | float):
            where = self.store.folder
            raise UsageError(
                f"{name} in {where} was not written by this program. Delete its file and run the same command again."
            )
        return part

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """Store flags, reasons why the numbers may be unreliable; each is stored once."""
        for flag in flags:
            known = self.store.read(FLAGS)
            if flag.sentence not in known.get("sentence", ()):
                row = {
                    "index": zlib.crc32(flag.sentence.encode()),
                    "order": len(known.get("index", ())),
                    "code": flag.code,
                    "sentence": flag.sentence,
                    "evidence": json.dumps(dict(flag.evidence)),
                }
                self.store.append(FLAGS, {name: [value] for name, value in row.items()})

    def flags(self) -> list[Flag]:
        """All flags so far, in the order in which they were added."""
        rows = TableRows(self.store.read(FLAGS))
        kinds = {"order": int, "index": int, "code": str, "sentence": str, "evidence": str}
        columns = (rows.of_type(name, kind) for name, kind in kinds.items())
        return [
            Flag(code, sentence, _evidence(text)) for _, _, code, sentence, text in sorted(zip(*columns, strict=True))
        ]

    # ------------------------------------------------------------- the model

    def logits(self, x: Tensor, *, model: nn.Module | None = None, seed: int = 0) -> Tensor:
        """[B, K] logits in float32 on the CPU; raises a UsageError if they are not finite.

        Args:
            x: [B, 3, H, W] in [0, 1].
            model: The model, the context's if not given.
            seed: Seeds the random numbers of a randomized model.
        """
        z_BK = logits(self.model if model is None else model, x, seed=seed)
        self.check_logits(z_BK, len(x))
        return z_BK

    def check_logits(self, z_BK: Tensor, images: int) -> None:
        """Raise a UsageError unless these are finite logits [images, K]."""
        if z_BK.ndim != 2 or len(z_BK) != images:
            self._raise_wrong_outputs(z_BK, images)
        if bad := int((~z_BK.isfinite()).any(1).sum()):
            raise UsageError(
                f"the model returned NaN or infinite logits for {bad} of {images} images. "
                "Check its weights and precision."
            )

    def predict(self, x: Tensor, *, model: nn.Module | None = None) -> Tensor:
        """[B] predicted classes on the CPU; raises a UsageError if a label is not a class of the model."""
        return self.predicted(self.logits(x, model=model))

    def predicted(self, z_BK: Tensor) -> Tensor:
        """[B] classes with the largest logit, checked as by `predict`."""
        low, high = self._label_range
        if high >= z_BK.shape[1] or low < 0:
            self._raise_wrong_outputs(z_BK, len(z_BK))
        return z_BK.argmax(1)

    def attack(
        self,
        attack: Attack,
        batch: Batch,
        goal: Goal | None = None,
        threat: Threat | None = None,
        *,
        model: nn.Module | None = None,
    ) -> AttackResult:
        """Attack a batch with random numbers seeded by the context's seed and the index of each image.

        Args:
            attack: The attack.
            batch: The images.
            goal: Untargeted on the labels if not given.
            threat: The context's if not given.
            model: The model, the context's if not given.
        """
        threat = self.required_threat if threat is None else threat
        goal = Untargeted(batch.y, attack.goal_loss) if goal is None else goal
        return attack(
            self.model if model is None else model, batch.x, goal, threat, seed=self.seed, index_B=batch.index
        )

    @cached_property
    def _label_range(self) -> tuple[int, int]:
        return int(self.images.labels.min()), int(self.images.labels.max())

    def _raise_wrong_outputs(self, z_BK: Tensor, images: int) -> None:
        low, high = self._label_range
        raise UsageError(
            f"the model returns outputs of shape {list(z_BK.shape)} for {images} images, the data has labels from "
            f"{low} to {high}. Is it the model for this data set? Choose one with its classes."
        )


@torch.no_grad()
def logits(model: nn.Module, x: Tensor, *, seed: int = 0) -> Tensor:
    """The model's logits in float32 on the CPU; a batch is split if it does not fit into memory."""
    device = device_of(model)

    def forward(x: Tensor) -> Tensor:
        with isolated(model, seed, device), torch.autocast(device.type, enabled=False):
            return as_logits(model(in_own_precision(model, x.to(device)))).float().cpu()

    return run_in_parts(forward, x)


@contextmanager
def without_caller_modes(model: nn.Module) -> Iterator[None]:
    """Inside, inference mode and autocast of the caller are off."""
    with torch.inference_mode(False), torch.autocast(device_of(model).type, enabled=False):
        yield


def _without(index: Sequence[int], known: set[int]) -> dict[int, None]:
    """The indices that are not known, in order; a dict, as a set has no order."""
    return dict.fromkeys(one for one in index if one not in known)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


def _evidence(text: str) -> dict[str, float]:
    """The evidence of a stored flag; raises a UsageError if the file is damaged."""
    try:
        evidence = parse_json(text)
    except ValueError as error:
        raise UsageError(
            f"the flags in the run folder are damaged ({error}). Evaluate into another run folder."
        ) from error
    if not isinstance(evidence, dict):
        raise UsageError(f"the flags in the run folder are damaged ({text!r:.60}). Evaluate into another run folder.")
    return evidence
