"""Every number that a user can set has a range, and is refused outside of it."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import pytest

import vitadel
from vitadel.analyze import STUDIES
from vitadel.api.analyze import as_study
from vitadel.attacks import APGD, ATTACKS, GAMA, PGD, SCALINGS, Square
from vitadel.attacks.parsing import parse_attack, parse_scaling
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range, check_ranges
from vitadel.evaluate import SUITES, AttackSuite
from vitadel.evaluate.parsing import as_suites
from vitadel.evaluate.suites import Spatial
from vitadel.objectives import ARDPRM, AWP, MART, TRADES, Adversarial, AttentionScaling, Standard, TORATraining
from vitadel.recipes import RECIPES
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import Normalize
from vitadel.shifts import RotateTranslate
from vitadel.threats import L1, L2, Linf
from vitadel.train import SGD, AdamW, Lion, TrainingConfig

# what the program computes or reads itself, by package; these numbers are not settings
RECORDS = {
    "analyze": (
        "AttackCost AttackOutcome BlocksPoint EpsPoint Evidence MaskingResults Measurements Moments PrefixCache "
        "Restriction StepsPoint VariantCounts View"
    ),
    "api": "Robustness",
    "attacks": "AttackResult ContinuousBatch FactorSearchResult Factors Flag ImageResult WorkQueue",
    "core": "Accuracy Difference LinearFit PairedTest PowerLawFit Range Ranks SavedBuffers",
    "data": "CheckReport Index Mapped Member Shard Spec Statistics",
    "evaluate": "Context ImageFiles Measure Search TableWriter",
    "models": "Cost Geometry Layer",
    "objectives": "TrainingTime",
    "recipes": "AugmentationSet PublishedAccuracy PublishedSweep SmallScale",
    "shifts": "CorruptionKind",
    "threats": "Threat WindowPatterns",
    "train": "AugmentedImages BatchIndex Loader MixParameters Nvml TrainState",
}
# checked by the code that reads them from a file
ELSEWHERE = {"models": "ModelSpec Normalization"}

# values for fields without a default
_ATTACK, _ATTACK_OF_TRAINING = PGD(steps=2), PGD(steps=2, keep_best=False)
_THREAT, _RECIPE = Linf(8 / 255), RECIPES["digits-adversarial"]()
GIVEN: dict[str, dict[str, Any]] = {
    "Adversarial": {"attack": _ATTACK, "threat": _THREAT},
    "AttackSuite": {"name": "own", "about": ""},
    "AttentionScaling": {"inner": Standard()},
    "ARDPRM": {"inner": Adversarial(_ATTACK_OF_TRAINING, _THREAT)},
    "AWP": {"inner": Standard()},
    "AdamW": {"lr": 0.1},
    "CenterCrop": {"size": 32},
    "Corruption": {"name": "fog", "severity": 1},
    "L1": {"eps": 12.0},
    "L2": {"eps": 0.5},
    "Linf": {"eps": 0.1},
    "Lion": {"lr": 0.1},
    "MART": {"attack": _ATTACK, "threat": _THREAT},
    "ModelConfig": {"start": "vitadel:x", "image_size": 32},
    "Sampler": {"real": 10, "batch_size": 2, "seed": 0},
    "TrainingConfig": {"epochs": 2, "batch_size": 4, "optimizer": AdamW(0.1)},
    "Recipe": {f.name: getattr(_RECIPE, f.name) for f in dataclasses.fields(_RECIPE)},
    "RotateTranslate": {"max_translation": 3.0},
    "SGD": {"lr": 0.1},
    "Permutation": {"count": 10, "seed": 0},
    "Squash": {"size": 32},
    "Synthetic": {"images": None, "share": 0.5},
    "TORATraining": {"attack": _ATTACK, "threat": _THREAT},
    "TRADES": {"attack": _ATTACK, "threat": _THREAT},
}


def _dataclasses() -> Iterator[tuple[str, type]]:
    """Every public dataclass of the package, but for those of reports and run folders."""
    for result in pkgutil.walk_packages(vitadel.__path__, "vitadel."):
        if result.name.startswith(("vitadel.report", "vitadel.runs", "vitadel.cli", "vitadel.__main__")):
            continue
        for name, kind in vars(importlib.import_module(result.name)).items():
            if not isinstance(kind, type) or kind.__module__ != result.name or name.startswith("_"):
                continue
            if dataclasses.is_dataclass(kind):
                yield f"{result.name}.{name}".removeprefix("vitadel."), kind


def _types(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def _numbers(declared: Any) -> Iterator[tuple[type, Range | None]]:
    """The numbers inside a type, such as `tuple[float, ...] | None`, each with its range."""
    if declared in (int, float):
        yield declared, None
    elif typing.get_origin(declared) is Annotated:
        base, *extra = typing.get_args(declared)
        ranges = [one for one in extra if isinstance(one, Range)]
        for number, inner in _numbers(base):
            yield number, next(iter(ranges), inner)
    elif typing.get_origin(declared) not in (Callable, Mapping):  # a schedule and the options of a network
        for one in typing.get_args(declared):
            yield from _numbers(one)


def _settings() -> dict[str, type]:
    return {name: kind for name, kind in _dataclasses() if not _is_record(name) and not inspect.isabstract(kind)}


def _is_record(name: str) -> bool:
    package, *_, kind = name.split(".")
    return any(kind in table.get(package, "").split() for table in (RECORDS, ELSEWHERE))


FIELDS = [
    pytest.param(kind, name, declared, id=f"{kind.__name__}.{name}")
    for kind in _settings().values()
    for name, declared in _types(kind).items()
    if any(_numbers(declared))
]


def test_all_settings_of_the_registries_are_checked() -> None:
    known = set(_settings().values())
    registries: list[Callable[[], object]] = [
        *ATTACKS.values(),
        *(type(suite) for suite in SUITES.values() if not isinstance(suite, AttackSuite)),
        *STUDIES.values(),
    ]
    made = [make() for make in (*registries, *SCALINGS.values())]
    assert {type(one) for one in made} <= known
    assert {
        Standard,
        Adversarial,
        TRADES,
        MART,
        TORATraining,
        ARDPRM,
        AWP,
        AttentionScaling,
        TrainingConfig,
        AdamW,
        SGD,
        Lion,
    } <= known
    assert {Linf, L2, L1, RotateTranslate, AttackSuite} <= known
    for recipe in (make() for make in RECIPES.values()):
        assert {type(node) for node in _tree(recipe)} <= known
    assert len(FIELDS) > 120


def _tree(node: object) -> Iterator[object]:
    """The settings inside a recipe."""
    if isinstance(node, tuple):
        for one in node:
            yield from _tree(one)
    elif dataclasses.is_dataclass(node):
        yield node
        for f in dataclasses.fields(node):
            yield from _tree(getattr(node, f.name))


@pytest.mark.parametrize(("kind", "name", "declared"), FIELDS)
def test_every_number_has_a_range(kind: type, name: str, declared: Any) -> None:
    assert all(allowed is not None for _, allowed in _numbers(declared)), f"{kind.__name__}.{name} has no range"


def _outside(number: type, allowed: Range) -> list[object]:
    """Values below and above the range, and what is not a number of this kind."""
    low, high = allowed.ge if allowed.gt is None else allowed.gt, allowed.le if allowed.lt is None else allowed.lt
    step = 1 if number is int else 0.25
    below = [low - (0 if allowed.gt is not None else step)] if low is not None else []
    above = [high + (0 if allowed.lt is not None else step)] if high is not None else []
    wrong = [2.5, 1.0, 2**70] if number is int else [math.nan, math.inf, -math.inf, 10**400, 1e39]
    return [*below, *above, *wrong, True, "3", None, [1]]


def _inside(number: type, allowed: Range) -> list[float]:
    """The ends of the range, as far as they belong to it."""
    ends = [one for one in (allowed.ge, allowed.le) if one is not None]
    return ends if number is int else [*ends, *(int(one) for one in ends if float(one).is_integer())]


def _filled(declared: Any, value: object) -> object:
    """The value, or as many of it as a tuple of this type has."""
    arms = typing.get_args(declared)
    if type(None) in arms:
        return _filled(next(one for one in arms if one is not type(None)), value)
    if typing.get_origin(declared) is tuple:
        return (value,) * (1 if arms[-1] is Ellipsis else len(arms))
    return value


@pytest.mark.parametrize(("kind", "name", "declared"), FIELDS)
def test_values_out_of_range_are_refused_by_name(kind: type, name: str, declared: Any) -> None:
    given = GIVEN.get(kind.__name__, {})
    kind(**given)
    for number, allowed in _numbers(declared):
        assert allowed is not None
        for value in _outside(number, allowed):
            if value is None and type(None) in typing.get_args(declared):
                continue
            with pytest.raises(UsageError, match=rf"{kind.__name__}\.{name}(\[0\])? must .*, got "):
                kind(**{**given, name: _filled(declared, value)})


@pytest.mark.parametrize(("kind", "name", "declared"), FIELDS)
def test_the_ends_of_a_range_are_accepted(kind: type, name: str, declared: Any) -> None:
    settings = kind(**GIVEN.get(kind.__name__, {}))
    for number, allowed in _numbers(declared):
        assert allowed is not None
        for value in _inside(number, allowed):
            object.__setattr__(settings, name, _filled(declared, value))  # past what is checked against other fields
            check_ranges(settings)


def test_types_of_settings_are_plain_without_their_ranges() -> None:
    """What reads types, such as the command line, sees no difference."""
    hints = typing.get_type_hints(PGD)
    assert hints["steps"] is int
    assert hints["step_size"] == float | None
    assert typing.get_type_hints(AdamW)["betas"] == tuple[float, float]
    assert typing.get_type_hints(AttackSuite)["eps_scales"] == tuple[float, ...]


def test_names_of_earlier_versions_are_accepted() -> None:
    assert parse_attack("apgd:draws=4,wide_start=true") == APGD(eot_samples=4, use_larger_eps=True)
    assert parse_attack("square:share=0.5") == Square(p_init=0.5)
    assert parse_attack("gama:guide=3") == GAMA(guidance_weight=3)
    scaling = parse_scaling("aas:batch=8,held=16,probe=pgd:steps=3")
    assert (scaling.batch_size, scaling.trial_images, scaling.trial_attack) == (8, 16, PGD(steps=3))
    (spatial,) = as_suites("spatial:reach=2,degrees=10,shifts=3,turns=5,mapped=4")
    assert spatial == Spatial(max_translation=2, max_rotation=10, translations=3, rotations=5, grid_images=4)
    assert as_study("saliency:centre=true") == as_study("saliency:center=true")
    assert as_study("semantics:grey=true") == as_study("perturbation-semantics:gray=true")
    recipe = override(RECIPES["digits-tora"](), ["model.tuning.answer=rob", "plan.optimiser.lr=0.5", "plan.batch=16"])
    assert recipe.model.tuning is not None
    assert (recipe.model.tuning.head, recipe.plan.optimizer.lr, recipe.plan.batch_size) == ("rob", 0.5, 16)
    plan = override(recipe, ["plan.accumulate=2", "plan.clip_norm=1", "plan.check_every_epochs=3"]).plan
    assert (plan.grad_accum_steps, plan.clip_grad, plan.validate_every_epochs) == (2, 1.0, 3)
    assert override(recipe, ["model.normalise=none"]).model.normalize is Normalize.NONE


@pytest.mark.parametrize(
    "kind", [kind for _, kind in _dataclasses() if isinstance(getattr(kind, "former_names", None), dict)]
)
def test_former_names_are_of_fields(kind: Any) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(kind.former_names.values()) <= fields
    assert not set(kind.former_names) & fields
