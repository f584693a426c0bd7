"""Sweeps: variations of a recipe, or several models, and their evaluations."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitadel import data
from vitadel.attacks.parsing import parse_scaling
from vitadel.core.errors import UsageError, spelled
from vitadel.core.files import LONGEST_NAME, hashed_name
from vitadel.core.progress import ProgressCallback, silent
from vitadel.evaluate import Suite, SuiteWithRadii
from vitadel.evaluate.context import threat_needed
from vitadel.recipes.axes import Axis, Value
from vitadel.recipes.columns import OWN_IMAGES, Column, TestImages
from vitadel.recipes.overrides import override
from vitadel.recipes.published import PublishedAccuracy, PublishedSweep
from vitadel.recipes.recipe import Recipe
from vitadel.recipes.runner import TRAINING_PACKAGES
from vitadel.recipes.small import START, SmallScale
from vitadel.runs import code_hashes, describe, fingerprint
from vitadel.runs.manifest import differences
from vitadel.threats import Threat, check_size, parse_threat


@dataclass(frozen=True, slots=True)
class Combination:
    """One row: its name and folder, the labels of its values, and what is evaluated.

    Args:
        name: Its name, unlike that of any other row.
        labels: The labels of its values.
        trained: The recipe with these values; None for an existing model.
        folder: The folder of its model, which rows that differ in their evaluation alone share.
        model: The existing model.
        head: The head that is evaluated.
        columns: What it is evaluated with.
        own_columns_of: The label of the value that the columns belong to; empty if they are those of the sweep.
    """

    name: str
    labels: tuple[str, ...]
    trained: Recipe | None
    folder: str
    model: str = ""
    head: str = ""
    columns: tuple[Column, ...] = ()
    own_columns_of: str = ""

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained."""
        assert self.trained is not None, "an existing model has no recipe"
        return self.trained


