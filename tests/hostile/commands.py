"""Short versions of the long commands: their models and arguments."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cases import Bug, Case
from results import complaint, first_difference, result_of
from server import CHANGES, Order, Server

# models that commands attack and study, relative to the folder that a command runs in
_SHARED = "../shared"
TRAINED, LARGE, FROZEN, ADAPTED = (f"{_SHARED}/{name}" for name in ("trained", "large", "frozen", "adapted"))


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(f"--set={setting}" for setting in settings)


_SHORT = ("plan.epochs=2", "plan.warmup_epochs=1", "plan.checkpoint_every_steps=2", "plan.log_every_steps=1")
_BASES: dict[str, tuple[str, ...]] = {
    TRAINED: ("train", "digits-standard", "--data=digits[:900]", *_set("plan.epochs=3")),
    LARGE: (
        *("train", "digits-standard", "--data=digits[:300]"),
        *_set(
            "plan.epochs=2", "plan.warmup_epochs=1", "model.image_size=16", "model.patch_size=4", "preprocess=squash:16"
        ),
    ),
    FROZEN: ("train", "digits-class-token", "--data=digits[:300]", *_set("plan.epochs=2", "plan.warmup_epochs=1")),
    ADAPTED: (
        *("train", "digits-tora", "--data=digits[:160]"),
        *_set("plan.epochs=2", "plan.warmup_epochs=1", f"model.start={FROZEN}"),
    ),
}


@dataclass(frozen=True)
class Long:
    """A command to interrupt, without its --run, and the changes that make it short."""

    words: tuple[str, ...]
    prepare: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.words[0]

    def order(self, folder: Path, batch: int | None = None) -> Order:
        """Its arguments to run it into `folder`/run; no result depends on the `batch`."""
        where = "--out=run" if self.kind == "demo" else "--run=run"
        more = (f"--batch={batch}",) if batch and self.kind in ("evaluate", "attack", "analyze") else ()
        return Order((*self.words, where, *more, "--json"), folder, prepare=self.prepare)


def _evaluate(model: str, images: int, suite: str, *more: str) -> Long:
    words = ("evaluate", model, f"--data=digits[:{images}]", f"--suite={suite}", "--threat=linf:12/255", *more)
    return Long(words, ("small_tables",))


def _attack(attack: str, images: int, *more: str) -> Long:
    words = ("attack", TRAINED, f"--data=digits[:{images}]", f"--attack={attack}", *more)
    return Long(words, ("small_tables",))


def _analyze(study: str, images: int = 12, model: str = TRAINED) -> Long:
    return Long(("analyze", study, model, f"--data=digits[:{images}]"))


LONG: dict[str, Long] = {
    "train-adversarial": Long(("train", "digits-adversarial", "--data=digits[:160]", *_set(*_SHORT, "plan.ema=0.9"))),
    "train-mixed": Long(("train", "digits-standard", "--data=digits[:160]", *_set(*_SHORT, "plan.mixing.mixup=0.5"))),
    "train-aas": Long(("train", "digits-aas", "--data=digits[:96]", *_set(*_SHORT, "objective.period=1"))),
    "train-tora": Long(("train", "digits-tora", "--data=digits[:96]", *_set(*_SHORT, f"model.start={FROZEN}"))),
    "evaluate-quick": _evaluate(TRAINED, 40, "quick", "--keep-images"),
    "evaluate-curve": _evaluate(TRAINED, 24, "clean,curve", "--keep-images"),
    "evaluate-scaled": _evaluate(TRAINED, 24, "quick", "--scaling=0.1"),
    "evaluate-surveys": _evaluate(
        TRAINED, 24, "spatial:max_translation=0.3,translations=3,rotations=3,gray-level,natural-adversarial"
    ),
    "evaluate-corruptions": _evaluate(LARGE, 16, "corruptions:severities=1+4"),
    "evaluate-transfer": _evaluate(TRAINED, 24, f"transfer:sources={TRAINED}+{FROZEN},steps=2"),
    "attack-apgd": _attack("apgd:steps=8,restarts=2", 24),
    "attack-fab": _attack("fab:steps=4", 16),
    "attack-square": _attack("square:queries=60", 24),
    "attack-pgd": _attack("pgd:steps=5,restarts=2", 24, "--keep-images", "--threat=l2:0.5"),
    "analyze-lesion": _analyze("lesion:draws=3", 40),
    "analyze-masking": _analyze("masking:steps=5,iterations=2+4,curve_steps=3,targets=2,queries=40,scaling=manual"),
    "analyze-saliency": _analyze("saliency:images=3,steps=3"),
    "analyze-convergence": _analyze("convergence:steps=0+2+4,restarts=2,images=12,slices=1,points=5"),
    "analyze-correlation": _analyze("correlation"),
    "analyze-restricted-attention": _analyze("restricted-attention"),
    "analyze-perturbations": _analyze("perturbations:images=3,steps=3"),
    "analyze-perturbation-semantics": _analyze(f"perturbation-semantics:classifiers={FROZEN},images=3,steps=3"),
    "analyze-feature-visualization": _analyze("feature-visualization:count=2,images=1,steps=4"),
    "analyze-tora-gates": _analyze("tora-gates:images=3", 12, ADAPTED),
    "sweep": Long(
        (
            *("sweep", "digits-adversarial", "--data=digits[:96]", "--axis=weight-decay=0.05,0.5", "--axis=seed=0,1"),
            *(*_set("plan.epochs=1", "plan.warmup_epochs=0"), "--suite=quick", "--threat=linf:12/255"),
        )
    ),
    "demo": Long(("demo",), ("small_demo", "small_tables")),
}


def make_shared(server: Server, folder: Path) -> None:
    """The models that the commands need, in `folder`/shared."""
    place = folder / "shared"
    place.mkdir()
    for name, words in _BASES.items():
        ended = server.run(Order((*words, f"--run={name}", "--json"), place))
        assert ended.code == 0, complaint(ended) or ended.err


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run: its folder, its result, its seconds and its file operations."""

    folder: Path
    result: dict[str, object]
    seconds: float
    operations: Mapping[str, int]

    @property
    def changes(self) -> int:
        """How often it changed its folder."""
        return sum(count for kind, count in self.operations.items() if kind in CHANGES)

    @property
    def size(self) -> int:
        """Bytes in its folder at the end."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


@dataclass
class References:
    """The uninterrupted results of the commands; computed at the first use."""

    server: Server
    folder: Path
    _known: dict[str, Reference] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, name: str) -> Reference:
        with self._lock:
            if name not in self._known:
                place = self.folder / f"reference-{name}"
                place.mkdir()
                ended = self.server.run(LONG[name].order(place))
                assert ended.code == 0, complaint(ended) or ended.err
                self._known[name] = Reference(place, result_of(place / "run"), ended.seconds, ended.operations)
            return self._known[name]


# the others count as 5; these take much longer
_WEIGHTS = {"demo": 1, "sweep": 3}


def pick(case: Case, leave_out: tuple[str, ...] = ()) -> str:
    """The name of a command, drawn by the case."""
    names = [name for name in LONG if name not in leave_out]
    return case.random.choices(names, [_WEIGHTS.get(name, 5) for name in names])[0]


def resume(server: Server, case: Case, long: Long, reference: Reference) -> None:
    """The same command once more, uninterrupted: it must end with the reference's result."""
    order = long.order(case.folder)
    case.step(*order.words)
    ended = server.run(order)
    if ended.code != 0 or ended.hung:
        raise Bug(f"{long.kind} does not go on: {complaint(ended) or ended.err.strip()[-300:]}")
    if difference := difference_in(case, reference):
        raise Bug(f"{long.kind} ends with another result: {difference}")


def difference_in(case: Case, reference: Reference, ignored: str = "") -> str | None:
    """Where the result of the case's run differs from the uninterrupted one; the file `ignored` is not compared."""
    expected, actual = (
        {name: value for name, value in result.items() if not ignored or not ignored.startswith(name)}
        for result in (reference.result, result_of(case.folder / "run"))
    )
    return first_difference(expected, actual)
