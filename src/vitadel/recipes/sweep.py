"""Sweeps: a recipe trained for every combination of some settings, with the results in one table.

folder/manifest.json            which sweep this is
folder/<combination>/           a training run like any other
folder/<combination>/test/      its evaluation, if the sweep has a suite
folder/table.json               one row per combination: a `vitadel.runs.schema.SweepRecord`
"""

import ast
import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import torch

from vitadel import data, models
from vitadel.core.device import device_name
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.files import write_json
from vitadel.core.progress import DeferredProgress, ProgressCallback, prefixed, silent
from vitadel.core.settings import split_assignment
from vitadel.core.stats import Accuracy
from vitadel.evaluate import AttackSuite
from vitadel.evaluate.suites.base import threat_needed
from vitadel.recipes.augmentation_sets import AUGMENTATION_SETS
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import Recipe
from vitadel.recipes.runner import TRAINING_PACKAGES, train_recipe
from vitadel.runs import Run, code_hashes, describe, fingerprint
from vitadel.runs.manifest import differences
from vitadel.runs.schema import (
    BestCombinations,
    CombinationRecord,
    HoldoutScores,
    PublishedScores,
    PublishedTable,
    SuiteRecord,
    SweepRecord,
    TestScores,
)
from vitadel.threats import Threat, check_size
from vitadel.train import Mixing, PILAugment, launch_ranks

# what decides which combination is best: the first of these that was measured. Test images come last: the best of
# many by them would look better than it is
_MEASURES = (("holdout", "robust"), ("holdout", "clean"), ("test", "robust"), ("test", "clean"))
# what training writes into the best checkpoint
_SELECTED = re.compile(r"step (?P<step>\d+), hold-out (?P<scores>\{[^{}]*\})")
# of the name of a folder: file systems take 255 bytes
_LONGEST = 120
# the base of the sixteen sets: Debenedetti 2022, section 4.1.6
_JITTER = 0.4

# evaluates the run folder of a combination
Evaluate = Callable[[Path, ProgressCallback], Sequence[SuiteRecord]]


def _augmented(recipe: Recipe, name: str) -> Recipe:
    """One of Debenedetti's sixteen sets, on top of the recipe's own flips, crops and color jitter."""
    if name not in AUGMENTATION_SETS:
        raise unknown_name_error("set of augmentations", name, AUGMENTATION_SETS)
    chosen = AUGMENTATION_SETS[name]
    mixing = Mixing(mixup=chosen.mixup, cutmix=chosen.cutmix) if chosen.mixup or chosen.cutmix else None
    # timm leaves the jitter out where there is RandAugment, and the published runs used timm
    pil = recipe.plan.pil_augment or PILAugment(resized_crop=False)
    jitter = 0.0 if chosen.rand_augment else pil.color_jitter or _JITTER
    pil = replace(pil, rand_augment=chosen.rand_augment, erase=chosen.erase, color_jitter=jitter)
    return replace(recipe, plan=replace(recipe.plan, pil_augment=pil, mixing=mixing))


def _eps_warmed_up(recipe: Recipe, epochs: str) -> Recipe:
    """Papers count the epochs in which the radius grows; recipes say which share of training that is."""
    return override(recipe, [f"objective.eps_warmup={epochs}/{recipe.plan.total_epochs}"])


