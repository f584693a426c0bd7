"""Every combination of some settings: trained one after the other, put side by side in one table.

folder/manifest.json            which sweep this is
folder/<combination>/           a training run like any other
folder/<combination>/test/      its evaluation, if a suite was asked for
folder/table.json               one row per combination
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
from vitadel.core.errors import UsageError, unknown
from vitadel.core.files import write_json
from vitadel.core.progress import Notify, prefixed, silent
from vitadel.core.settings import split_assignment
from vitadel.evaluate import Suite
from vitadel.recipes.augmentation_sets import AUGMENTATION_SETS
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import Recipe
from vitadel.recipes.runner import TRAINING_PACKAGES, train_recipe
from vitadel.runs import LogEntry, Run, code_hashes, describe, fingerprint
from vitadel.runs.manifest import differences
from vitadel.threats import Threat, check_size, spell
from vitadel.train import Mixing, PILAugment, launch_ranks

# what decides which combination is best: the first of these that was measured. Test images come last: the best of
# many by them would look better than it is
_MEASURES = (("holdout", "robust"), ("holdout", "clean"), ("test", "robust"), ("test", "clean"))
# what training writes into the best checkpoint
_SELECTED = re.compile(r"step (?P<step>\d+), hold-out (?P<scores>\{[^{}]*\})")
# file systems take 255 bytes; beyond this nobody reads on
_LONGEST = 120
# the base of the sixteen sets: thesis 4.1.6
_JITTER = 0.4

# evaluates the run folder of a combination and returns the summaries
Evaluate = Callable[[Path, Notify], Sequence[Mapping[str, object]]]


def _augmented(recipe: Recipe, name: str) -> Recipe:
    """One of the thesis's sixteen sets, on top of the recipe's own flips, crops and color jitter."""
    if name not in AUGMENTATION_SETS:
        raise unknown("set of augmentations", name, AUGMENTATION_SETS)
    chosen = AUGMENTATION_SETS[name]
    mixing = Mixing(mixup=chosen.mixup, cutmix=chosen.cutmix) if chosen.mixup or chosen.cutmix else None
    # timm leaves the jitter out where there is RandAugment, and the thesis trained with timm
    host = recipe.plan.pil_augment or PILAugment(resized_crop=False)
    jitter = 0.0 if chosen.rand_augment else host.color_jitter or _JITTER
    host = replace(host, rand_augment=chosen.rand_augment, erase=chosen.erase, color_jitter=jitter)
    return replace(recipe, plan=replace(recipe.plan, pil_augment=host, mixing=mixing))


def _eps_warmed_up(recipe: Recipe, epochs: str) -> Recipe:
    """Papers count the epochs in which the radius grows; recipes say which share of training that is."""
    return override(recipe, [f"objective.eps_warmup={epochs}/{recipe.plan.all_epochs}"])


# axes with a name of their own: the setting they stand for, or the change that a value makes
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
    """One value of an axis: what the table calls it, the settings it stands for, and what no setting can say."""

    label: str
    settings: tuple[str, ...] = ()
    change: Callable[[Recipe], Recipe] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied, and over which values."""

    name: str
    values: tuple[Value, ...]

    @classmethod
    def read(cls, text: str) -> "Axis":
        """The axis that `weight-decay=0.05,0.5` or `plan.optimizer.weight_decay=0.05,0.5` stands for."""
        example = "path=value,value such as plan.epochs=10,20"
        name, listed = split_assignment(text, "--axis", example)
        labels = listed.split(",")
        if not all(labels):
            raise UsageError(f"cannot read --axis {text!r}. Write {example}.")
        if "." not in name and name not in AXES and name not in {f.name for f in fields(Recipe)}:
            raise unknown("axis", name, AXES)
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
class Numbers:
    """Percentages as a paper prints them; `standard_clean` is that of the same setting without an adversary."""

    clean: float | None
    robust: float | None
    standard_clean: float | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A table of a paper as a sweep: the recipe it varies, the axes, and the numbers it gives for their labels.

    `settings` are where the table's runs differ from the recipe in all rows; `note` says what else differs.
    """

    source: str
    about: str
    recipe: str
    axes: tuple[Axis, ...]
    threat: str
    attack: str
    rows: Mapping[tuple[str, ...], Numbers]
    settings: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One combination: the name of its folder, its values' labels, and the recipe they lead to."""

    name: str
    labels: tuple[str, ...]
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Sweep:
    """A recipe, what is varied in it, and how the outcomes are judged; without a suite only by the hold-out."""

    recipe: Recipe
    axes: tuple[Axis, ...]
    settings: tuple[str, ...] = ()
    data: str | None = None
    suite: Suite | None = None
    threat: Threat | None = None
    published: Published | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.axes:
            raise UsageError("a sweep needs something to vary, got no axis. Write --axis path=value,value.")
        if twice := [name for name, times in Counter(axis.name for axis in self.axes).items() if times > 1]:
            raise UsageError(f"the axis {twice[0]!r} is given twice. Write all its values with commas, once.")
        if self.suite is not None and self.suite.entries and self.threat is None:
            raise UsageError(f"suite {self.suite.name!r} attacks, so it needs a threat. Write --threat linf:8/255.")

    def members(self, notify: Notify = silent) -> tuple[Member, ...]:
        """All combinations, the last axis changing fastest; values that cannot be are refused before any training."""
        combinations = list(itertools.product(*(axis.values for axis in self.axes)))
        labels = [tuple(value.label for value in values) for values in combinations]
        names = _names([axis.name for axis in self.axes], labels)
        recipes = [self._recipe(values, notify) for values in combinations]
        members = tuple(itertools.starmap(Member, zip(names, labels, recipes, strict=True)))
        same: dict[str, str] = {}
        for member in members:
            if (earlier := same.setdefault(fingerprint(member.recipe), member.name)) != member.name:
                raise UsageError(f"{earlier} and {member.name} are one and the same recipe. Leave one out.")
        return members

    def _recipe(self, values: Sequence[Value], notify: Notify) -> Recipe:
        """All settings at once, as values are checked against each other; then what no setting can say."""
        settings = [*self.settings, *(setting for value in values for setting in value.settings)]
        recipe = override(self.recipe, settings, notify=notify)
        for value in values:
            recipe = value.change(recipe) if value.change else recipe
        return recipe

    def refuse(self, members: Sequence[Member]) -> None:
        """Raise what makes every try of a combination fail, before any training and before the folder is taken."""
        for member in members:
            data.parse_spec(self.data or member.recipe.data)
            side = data.parse_preprocess(member.recipe.preprocess).size
            for radius in self.suite.radii(self.threat) if self.suite else ():
                if radius is not None:
                    check_size(radius, (3, side, side))

    def parts(self, members: Sequence[Member]) -> dict[str, object]:
        """What makes this sweep another than the next; under `combinations`, what each changes in the recipe."""
        plain = describe(self.recipe)
        return {
            "recipe": self.recipe,
            "settings": self.settings,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "data": self.data,
            "suite": self.suite,
            "threat": self.threat,
            "combinations": {member.name: differences(plain, describe(member.recipe)) for member in members},
            # finished combinations are passed over, so all must be of the same code
            "code": code_hashes(*TRAINING_PACKAGES),
        }


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    evaluate: Evaluate | None = None,
    notify: Notify = silent,
    command: str | None = None,
) -> dict[str, object]:
    """Train every combination into `folder` and return what is also written to its table.json.

    Interrupted and called again, finished combinations are skipped and the interrupted one resumes. A combination that
    fails is tried again then; the others are trained nevertheless.

    Args:
        sweep: What to train.
        folder: The run folder; one of another sweep is refused.
        evaluate: Evaluates the run folder of a combination with the sweep's suite and returns the summaries; needed if
            the sweep has one.
        notify: Told how far the work is.
        command: What the manifest records as the command.
    """
    assert evaluate is not None or sweep.suite is None, "a sweep with a suite needs a way to evaluate"
    members = sweep.members(notify)
    sweep.refuse(members)
    run = Run.claim(folder, "sweep", sweep.parts(members), device=device_name(), ranks=launch_ranks(), command=command)
    table = _table(sweep, [])
    for number, member in enumerate(members, 1):
        reports = prefixed(notify, f"{number}/{len(members)} {member.name}: ")
        rows = [*_rows(table), _row(sweep, member, run, evaluate, reports, command)]
        table = _table(sweep, rows)
        if Ranks.of_launch().rank == 0:
            write_json(folder / "table.json", table)
    return table