@dataclass(frozen=True, slots=True)
class Sweep:
    """Variations of a recipe, or several models, and their evaluations.

    Args:
        recipe: What is trained; None if all rows are existing models.
        axes: What is varied.
        settings: What is changed in all combinations.
        data: A data set in place of the recipe's.
        columns: What every combination is evaluated with; without any, there are hold-out scores only.
        threat: The threat model of the columns.
        published: The table that the sweep repeats.
        test_data: Data sets whose test images are evaluated, in place of those of `data`; one, and one of each of
            `imagenet-a`, `imagenet-r` and `cue-conflict` for the suites of these images.
        scale: Where the sweep differs in scale from the published table.
        small: The small scale that rows are brought to.
        last_settings: What is changed after that.
        studies: What every model is studied with, each into a run folder of its own beside the evaluations.
    """

    recipe: Recipe | None
    axes: tuple[Axis, ...]
    settings: tuple[str, ...] = ()
    data: str | None = None
    columns: tuple[Column, ...] = ()
    threat: Threat | None = None
    published: PublishedSweep | None = field(default=None, repr=False)
    test_data: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    small: SmallScale | None = None
    last_settings: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.axes:
            raise UsageError(
                "a sweep needs something to vary, got no axis. Write an axis such as plan.epochs=10,20 (--axis)."
            )
        if twice := [name for name, times in Counter(axis.name for axis in self.axes).items() if times > 1]:
            raise UsageError(f"the axis {twice[0]!r} is given twice. Write all its values with commas, once.")
        for columns in self._all_columns():
            _check_columns(columns, self.threat)

    @property
    def suites(self) -> list[Suite]:
        """The suites of all columns."""
        columns = [column for columns in self._all_columns() for column in columns]
        return list({column.suite.name: column.suite for column in columns}.values())

    def _all_columns(self) -> list[tuple[Column, ...]]:
        own = [value.columns for axis in self.axes for value in axis.values if value.columns]
        return [self.columns, *own]

    @property
    def evaluates(self) -> bool:
        """Whether rows are evaluated, or studied, on test images."""
        return bool(self.studies) or any(self._all_columns())

    def combinations(self, notify: ProgressCallback = silent) -> tuple[Combination, ...]:
        """All combinations, the last axis changing fastest; values that cannot be are refused before any training."""
        products = list(itertools.product(*(axis.values for axis in self.axes)))
        labels = [tuple(value.label for value in values) for values in products]
        names = _names([axis.name for axis in self.axes], labels)
        folders = self._folders(labels, names)
        rows = [self._combination(*one, notify) for one in zip(names, labels, folders, products, strict=True)]
        same: dict[str, str] = {}
        for one in rows:
            made = fingerprint(one.trained or one.model)
            if (earlier := same.setdefault(made, one.folder)) != one.folder:
                raise UsageError(f"{earlier} and {one.folder} are one and the same recipe. Leave one out.")
        return tuple(rows)

    def _folders(self, labels: Sequence[tuple[str, ...]], names: Sequence[str]) -> list[str]:
        """The folder of each row's model: without the axes that vary only its evaluation."""
        kept = [place for place, axis in enumerate(self.axes) if axis.makes_models]
        if len(kept) == len(self.axes):
            return list(names)
        if not kept:
            return ["model"] * len(names)
        chosen = [tuple(row[place] for place in kept) for row in labels]
        distinct = list(dict.fromkeys(chosen))
        by_labels = dict(zip(distinct, _names([self.axes[place].name for place in kept], distinct), strict=True))
        return [by_labels[row] for row in chosen]

    def _combination(
        self, name: str, labels: tuple[str, ...], folder: str, values: Sequence[Value], notify: ProgressCallback
    ) -> Combination:
        model, head = (next(filter(None, (getattr(one, what) for one in values)), "") for what in ("model", "head"))
        columns, label = next(((one.columns, one.label) for one in values if one.columns), (self.columns, ""))
        recipe = None if model else self._recipe(values, notify)
        return Combination(name, labels, recipe, folder, model, head, columns, label)

    def _recipe(self, values: Sequence[Value], notify: ProgressCallback) -> Recipe:
        """The recipe of a row, at the small scale if there is one, whose settings come last."""
        recipe = self._full_recipe(values, notify)
        if self.small is None:
            return recipe
        assert self.recipe is not None
        plain = override(self.recipe, self.settings)
        axes = [axis for axis in (self.published.axes if self.published else self.axes) if axis.makes_models]
        rows = [self._full_recipe(one, silent) for one in itertools.product(*(axis.values for axis in axes))]
        varies_share = any(setting.startswith("synthetic.") for setting in self._varied())
        recipe = self.small.apply(recipe, plain, self.small.epochs(plain, rows), synthetic=varies_share)
        return override(recipe, self.last_settings, notify=notify)

    def _full_recipe(self, values: Sequence[Value], notify: ProgressCallback) -> Recipe:
        """All settings at once, as values are checked against each other; then the changes beyond settings."""
        own = next((value.recipe for value in values if value.recipe), None)
        base = own() if own else self.recipe
        if base is None:
            raise UsageError(
                "a sweep of models trains nothing, and one of its rows has no model. Name one (--model MODEL)."
            )
        settings = [*self.settings, *(setting for value in values for setting in value.settings)]
        recipe = override(base, settings, notify=notify)
        for value in values:
            recipe = value.change(recipe) if value.change else recipe
        return recipe

    def _varied(self) -> list[str]:
        return [setting for axis in self.axes for value in axis.values for setting in value.settings]

    def printed(self, one: Combination) -> PublishedAccuracy | None:
        """The row of the published table that a combination repeats."""
        if self.published is None:
            return None
        labels = dict(zip((axis.name for axis in self.axes), one.labels, strict=True))
        return self.published.rows.get(tuple(labels.get(axis.name, "") for axis in self.published.axes))

    def starting_recipe(self, combinations: Sequence[Combination]) -> Recipe | None:
        """The recipe to train first because rows start from its frozen weights; None if there is none."""
        needed = [one.recipe for one in combinations if one.trained and one.trained.model.start == START]
        return self.small.starting_recipe(needed[0]) if self.small and needed else None

    def images(self, one: Combination) -> TestImages:
        """The source of the test images of a row."""
        usual = self.data or (one.trained.data if one.trained else "")
        images = TestImages.of(self.test_data, usual)
        if not images.usual and self.evaluates:
            raise UsageError(f"the models are evaluated on test images, got none. Write {spelled('data', 'DATA')}.")
        return images

    def check(self, combinations: Sequence[Combination]) -> None:
        """Raise errors that would make a combination fail, before any training and before the folder is claimed.

        Raises:
            UsageError: If a combination cannot be trained or evaluated, or there is nothing to train or evaluate.
        """
        if not self.studies and not any(one.trained or self._is_evaluated(one) for one in combinations):
            left_out = "".join(f"; {line}" for line in self.left_out(combinations))
            raise UsageError(
                f"the sweep trains nothing and evaluates nothing{left_out}. Write a suite, an attack or a study, such "
                f"as {spelled('suite', 'quick')}."
            )
        for one in combinations:
            images = self.images(one)
            if images.usual:
                data.parse_spec(images.usual)
            if one.trained is not None:
                data.parse_spec(self.data or one.trained.data)
                _refuse_missing_images(one)
                side = data.parse_preprocess(one.trained.preprocess).size
                for radius in _radii(one.columns, self.threat):
                    check_size(radius, (3, side, side))

    def _is_evaluated(self, one: Combination) -> bool:
        """Whether there are test images for one of the columns of a row."""
        return any(self.images(one).find(column.suite) is not None for column in one.columns)

    def left_out(self, combinations: Sequence[Combination]) -> list[str]:
        """The columns whose images were not given, and what to give."""
        missing = {
            column.name: OWN_IMAGES[column.suite.name]
            for one in combinations
            for column in one.columns
            if self.images(one).find(column.suite) is None
        }
        return [f"column {name} is left out: give --test-data {kind}:DIR" for name, kind in missing.items()]

    def parts(self, combinations: Sequence[Combination]) -> dict[str, object]:
        """The description in the manifest, with the changes of each combination under `combinations`."""
        plain = describe(self.recipe)
        return {
            "recipe": self.recipe,
            "settings": self.settings,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "data": self.data,
            "test_data": self.test_data,
            **({"studies": self.studies} if self.studies else {}),
            **({"small": self.small.name, "last_settings": self.last_settings} if self.small else {}),
            "columns": self.columns,
            "threat": self.threat,
            "combinations": {
                one.name: differences(plain, describe(one.recipe)) if one.trained else one.model for one in combinations
            },
            # finished combinations are skipped, so all must be of the same code
            "code": code_hashes(*TRAINING_PACKAGES),
        }


