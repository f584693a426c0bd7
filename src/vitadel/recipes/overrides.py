"""Changing values of a frozen recipe: `plan.epochs=3`, `objective=trades:beta=5`."""

from collections.abc import Mapping, Sequence

from vitadel.attacks.parsing import READERS
from vitadel.core.errors import UsageError
from vitadel.core.numeric import parse_int
from vitadel.core.progress import ProgressCallback, silent
from vitadel.core.settings import Notation, split_assignment, with_settings
from vitadel.recipes.objective_kinds import with_kind
from vitadel.recipes.recipe import Recipe

# on the command line, and in Python, where an error names the path alone
_OPTION, _MAPPING = "--set ", ""
_OBJECTIVE = "objective"
_EPOCHS, _WARMUP = "plan.epochs", "plan.warmup_epochs"


def override(
    recipe: Recipe, settings: Sequence[str] | Mapping[str, object], *, notify: ProgressCallback = silent
) -> Recipe:
    """A copy of the recipe with every setting applied at once.

    If `plan.epochs` is set to no more than the recipe's warm-up, the warm-up becomes half of it. `objective` may be
    text that names a kind of objective, such as `trades:beta=5`; it is applied before all other settings, and several
    such texts one after the other: `trades`, then `awp`.

    Args:
        recipe: The recipe.
        settings: `["plan.epochs=3"]` or `{"plan.epochs": 3}`. A value has the type that its field declares; threats and
            attacks may be written as text, and `none` clears an optional setting.
        notify: Receives a message if the warm-up was shortened.

    Raises:
        UsageError: If a setting does not exist, or its value is invalid.

    Example:
        >>> override(RECIPES["digits-adversarial"](), {"plan.epochs": 3}).plan.epochs
        3
    """
    if isinstance(settings, Mapping):
        prefix, pairs = _MAPPING, list(settings.items())
    else:
        prefix = _OPTION
        pairs = [split_assignment(one, "--set", "path=value, such as plan.epochs=3") for one in settings]
    others = [(path, value) for path, value in pairs if path != _OBJECTIVE or not isinstance(value, str)]
    for path, value in pairs:
        if path == _OBJECTIVE and isinstance(value, str):
            recipe = with_kind(recipe, value, others, prefix=prefix)
    notation = Notation(prefix=prefix, separator=",", readers=READERS)
    return with_settings(recipe, [*_shortened_warmup(recipe, others, notify), *others], notation)


def _shortened_warmup(
    recipe: Recipe, settings: Sequence[tuple[str, object]], notify: ProgressCallback
) -> list[tuple[str, object]]:
    values = dict(settings)
    if _EPOCHS not in values or _WARMUP in values:
        return []
    try:
        epochs = parse_int(str(values[_EPOCHS]), _EPOCHS)
    except UsageError:  # `with_settings` raises the error
        return []
    if not 0 < epochs <= recipe.plan.warmup_epochs:
        return []
    shorter = epochs / 2
    notify(f"{_WARMUP}: {recipe.plan.warmup_epochs:g} -> {shorter:g}, because {_EPOCHS} is {epochs}", 0, 0, {})
    return [(_WARMUP, shorter)]
