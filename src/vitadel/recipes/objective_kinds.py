"""Objectives by name, such as `trades:beta=5` or `awp`, and the settings they inherit from the replaced objective."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vitadel.attacks import PGD
from vitadel.attacks.parsing import notation
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.settings import split_name, with_settings
from vitadel.objectives import (
    ARDPRM,
    AWP,
    MART,
    TRADES,
    Adversarial,
    AttentionScaling,
    Objective,
    Standard,
    TORATraining,
)
from vitadel.recipes.recipe import Recipe

# the class of each kind of objective; those of WRAPPERS wrap the current objective
KINDS: Mapping[str, type[Objective]] = {
    "standard": Standard,
    "adversarial": Adversarial,
    "trades": TRADES,
    "mart": MART,
    "tora": TORATraining,
}
WRAPPERS: Mapping[str, type[Objective]] = {"awp": AWP, "aas": AttentionScaling, "ard-prm": ARDPRM}


def with_kind(recipe: Recipe, text: str, later: Sequence[tuple[str, object]] = (), *, prefix: str = "--set ") -> Recipe:
    """The recipe with another kind of objective.

    Settings that both kinds have, such as attack, threat, smoothing and warm-up of eps, are kept. If only the new
    objective attacks, it uses the threat of the checkpoint selection and, unless another is given, PGD with 10 steps.
    `awp`, `aas` and `ard-prm` wrap the current objective.

    Args:
        recipe: The recipe.
        text: `KIND[:key=value,...]`.
        later: Settings that are applied afterwards, which may include the threat.
        prefix: What an error puts before `objective=...`.

    Raises:
        UsageError: If there is no such kind or setting, or no threat for an attack.
    """
    name = text.partition(":")[0]
    if name not in KINDS and name not in WRAPPERS:
        raise unknown_name_error("kind of objective", name, {**KINDS, **WRAPPERS})
    settings = split_name(text)[1]
    if name in WRAPPERS:
        kind, values = WRAPPERS[name], {"inner": _inside(recipe.objective, WRAPPERS[name])}
    else:
        kind = KINDS[name]
        given = [*(key for key, _ in settings), *_below(later)]
        values = _common(recipe, kind, given=given, text=text, prefix=prefix)
    written = dataclasses.replace(notation(name), prefix=f"{prefix}objective={name}:")
    objective = with_settings(kind(**values), settings, written)
    # the sources of the former objective's values do not apply to this one
    kept = {path: source for path, source in recipe.sources.items() if not f"{path}.".startswith("objective.")}
    sources = {**kept, "objective": "changed by --set objective"}
    return dataclasses.replace(recipe, objective=objective, sources=sources)


def _below(settings: Sequence[tuple[str, object]]) -> list[str]:
    return [path.removeprefix("objective.") for path, _ in settings if path.startswith("objective.")]


def _inside(objective: Objective, kind: type[Objective]) -> Objective:
    """The objective to wrap; if the current one is a wrapper of the same kind, its inner objective."""
    inner: Objective = getattr(objective, "inner", objective) if isinstance(objective, kind) else objective
    return inner


def _common(recipe: Recipe, kind: type[Objective], *, given: Sequence[str], text: str, prefix: str) -> dict[str, Any]:
    """The values of the former objective that the new kind has as well, and an attack if it needs one."""
    former: Any = recipe.objective
    while hasattr(former, "inner"):
        former = former.inner
    names = {field.name for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    values = {f.name: getattr(former, f.name) for f in dataclasses.fields(former) if f.name in names}
    if "threat" not in names:
        return values
    values.setdefault("attack", PGD(steps=10, keep_best=False))
    if values.setdefault("threat", recipe.selection.threat) is None and "threat" not in given:
        raise UsageError(
            f"objective={text} attacks, and {recipe.name} has no threat, got no threat. Write "
            f"{prefix}objective={text}{',' if ':' in text else ':'}threat=linf:8/255."
        )
    return values