# axes with their own names: the setting they stand for, or the change that a value makes
AXES: dict[str, str | Callable[[Recipe, str], Recipe]] = {
    "architecture": "model.start",
    "augmentation": _augmented,
    "beta": "objective.beta",
    "eps-warmup": "objective.eps_warmup",
    "eps-warmup-epochs": _eps_warmed_up,
    "lambda": "objective.weight",
    "mix": "synthetic.share",
    "smoothing": "objective.smoothing",
    "weight-decay": "plan.optimizer.weight_decay",
}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an axis.

    Attributes:
        label: Its name in the table.
        settings: The settings that it makes.
        change: What it changes in the recipe beyond settings.
    """

    label: str
    settings: tuple[str, ...] = ()
    change: Callable[[Recipe], Recipe] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """What a sweep varies, and its values."""

    name: str
    values: tuple[Value, ...]

    @classmethod
    def read(cls, text: str) -> "Axis":
        """Parse an axis such as `weight-decay=0.05,0.5` or `plan.optimizer.weight_decay=0.05,0.5`."""
        example = "path=value,value such as plan.epochs=10,20"
        name, listed = split_assignment(text, "--axis", example)
        labels = listed.split(",")
        if not all(labels):
            raise UsageError(f"cannot read --axis {text!r}. Write {example}.")
        if "." not in name and name not in AXES and name not in {f.name for f in fields(Recipe)}:
            raise unknown_name_error("axis", name, AXES)
        return cls.of(name, labels)

    @classmethod
    def of(cls, name: str, labels: Sequence[str]) -> "Axis":
        """A named axis, or the setting of that path, over values written as text."""
        meaning = AXES.get(name, name)
        if isinstance(meaning, str):
            return cls(name, tuple(Value(label, (f"{meaning}={label}",)) for label in labels))
        return cls(name, tuple(Value(label, change=partial(_changed, meaning, label)) for label in labels))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(value.label for value in self.values)


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """Accuracies in percent as a paper prints them; `standard_clean` is that without adversarial training."""

    clean: float | None
    robust: float | None
    standard_clean: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedSweep:
    """A table of a paper as a sweep.

    Attributes:
        source: The paper and the number of the table.
        about: What is varied.
        recipe: The recipe that it varies.
        axes: What is varied in it.
        threat: The threat model of the robust accuracies.
        attack: The attack of the robust accuracies.
        rows: The accuracies, by the labels of the axes.
        settings: Where all runs of the table differ from the recipe.
        note: What else differs.
    """

    source: str
    about: str
    recipe: str
    axes: tuple[Axis, ...]
    threat: str
    attack: str
    rows: Mapping[tuple[str, ...], PublishedAccuracy]
    settings: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination: the name of its folder, the labels of its values, and the recipe with them."""

    name: str
    labels: tuple[str, ...]
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Sweep:
    """A recipe and what is varied in it.

    Attributes:
        recipe: What is trained.
        axes: What is varied.
        settings: What is changed in all combinations.
        data: A data set in place of the recipe's.
        suite: Evaluates every combination on the test images; without one, there are hold-out scores only.
        threat: The threat model of the suite.
        published: The table that the sweep repeats.
    """

    recipe: Recipe
    axes: tuple[Axis, ...]
    settings: tuple[str, ...] = ()
    data: str | None = None
    suite: AttackSuite | None = None
    threat: Threat | None = None
    published: PublishedSweep | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.axes:
            raise UsageError("a sweep needs something to vary, got no axis. Write --axis path=value,value.")
        if twice := [name for name, times in Counter(axis.name for axis in self.axes).items() if times > 1]:
            raise UsageError(f"the axis {twice[0]!r} is given twice. Write all its values with commas, once.")
        if self.suite is not None and self.suite.attacks and self.threat is None:
            raise threat_needed(self.suite.name)

    def combinations(self, notify: ProgressCallback = silent) -> tuple[Combination, ...]:
        """All combinations, the last axis changing fastest; values that cannot be are refused before any training."""
        products = list(itertools.product(*(axis.values for axis in self.axes)))
        labels = [tuple(value.label for value in values) for values in products]
        names = _names([axis.name for axis in self.axes], labels)
        recipes = [self._recipe(values, notify) for values in products]
        combinations = tuple(itertools.starmap(Combination, zip(names, labels, recipes, strict=True)))
        same: dict[str, str] = {}
        for one in combinations:
            if (earlier := same.setdefault(fingerprint(one.recipe), one.name)) != one.name:
                raise UsageError(f"{earlier} and {one.name} are one and the same recipe. Leave one out.")
        return combinations

    def _recipe(self, values: Sequence[Value], notify: ProgressCallback) -> Recipe:
        """All settings at once, as values are checked against each other; then the changes beyond settings."""
        settings = [*self.settings, *(setting for value in values for setting in value.settings)]
        recipe = override(self.recipe, settings, notify=notify)
        for value in values:
            recipe = value.change(recipe) if value.change else recipe
        return recipe

    def refuse(self, combinations: Sequence[Combination]) -> None:
        """Raise what makes every try of a combination fail, before any training and before the folder is claimed."""
        for one in combinations:
            data.parse_spec(self.data or one.recipe.data)
            side = data.parse_preprocess(one.recipe.preprocess).size
            for radius in self.suite.radii(self.threat) if self.suite else ():
                if radius is not None:
                    check_size(radius, (3, side, side))

    def parts(self, combinations: Sequence[Combination]) -> dict[str, object]:
        """What the manifest records; under `combinations`, what each changes in the recipe."""
        plain = describe(self.recipe)
        return {
            "recipe": self.recipe,
            "settings": self.settings,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "data": self.data,
            "suite": self.suite,
            "threat": self.threat,
            "combinations": {one.name: differences(plain, describe(one.recipe)) for one in combinations},
            # finished combinations are skipped, so all must be of the same code
            "code": code_hashes(*TRAINING_PACKAGES),
        }

    def record(self, rows: Sequence[CombinationRecord]) -> SweepRecord:
        """The table with these rows."""
        published = self.published
        return SweepRecord(
            recipe=self.recipe.name,
            axes=[axis.name for axis in self.axes],
            suite=self.suite.name if self.suite else None,
            threat=str(self.threat) if self.suite and self.suite.attacks and self.threat else None,
            published=PublishedTable(published.source, published.attack, published.note) if published else None,
            best=best_combinations(rows),
            rows=rows,
        )


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    evaluate: Evaluate | None = None,
    notify: ProgressCallback = silent,
    command: str | None = None,
) -> SweepRecord:
    """Train every combination into `folder`.

    Interrupted and called again, finished combinations are skipped and the interrupted one resumes. A combination that
    fails is tried again then; the others are trained nevertheless.

    Args:
        sweep: What to train.
        folder: The run folder; one of another sweep is refused.
        evaluate: Evaluates the run folder of a combination with the sweep's suite; needed if the sweep has one.
        notify: Reports progress.
        command: What the manifest records as the command.

    Returns:
        The table, as it is also written to `table.json`.

    Raises:
        UsageError: If a combination cannot be trained, before any training, or the folder belongs to another run.
    """
    assert evaluate is not None or sweep.suite is None, "a sweep with a suite needs a way to evaluate"
    deferred = DeferredProgress(notify)
    combinations = sweep.combinations(deferred)
    sweep.refuse(combinations)
    parts = sweep.parts(combinations)
    run = Run.claim(folder, "sweep", parts, device=device_name(), ranks=launch_ranks(), command=command)
    deferred.release()
    rows: list[CombinationRecord] = []
    for number, one in enumerate(combinations, 1):
        reports = prefixed(notify, f"{number}/{len(combinations)} {one.name}: ")
        rows.append(_train_and_evaluate(sweep, one, run, evaluate, reports, command))
        if Ranks.of_launch().rank == 0:
            write_json(folder / "table.json", sweep.record(rows).to_json())
    return sweep.record(rows)


