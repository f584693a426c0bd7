"""Attack after attack on the images that still stand.

Every finding goes into a journal as soon as it is known. What the journal has is not searched for again: killed and
started again, on other ranks or with other batches, a cascade ends with the same verdicts.

Shape letters: B images, K classes, T targets.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from vitadel.attacks import (
    FALLBACK,
    AttackResult,
    Engine,
    Flag,
    ImageResult,
    IterativeAttack,
    Model,
    NonFiniteError,
    Oracle,
    WorkQueue,
    as_logits,
    in_own_precision,
    in_precision,
    isolated,
)
from vitadel.core.device import device_of
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import parse_json
from vitadel.core.progress import Notify, silent
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.attack_suites import Entry
from vitadel.evaluate.book import Book
from vitadel.evaluate.journal import Journal
from vitadel.goals import Diverge, Goal, Targeted, Untargeted, top_other_classes
from vitadel.losses import kl_divergence
from vitadel.threats import Threat

# answers asked of a random model about one image: so many to choose the worst image by, and as many fresh ones to score
_DRAWS = 20

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "float64"}

Result = TypeVar("Result")


class Images(Protocol):
    """Images in a fixed order, read when they are needed; a `vitadel.data.Split` is one."""

    @property
    def labels(self) -> Tensor:
        """[n] class numbers."""

    def __len__(self) -> int:
        """How many there are."""

    def images(self, rows: Tensor) -> Tensor:
        """float32 [B, 3, H, W] in [0, 1], on the CPU."""


@dataclass(slots=True)
class Cascade:
    """Attacks on the images of one split, inside one threat.

    `keep` is shown every image that was found, or the last attempt on one that stands, and told which it is. `fallen`
    are rows known to fall to a smaller threat. `settle` is called before findings are written down: what a caller keeps
    of them must be safe by then, since nobody will find them again.
    """

    model: nn.Module
    images: Images
    entries: tuple[Entry, ...]
    threat: Threat | None
    journal: Journal
    seed: int
    engine: Engine
    fallen: frozenset[int] = frozenset()
    ranks: Ranks = field(default_factory=Ranks)
    keep: Callable[[int, Tensor, bool], None] = lambda row, x, fell: None
    settle: Callable[[], None] = lambda: None
    notify: Notify = silent
    name: str = ""
    # how the search computes the model, if not as it is: in another precision, or compiled
    search: Model | None = None

    def attack(self, standing: list[int]) -> None:
        """Every attack on the rows that still stand when its turn comes."""
        for entry in self.entries:
            standing = self._strike(entry, standing)

    def doubt(self, flags: Iterable[Flag]) -> None:
        """Write down reasons to trust the numbers less, so that neither a kill nor another process loses them."""
        page = self.journal.page("flags")
        for flag in flags:
            known = page.read().get("sentence", [])
            if flag.sentence not in known:
                line = {"row": zlib.crc32(flag.sentence.encode()), "noticed": len(known), **asdict(flag)}
                page.add({key: [json.dumps(value) if key == "evidence" else value] for key, value in line.items()})

    def find_flags(self) -> list[Flag]:
        """Every reason so far, in the order they were noticed."""
        lines = self.journal.page("flags").read()
        columns = (lines.get(name, []) for name in ("noticed", "row", "code", "sentence", "evidence"))
        return [Flag(code, says, _evidence(why)) for *_, code, says, why in sorted(zip(*columns, strict=True))]

    # ------------------------------------------------------------ clean pass

    def classify(self) -> list[int]:
        """The rows that are classified rightly and known to stand so far."""
        page, rows = self.journal.page("clean"), self.ranks.share(list(range(len(self.images))))
        known = {int(str(row)) for row in page.read().get("row", [])}
        todo = [row for row in rows if row not in known]
        done = len(rows) - len(todo)
        for part in _parts(todo, self.batch):
            started = time.monotonic()
            lines = self._clean_lines(part)
            page.add({**lines, "seconds": [(time.monotonic() - started) / len(part)] * len(part)})
            done += len(part)
            self.notify(f"{self.name} clean", done, len(rows), {})
        lines = page.read()
        # a process with more companions than images has none
        shares = zip(lines.get("row", []), lines.get("right_chosen", []), strict=True)
        right = {int(str(row)) for row, share in shares if share}
        return [row for row in rows if row in right and row not in self.fallen]

    @property
    def clean_seconds(self) -> float:
        """What the clean pass has taken so far, over all ranks and restarts."""
        return sum(float(str(seconds)) for seconds in self.journal.page("clean").read().get("seconds", []))

    def _clean_lines(self, rows: list[int]) -> dict[str, list[object]]:
        at = torch.tensor(rows)
        label_B, x = self.images.labels[at], self.images.images(at)
        z_BK = logits(self.model, x)
        if z_BK.ndim != 2 or len(z_BK) != len(x) or int(label_B.max()) >= z_BK.shape[1] or int(label_B.min()) < 0:
            raise UsageError(
                f"the model returns outputs of shape {list(z_BK.shape)} for {len(x)} images, the data has labels from "
                f"{int(label_B.min())} to {int(label_B.max())}. Is it the model for this data set?"
            )
        if bad := int((~z_BK.isfinite()).any(1).sum()):
            raise UsageError(f"the model returned NaN or infinite logits for {bad} of {len(x)} clean images.")
        count = min(max((walk.targets for walk in self._walks()), default=0), z_BK.shape[1] - 1)
        right = (z_BK.argmax(1) == label_B).float().tolist()
        chosen, scored = self._right_shares(x, label_B) if self.is_random else (right, right)
        return {
            "row": list(rows),
            "label": label_B.tolist(),
            "clean_prediction": z_BK.argmax(1).tolist(),
            "right_chosen": list(chosen),
            "right_scored": list(scored),
            "classes": [z_BK.shape[1]] * len(rows),
            "rivals": top_other_classes(z_BK, label_B, count).tolist(),
        }

    @property
    def is_random(self) -> bool:
        """Whether the attacks are those for models that answer at random."""
        return any(not walk.stops_at_success for walk in self._walks())

    def _right_shares(self, x: Tensor, label_B: Tensor) -> tuple[list[float], list[float]]:
        """How often a random model is right about each image, twice: choosing by one and scoring by it flatters."""
        answers = torch.stack([logits(self.model, x, seed=draw).argmax(1) == label_B for draw in range(2 * _DRAWS)])
        chosen, scored = (half.float().mean(0).tolist() for half in answers.chunk(2))
        return chosen, scored

    def _walks(self) -> Iterator[IterativeAttack]:
        return (entry.attack for entry in self.entries if isinstance(entry.attack, IterativeAttack))

    def _engine(self) -> Engine:
        """The engine as it suits the device and the images."""
        return self.engine.on(device_of(self.model), self.images.images(torch.tensor([0])).numel())

    @property
    def precision(self) -> str:
        """What searches are computed in: half only if there is a model for it, or the model is of that precision."""
        if self.search is not None:
            return str(self._engine().precision)
        return _NAMES.get(in_own_precision(self.model, torch.empty(0)).dtype, "float32")

    @property
    def batch(self) -> int:
        """Images in work at once."""
        rows = self._engine().batch_size
        assert rows is not None
        return rows

    # --------------------------------------------------------------- attacks

    def _strike(self, entry: Entry, standing: list[int]) -> list[int]:
        """One attack on the rows that stand; what is left of them."""
        page = self.journal.page(entry.name)
        known = page.read()
        tried = {int(str(row)) for row in known.get("row", [])}
        todo, book = [row for row in standing if row not in tried], Book(page, self._scores, self.settle)
        fell = sum(map(bool, known.get("success", [])))
        reporter = _Reporter(self, entry, len(standing), len(standing) - len(todo), fell)
        try:
            for row, finding in self._findings(entry, todo):
                self.keep(row, finding.x_adv, finding.success)
                book.add(row, finding)
                reporter.tell(finding)
        finally:  # an error or Ctrl-C costs nothing that was found
            book.close()
        lines = page.read()
        verdicts = zip(lines.get("row", []), lines.get("success", []), strict=True)
        fell_rows = {int(str(row)) for row, success in verdicts if success}
        return [row for row in standing if row not in fell_rows]

    def _scores(self, rows: list[int], found: list[Tensor]) -> Mapping[str, list[float]]:
        """How often a random model is right about what was found; nothing of other models."""
        if not self.is_random:
            return {}
        chosen, scored = self._right_shares(torch.stack(found), self.images.labels[torch.tensor(rows)])
        return {"right_chosen": chosen, "right_scored": scored}

    def _findings(self, entry: Entry, rows: list[int]) -> Iterator[tuple[int, ImageResult]]:
        if not rows:
            return
        # streams are numbered by the image's row, so another batch draws the same numbers
        seed = fold_seed(self.seed, *entry.name.encode())
        if not isinstance(entry.attack, IterativeAttack) or not getattr(entry.attack, "keep_best", True):
            yield from self._batch_by_batch(entry, rows, seed)
            return
        found: set[int] = set()
        while True:
            try:
                for row, finding in self._hunt(entry, entry.attack, [row for row in rows if row not in found], seed):
                    found.add(row)
                    yield row, finding
            except NonFiniteError:
                self._fall_back()
            else:
                return

    def _fall_back(self) -> None:
        """A search that left the range of its precision goes on in a wider one; called while the error is handled."""
        precision = self.precision
        if self.search is None or precision not in FALLBACK:
            raise
        wider = FALLBACK[precision]
        sentence = f"the search met numbers beyond the range of {precision} and went on in {wider}"
        self.doubt([Flag("search-fell-back", sentence, {})])
        self.engine = replace(self.engine, precision=wider)
        self.search = in_precision(self.model, wider) if wider != "float32" else None

    def _hunt(
        self, entry: Entry, walk: IterativeAttack, rows: list[int], seed: int
    ) -> Iterator[tuple[int, ImageResult]]:
        assert self.threat is not None
        device, at = device_of(self.model), torch.tensor(rows)
        engine = self._engine()
        lines = self.journal.page("clean").read()
        ranked = dict(zip(lines["row"], lines["rivals"], strict=True))
        classes = int(str(lines["classes"][0]))

        def fetch(places: Tensor) -> tuple[Tensor, Goal, Tensor]:
            chosen = at[places]
            x = self.images.images(chosen).to(device)
            nearest = torch.tensor([ranked[row] for row in chosen.tolist()], device=device)
            return x, self._goal(entry, chosen, x), nearest[:, : walk.num_branches(classes)]

        highest = int(self.images.labels[at].max())
        search, judge = Oracle(self.search or self.model, highest), Oracle(self.model, highest)
        pool = WorkQueue(RandomStreams.of(seed, at.to(device)), classes, fetch)
        flags: list[Flag] = []
        with isolated(self.model, seed, device):
            for findings in engine.run(walk, search, pool, self.threat, judge, flags):
                for finding in findings:
                    yield rows[finding.index], finding
        self.doubt(flags)

    def _batch_by_batch(self, entry: Entry, rows: list[int], seed: int) -> Iterator[tuple[int, ImageResult]]:
        """For attacks that are not told step by step."""
        threat, device = self.threat, device_of(self.model)
        assert threat is not None

        def run_attack(at: Tensor) -> AttackResult:
            x = self.images.images(at).to(device)
            return entry.attack(self.model, x, self._goal(entry, at, x), threat, seed=seed, index_B=at)

        for part, result in halving(rows, self.batch, run_attack):
            for place, row in enumerate(part):
                yield (
                    row,
                    ImageResult(
                        index=place,
                        success=bool(result.success[place]),
                        x_adv=result.x_adv[place].cpu().clone(),  # a view would keep the batch alive
                        prediction=int(result.prediction[place]),
                        distance=float(result.distance[place]),
                        forwards=result.forwards / len(part),
                        backwards=result.backwards / len(part),
                        zero_gradients=result.zero_gradients / len(part),
                        rejected=0,
                        seconds=result.seconds / len(part),
                    ),
                )

    def _goal(self, entry: Entry, rows: Tensor, x: Tensor) -> Goal:
        label_B = self.images.labels[rows].to(x.device)
        if entry.loss is kl_divergence:
            return Diverge(logits(self.model, x).to(x.device))
        if entry.target is None:
            return Untargeted(label_B, entry.loss)
        return Targeted(entry.target(logits(self.model, x)).to(x.device), entry.loss)


def halving(rows: list[int], size: int, work: Callable[[Tensor], Result]) -> Iterator[tuple[list[int], Result]]:
    """`size` rows at a time and what `work` makes of them; half as many from where they do not fit into memory."""
    done = 0
    while part := rows[done : done + size]:
        try:
            result = work(torch.tensor(part))
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise UsageError("out of memory with a single image. Use a smaller model or another device.") from None
            size = len(part) // 2
        else:
            yield part, result
            done += len(part)
            continue
        torch.cuda.empty_cache()  # behind the handler, which keeps what the failed try had made


@torch.no_grad()
def logits(model: nn.Module, x: Tensor, *, seed: int = 0) -> Tensor:
    """The model's answers in float32, on the CPU; a batch that does not fit is cut in two."""
    device = device_of(model)
    try:
        with isolated(model, seed, device), torch.autocast(device.type, enabled=False):
            return as_logits(model(in_own_precision(model, x.to(device)))).float().cpu()
    except torch.OutOfMemoryError:
        if len(x) == 1:
            raise UsageError("out of memory with a single image. Use a smaller model or another device.") from None
        torch.cuda.empty_cache()
    half = len(x) // 2
    return torch.cat([logits(model, x[:half], seed=seed), logits(model, x[half:], seed=seed)])


@dataclass(slots=True)
class _Reporter:
    """Says how far one attack has come."""

    cascade: Cascade
    entry: Entry
    total: int
    done: int
    fell: int

    def tell(self, finding: ImageResult) -> None:
        self.done, self.fell = self.done + 1, self.fell + finding.success
        self.cascade.notify(f"{self.cascade.name} {self.entry.name}", self.done, self.total, {"fell": self.fell})


def _parts(rows: list[int], size: int) -> Iterator[list[int]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _evidence(text: object) -> dict[str, float]:
    """The evidence of a flag as `Cascade.doubt` wrote it down, in a file that may be damaged since."""
    try:
        evidence = parse_json(str(text))
    except ValueError as error:
        raise UsageError(f"the flags in the run folder are damaged ({error}). Evaluate into a new --run.") from error
    if not isinstance(evidence, dict):
        raise UsageError(f"the flags in the run folder are damaged ({text!r:.60}). Evaluate into a new --run.")
    return evidence
