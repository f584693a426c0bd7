"""Objectives by name: `trades:beta=5`, `awp`, and what they take over from the objective that they replace."""

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

# the word for each kind, and its class; those of the second table go around the objective that there is
KINDS: Mapping[str, type[Objective]] = {
    "standard": Standard,
    "adversarial": Adversarial,
    "trades": TRADES,
    "mart": MART,
    "tora": TORATraining,
}
AROUND: Mapping[str, type[Objective]] = {"awp": AWP, "aas": AttentionScaling, "ard-prm": ARDPRM}


def with_kind(recipe: Recipe, text: str, later: Sequence[tuple[str, object]] = (), *, prefix: str = "--set ") -> Recipe:
    """The recipe with another kind of objective.

    What both kinds have, such as attack, threat, smoothing and warm-up of eps, stays as it is. An objective without an
    attack that becomes one with an attack takes the threat by which the checkpoint is selected and, unless it is given,
    PGD with 10 steps. `awp`, `aas` and `ard-prm` go around the objective that there is.

    Args:
        recipe: What to change.
        text: `KIND[:key=value,...]`.
        later: Settings that are applied after it, among them perhaps the threat.
        prefix: What an error puts before `objective=...`.

    Raises:
        UsageError: If there is no such kind or setting, or an attack is left without a threat.
    """
    name = text.partition(":")[0]
    if name not in KINDS and name not in AROUND:
        raise unknown_name_error("kind of objective", name, {**KINDS, **AROUND})
    settings = split_name(text)[1]
    if name in AROUND:
        kind, values = AROUND[name], {"inner": _inside(recipe.objective, AROUND[name])}
    else:
        kind = KINDS[name]
        given = [*(key for key, _ in settings), *_below(later)]
        values = _common(recipe, kind, given=given, text=text, prefix=prefix)
    written = dataclasses.replace(notation(name), prefix=f"{prefix}objective={name}:")
    made = with_settings(kind(**values), settings, written)
    # sources are of values by their paths, and those of the former objective say nothing of this one
    kept = {path: source for path, source in recipe.sources.items() if not f"{path}.".startswith("objective.")}
    return dataclasses.replace(recipe, objective=made, sources={**kept, "objective": "changed by --set objective"})


def _below(settings: Sequence[tuple[str, object]]) -> list[str]:
    return [path.removeprefix("objective.") for path, _ in settings if path.startswith("objective.")]


def _inside(objective: Objective, kind: type[Objective]) -> Objective:
    """What a wrapper goes around: of one of the same kind, what that goes around."""
    inner: Objective = getattr(objective, "inner", objective) if isinstance(objective, kind) else objective
    return inner


def _common(recipe: Recipe, kind: type[Objective], *, given: Sequence[str], text: str, prefix: str) -> dict[str, Any]:
    """The values of the former objective that the new kind has as well, and the attack that it needs."""
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