def failures(table: Mapping[str, object]) -> dict[str, str]:
    """The combinations that failed, and why."""
    return {str(row["name"]): str(row["reason"]) for row in _rows(table) if row["state"] == "failed"}


def _changed(meaning: Callable[[Recipe, str], Recipe], label: str, recipe: Recipe) -> Recipe:
    return meaning(recipe, label)


def _names(axes: Sequence[str], labels: Sequence[tuple[str, ...]]) -> list[str]:
    """A folder's name per combination: the last words of the paths, unless that makes two of them alike."""
    last = [axis.rpartition(".")[2] for axis in axes]
    short = axes if len(set(last)) < len(last) else last
    long = [",".join(f"{axis}={label}" for axis, label in zip(short, row, strict=True)) for row in labels]
    safe = ["".join(sign if sign.isalnum() or sign in "-_=.,+" else "-" for sign in name) for name in long]
    times = Counter(safe)
    return [
        plain if times[plain] == 1 and len(plain) <= _LONGEST else f"{plain[:_LONGEST]}-{zlib.crc32(name.encode()):08x}"
        for plain, name in zip(safe, long, strict=True)
    ]


def _row(
    sweep: Sweep, member: Member, run: Run, evaluate: Evaluate | None, notify: Notify, command: str | None
) -> dict[str, object]:
    folder, reason, holdout, test = run.folder / member.name, None, None, None
    try:
        if not _finished(folder):
            train_recipe(member.recipe, folder, data_spec=sweep.data, notify=notify, command=command)
        holdout = _best_holdout(Run.open(folder)) if _finished(folder) else None
        test = _test_numbers(evaluate(folder, notify), sweep.threat) if evaluate and sweep.suite else None
    except (UsageError, torch.OutOfMemoryError) as error:
        reason = str(error).partition("\n")[0]
        if Ranks.of_launch().rank == 0:
            run.log("failed", combination=member.name, reason=reason)
    published = sweep.published.rows.get(member.labels) if sweep.published else None
    return {
        "name": member.name,
        "values": dict(zip((axis.name for axis in sweep.axes), member.labels, strict=True)),
        "state": "failed" if reason else "done",
        "reason": reason,
        "holdout": holdout,
        "test": test,
        "published": {"clean": published.clean, "robust": published.robust} if published else None,
    }


