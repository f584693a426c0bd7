"""Recipes: functions that return a frozen `Recipe`, one file per paper. The only package with numbers of papers."""

import inspect
from collections.abc import Callable
from types import ModuleType

from vitadel.recipes import attention_scaling, cifar10, digits, heavy_augmentation, light_recipe, tora, vit_beats_wrn
from vitadel.recipes.overrides import override
from vitadel.recipes.provenance import Leaf, leaves
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe, Selection, SyntheticConfig
from vitadel.recipes.runner import train_recipe


def _recipes_of(module: ModuleType) -> dict[str, Callable[[], Recipe]]:
    """The public functions of a module, by their names with hyphens: `digits_standard` is `digits-standard`."""
    functions = inspect.getmembers_static(module, inspect.isfunction)
    own = [make for name, make in functions if not name.startswith("_") and make.__module__ == module.__name__]
    own.sort(key=lambda make: make.__code__.co_firstlineno)
    return {make.__name__.replace("_", "-"): make for make in own}


RECIPES: dict[str, Callable[[], Recipe]] = {
    **_recipes_of(digits),
    **_recipes_of(cifar10),
    **_recipes_of(light_recipe),
    **_recipes_of(vit_beats_wrn),
    **_recipes_of(heavy_augmentation),
    **_recipes_of(attention_scaling),
    **_recipes_of(tora),
}
# names of earlier versions
FORMER_RECIPE_NAMES = {"digits-masked-gradient": "digits-masked-gradient"}

__all__ = [
    "FORMER_RECIPE_NAMES",
    "RECIPES",
    "Leaf",
    "ModelConfig",
    "Normalize",
    "Recipe",
    "Selection",
    "SyntheticConfig",
    "leaves",
    "override",
    "train_recipe",
]
