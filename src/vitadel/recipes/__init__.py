"""Functions that return a frozen Recipe; one file per source. The only room with a paper's numbers."""

from collections.abc import Callable

from vitadel.recipes import cifar10, digits, heavy_augmentation, light_recipe, vit_beats_wrn
from vitadel.recipes.carry_out import carry_out
from vitadel.recipes.overrides import override
from vitadel.recipes.provenance import Leaf, leaves
from vitadel.recipes.recipe import ModelChoice, Normalise, Recipe, Selection, SyntheticChoice

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits-standard": digits.digits_standard,
    "digits-adversarial": digits.digits_adversarial,
    "digits-pointer": digits.digits_pointer,
    "cifar10-vit-tiny-short": cifar10.cifar10_vit_tiny_short,
    "cifar10-xcit-tiny-short": cifar10.cifar10_xcit_tiny_short,
    "cifar10-trades-short": cifar10.cifar10_trades_short,
    "xcit-s12-imagenet": light_recipe.xcit_s12_imagenet,
    "xcit-m12-imagenet": light_recipe.xcit_m12_imagenet,
    "xcit-l12-imagenet": light_recipe.xcit_l12_imagenet,
    "xcit-s12-imagenet-thesis": light_recipe.xcit_s12_imagenet_thesis,
    "xcit-m12-imagenet-thesis": light_recipe.xcit_m12_imagenet_thesis,
    "xcit-l12-imagenet-thesis": light_recipe.xcit_l12_imagenet_thesis,
    "xcit-s12-imagenet-eps8": light_recipe.xcit_s12_imagenet_eps8,
    "xcit-m12-imagenet-eps8": light_recipe.xcit_m12_imagenet_eps8,
    "xcit-l12-imagenet-eps8": light_recipe.xcit_l12_imagenet_eps8,
    "xcit-n12-imagenet100": light_recipe.xcit_n12_imagenet100,
    "xcit-s12-imagenet100": light_recipe.xcit_s12_imagenet100,
    "cait-s12-imagenet100": light_recipe.cait_s12_imagenet100,
    "deit-s-imagenet100": light_recipe.deit_s_imagenet100,
    "deit-s-imagenet": light_recipe.deit_s_imagenet,
    "resnet50-gelu-imagenet": light_recipe.resnet50_gelu_imagenet,
    "resnet50-gelu-imagenet-eps8": light_recipe.resnet50_gelu_imagenet_eps8,
    "xcit-s12-caltech101": light_recipe.xcit_s12_caltech101,
    "xcit-s12-flowers102": light_recipe.xcit_s12_flowers102,
    "xcit-s12-cifar10": light_recipe.xcit_s12_cifar10,
    "xcit-s12-cifar10-thesis": light_recipe.xcit_s12_cifar10_thesis,
    "xcit-s12-cifar100": light_recipe.xcit_s12_cifar100,
    "xcit-s12-cifar10-scratch": light_recipe.xcit_s12_cifar10_scratch,
    "xcit-s12-cifar10-scratch-synthetic": light_recipe.xcit_s12_cifar10_scratch_synthetic,
    "vit-b2-cifar10": vit_beats_wrn.vit_b2_cifar10,
    "vit-b2-cifar10-long": vit_beats_wrn.vit_b2_cifar10_long,
    "vit-b2-cifar10-lion98": vit_beats_wrn.vit_b2_cifar10_lion98,
    "vit-l2-cifar10": vit_beats_wrn.vit_l2_cifar10,
    "vit-l2-cifar10-long": vit_beats_wrn.vit_l2_cifar10_long,
    "vit-b2-cifar10-l2": vit_beats_wrn.vit_b2_cifar10_l2,
    "vit-l2-cifar10-l2": vit_beats_wrn.vit_l2_cifar10_l2,
    "vit-b2-cifar100": vit_beats_wrn.vit_b2_cifar100,
    "vit-l2-cifar100": vit_beats_wrn.vit_l2_cifar100,
    "wrn-28-10-cifar10": vit_beats_wrn.wrn_28_10_cifar10,
    "wrn-28-10-cifar10-lion": vit_beats_wrn.wrn_28_10_cifar10_lion,
    "vit-s-imagenet-singh": heavy_augmentation.vit_s_imagenet_singh,
    "vit-b-imagenet-ares": heavy_augmentation.vit_b_imagenet_ares,
}

__all__ = [
    "RECIPES",
    "Leaf",
    "ModelChoice",
    "Normalise",
    "Recipe",
    "Selection",
    "SyntheticChoice",
    "carry_out",
    "leaves",
    "override",
]