def _finished(folder: Path) -> bool:
    return (folder / "checkpoints" / "final.safetensors").exists()


def _test_numbers(summaries: Sequence[Mapping[str, object]], threat: Threat | None) -> dict[str, object]:
    """Of several radii, the numbers of the one that was asked for."""
    summary = next((one for one in summaries if _is_at(one["threat"], threat)), summaries[-1])
    flags = summary["flags"]
    assert isinstance(flags, list)
    about = {key: summary[key] for key in ("name", "n", "clean", "robust")}
    return {**about, "flags": [flag["code"] for flag in flags]}


def _is_at(told: object, threat: Threat | None) -> bool:
    return isinstance(told, dict) and threat is not None and math.isclose(told["eps"], threat.eps)


def _best_holdout(run: Run) -> dict[str, object] | None:
    """The scores of the checkpoint that was kept, as it says itself; None without a hold-out.

    It may be of an update that a broken loss undid later: its weights stay the best.
    """
    best, entries = run.checkpoints / "best.safetensors", run.read_log("holdout", every=True)
    if not best.exists():
        if entries:
            raise UsageError(f"{best} is missing. Restore it, or delete {run.folder} to train again.")
        return None
    selected = _SELECTED.fullmatch(models.read_tensors(best)[1].get("vitadel.selected", ""))
    if selected:
        scores: dict[str, object] = ast.literal_eval(selected["scores"])
        return {"step": int(selected["step"]), **{key: scores.get(key) for key in ("clean", "robust")}}
    kept = max(entries, key=_selected_by, default=None)
    return None if kept is None else {key: kept.values.get(key) for key in ("step", "clean", "robust")}


def _selected_by(entry: LogEntry) -> float:
    """A score made of several, accuracy under attack, or clean accuracy: the first that there is."""
    return next((entry.numbers[key] for key in ("score", "robust", "clean") if key in entry.numbers), 0.0)


def _table(sweep: Sweep, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    told = sweep.published
    return {
        "recipe": sweep.recipe.name,
        "axes": [axis.name for axis in sweep.axes],
        "suite": sweep.suite.name if sweep.suite else None,
        "threat": spell(sweep.threat) if sweep.suite and sweep.suite.entries and sweep.threat else None,
        "published": {"source": told.source, "attack": told.attack, "note": told.note} if told else None,
        "best": _best(rows),
        "rows": list(rows),
    }


def _best(rows: Sequence[Mapping[str, object]]) -> dict[str, object] | None:
    """The rows with the highest accuracy, of the kind that tells most."""
    for part, kind in _MEASURES:
        measured = {str(row["name"]): number for row in rows if (number := _measure(row, part, kind)) is not None}
        if measured:
            names = [name for name, number in measured.items() if number == max(measured.values())]
            return {"measure": f"{part}.{kind}", "rows": names}
    return None


def _measure(row: Mapping[str, object], part: str, kind: str) -> float | None:
    told = row[part]
    value = told.get(kind) if isinstance(told, dict) else None
    number = value["accuracy"] if isinstance(value, dict) else value
    return float(number) if isinstance(number, int | float) else None


def _rows(table: Mapping[str, object]) -> list[Mapping[str, object]]:
    rows = table["rows"]
    assert isinstance(rows, list)
    return rows
