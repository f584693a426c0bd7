"""Functions that return a frozen Recipe; one file per source. The only room with a paper's numbers."""

from collections.abc import Callable

from vitadel.recipes.carry_out import carry_out
from vitadel.recipes.cifar10 import cifar10_vit_tiny_short
from vitadel.recipes.digits import digits_adversarial, digits_standard
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import ModelChoice, Normalise, Recipe, Selection

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits-standard": digits_standard,
    "digits-adversarial": digits_adversarial,
    "cifar10-vit-tiny-short": cifar10_vit_tiny_short,
}

__all__ = [
    "RECIPES",
    "ModelChoice",
    "Normalise",
    "Recipe",
    "Selection",
    "carry_out",
    "override",
]