def _train_and_evaluate(
    sweep: Sweep, one: Combination, run: Run, evaluate: Evaluate | None, notify: ProgressCallback, command: str | None
) -> CombinationRecord:
    folder, reason, holdout, test = run.folder / one.name, None, None, None
    try:
        if not _is_finished(folder):
            train_recipe(one.recipe, folder, data_spec=sweep.data, notify=notify, command=command)
        holdout = holdout_scores(Run.open(folder)) if _is_finished(folder) else None
        test = _test_scores(evaluate(folder, notify), sweep.threat) if evaluate and sweep.suite else None
    except (UsageError, torch.OutOfMemoryError) as error:
        reason = str(error).partition("\n")[0]
        if Ranks.of_launch().rank == 0:
            run.log("failed", combination=one.name, reason=reason)
    published = sweep.published.rows.get(one.labels) if sweep.published else None
    return CombinationRecord(
        name=one.name,
        values=dict(zip((axis.name for axis in sweep.axes), one.labels, strict=True)),
        state="failed" if reason else "done",
        reason=reason,
        holdout=holdout,
        test=test,
        published=PublishedScores(published.clean, published.robust) if published else None,
    )


def _is_finished(folder: Path) -> bool:
    return (folder / "checkpoints" / "final.safetensors").exists()