def _refuse_missing_images(one: Combination) -> None:
    """Refuse a row whose generated images are not there: without this, every row would fail, one after the other."""
    synthetic = one.recipe.synthetic
    if synthetic is not None and not Path(synthetic.folder).exists():
        raise UsageError(
            f"{one.name} needs the generated images in {synthetic.folder}, and there is no such folder. Make it with "
            "`vitadel data convert`, or name another: --set synthetic.folder=DIR."
        )


def _radii(columns: Sequence[Column], threat: Threat | None) -> list[Threat]:
    """The threats that the columns attack within."""
    radii: list[Threat] = []
    for column in columns:
        suite, own = column.suite, parse_threat(column.threat) if column.threat else threat
        if isinstance(suite, SuiteWithRadii):
            radii += [radius for radius in suite.threats(own) if radius is not None]
        elif suite.needs_threat and own is not None:
            radii.append(own)
    return radii


def _check_columns(columns: Sequence[Column], threat: Threat | None) -> None:
    """Refuse columns of one name, suites of one name with other settings, and attacks without a threat that exists."""
    if twice := [name for name, times in Counter(column.name for column in columns).items() if times > 1]:
        raise UsageError(f"the column {twice[0]!r} is given twice. Leave one out.")
    known: dict[tuple[str, str, str], Suite] = {}
    for column in columns:
        suite = column.suite
        if column.threat:
            parse_threat(column.threat)
        if column.scaling:
            parse_scaling(column.scaling)
        if suite.needs_threat and not column.threat and threat is None:
            raise threat_needed(suite.name)
        if known.setdefault((suite.name, column.threat, column.scaling), suite) != suite:
            raise UsageError(f"the suite {suite.name} is given twice with other settings. Leave one out.")


def _names(axes: Sequence[str], labels: Sequence[tuple[str, ...]]) -> list[str]:
    """A folder's name per combination: the last words of the paths, unless that gives two of them the same name."""
    last = [axis.rpartition(".")[2] for axis in axes]
    short = axes if len(set(last)) < len(last) else last
    long = [",".join(f"{axis}={label}" for axis, label in zip(short, row, strict=True)) for row in labels]
    safe = ["".join(sign if sign.isalnum() or sign in "-_=.,+" else "-" for sign in name) for name in long]
    times = Counter(safe)
    return [
        plain if times[plain] == 1 and len(plain) <= LONGEST_NAME else hashed_name(plain, name)
        for plain, name in zip(safe, long, strict=True)
    ]
