"""The sixteen sets of augmentations of an ablation by Debenedetti 2022 (section 4.1.6, table 3).

All of them come on top of horizontal flips, random resized crops and color jitter. Table 3 prints eight: the seven
with the best robust accuracy and, last, DeiT's own with everything on; they come first here, in its order, and their
accuracies are in `published_tables`. The other eight are counted in the text and have no published numbers. The columns
were aligned from the table's text; the prose below it repeats three differences and two orderings, which fix the rows
erase, base, rand and the last.

The values are those of the authors' configuration (DeiT's): MixUp 0.8, CutMix 1, `rand-m9-mstd0.5-inc1`, erasing 0.25.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class AugmentationSet:
    """Augmentations added to the base: the alphas of `Mixing`, timm's RandAugment, the probability of `Erase`."""

    mixup: float = 0.0
    cutmix: float = 0.0
    rand_augment: str | None = None
    erase: float = 0.0


_NAMES = (
    *("erase", "base", "mixup", "mixup+erase", "mixup+cutmix", "rand", "rand+erase", "mixup+cutmix+rand+erase"),
    *("cutmix", "cutmix+erase", "mixup+cutmix+erase", "mixup+rand", "mixup+rand+erase"),
    *("cutmix+rand", "cutmix+rand+erase", "mixup+cutmix+rand"),
)


def _of_name(name: str) -> AugmentationSet:
    parts = name.split("+")
    return AugmentationSet(
        mixup=0.8 if "mixup" in parts else 0.0,
        cutmix=1.0 if "cutmix" in parts else 0.0,
        rand_augment="rand-m9-mstd0.5-inc1" if "rand" in parts else None,
        erase=0.25 if "erase" in parts else 0.0,
    )


AUGMENTATION_SETS: Mapping[str, AugmentationSet] = MappingProxyType({name: _of_name(name) for name in _NAMES})