def holdout_scores(run: Run) -> HoldoutScores | None:
    """The scores of the checkpoint that was kept, as it records them; None without a hold-out.

    It may be of an update that was undone after a non-finite loss: its weights stay the best.

    Raises:
        UsageError: If the checkpoint is missing.
    """
    best, entries = run.checkpoints / "best.safetensors", run.read_log("holdout", every=True)
    if not best.exists():
        if entries:
            raise UsageError(f"{best} is missing. Restore it, or delete {run.folder} to train again.")
        return None
    if selected := _SELECTED.fullmatch(models.read_tensors(best)[1].get("vitadel.selected", "")):
        scores: Mapping[str, float] = ast.literal_eval(selected["scores"])
        return HoldoutScores(int(selected["step"]), scores.get("clean"), scores.get("robust"))
    if not entries:
        return None
    kept = max((entry.values for entry in entries), key=_selected_by)
    return HoldoutScores(kept["step"], kept.get("clean"), kept.get("robust"))


def _selected_by(scores: Mapping[str, float]) -> float:
    """A score made of several, accuracy under attack, or clean accuracy: the first that there is."""
    return next((scores[key] for key in ("score", "robust", "clean") if scores.get(key) is not None), 0.0)


def _test_scores(records: Sequence[SuiteRecord], threat: Threat | None) -> TestScores:
    """The scores at the radius of the sweep, if a suite has several."""
    eps = None if threat is None else threat.eps
    at_eps = (one for one in records if eps and one.threat and math.isclose(one.threat.eps or 0.0, eps))
    record = next(at_eps, records[-1])
    return TestScores(record.name, record.n, record.clean, record.robust, [flag.code for flag in record.flags])


def best_combinations(rows: Sequence[CombinationRecord]) -> BestCombinations | None:
    """The combinations with the highest accuracy, measured on the hold-out if there is one, else on the test images."""
    for part, kind in _MEASURES:
        measured = {row.name: value for row in rows if (value := _measure(row, part, kind)) is not None}
        if measured:
            highest = max(measured.values())
            return BestCombinations(f"{part}.{kind}", [name for name, value in measured.items() if value == highest])
    return None


def _measure(row: CombinationRecord, part: str, kind: str) -> float | None:
    value: Accuracy | float | None = getattr(getattr(row, part), kind, None)
    return value.accuracy if isinstance(value, Accuracy) else value


def _changed(meaning: Callable[[Recipe, str], Recipe], label: str, recipe: Recipe) -> Recipe:
    return meaning(recipe, label)


def _names(axes: Sequence[str], labels: Sequence[tuple[str, ...]]) -> list[str]:
    """A folder's name per combination: the last words of the paths, unless that gives two of them the same name."""
    last = [axis.rpartition(".")[2] for axis in axes]
    short = axes if len(set(last)) < len(last) else last
    long = [",".join(f"{axis}={label}" for axis, label in zip(short, row, strict=True)) for row in labels]
    safe = ["".join(sign if sign.isalnum() or sign in "-_=.,+" else "-" for sign in name) for name in long]
    times = Counter(safe)
    return [
        plain if times[plain] == 1 and len(plain) <= _LONGEST else f"{plain[:_LONGEST]}-{zlib.crc32(name.encode()):08x}"
        for plain, name in zip(safe, long, strict=True)
    ]
