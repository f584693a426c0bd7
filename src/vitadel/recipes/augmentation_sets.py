"""The sixteen sets of augmentations that the thesis's ablation (section 4.1.6, Table 3) tries.

All of them come on top of horizontal flips, random resized crops and color jitter. Table 3 prints eight: the seven
with the best robust accuracy and, last, DeiT's own with everything on; they come first here, in its order. The other
eight are counted in the text and have no published numbers. The columns were aligned from the table's text; the prose
below it repeats three differences and two orderings, which fix the rows erase, base, rand and the last.

The values are those of the authors' configuration (DeiT's): MixUp 0.8, CutMix 1, `rand-m9-mstd0.5-inc1`, erasing 0.25.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Published:
    """Accuracies in percent of XCiT-N12 on ImageNet-100, after standard or after adversarial training."""

    standard_clean: float
    adversarial_clean: float
    adversarial_apgd_ce: float


@dataclass(frozen=True, slots=True)
class AugmentationSet:
    """What comes on top of the base: the alphas of `Mixing`, timm's RandAugment, the probability of `Erase`."""

    mixup: float = 0.0
    cutmix: float = 0.0
    rand_augment: str | None = None
    erase: float = 0.0
    published: Published | None = None


_MIXUP, _CUTMIX, _RAND_AUGMENT, _ERASE = 0.8, 1.0, "rand-m9-mstd0.5-inc1", 0.25

AUGMENTATION_SETS: Mapping[str, AugmentationSet] = MappingProxyType(
    {
        "erase": AugmentationSet(erase=_ERASE, published=Published(77.22, 67.28, 39.22)),
        "base": AugmentationSet(published=Published(76.60, 66.78, 39.22)),
        "mixup": AugmentationSet(mixup=_MIXUP, published=Published(76.34, 61.04, 38.56)),
        "mixup+erase": AugmentationSet(mixup=_MIXUP, erase=_ERASE, published=Published(76.02, 60.46, 38.26)),
        "mixup+cutmix": AugmentationSet(mixup=_MIXUP, cutmix=_CUTMIX, published=Published(76.48, 62.04, 38.18)),
        "rand": AugmentationSet(rand_augment=_RAND_AUGMENT, published=Published(78.62, 65.34, 37.64)),
        "rand+erase": AugmentationSet(
            rand_augment=_RAND_AUGMENT, erase=_ERASE, published=Published(78.08, 64.76, 37.62)
        ),
        "mixup+cutmix+rand+erase": AugmentationSet(
            _MIXUP, _CUTMIX, _RAND_AUGMENT, _ERASE, published=Published(75.32, 56.64, 35.38)
        ),
        "cutmix": AugmentationSet(cutmix=_CUTMIX),
        "cutmix+erase": AugmentationSet(cutmix=_CUTMIX, erase=_ERASE),
        "mixup+cutmix+erase": AugmentationSet(_MIXUP, _CUTMIX, erase=_ERASE),
        "mixup+rand": AugmentationSet(_MIXUP, rand_augment=_RAND_AUGMENT),
        "mixup+rand+erase": AugmentationSet(_MIXUP, rand_augment=_RAND_AUGMENT, erase=_ERASE),
        "cutmix+rand": AugmentationSet(cutmix=_CUTMIX, rand_augment=_RAND_AUGMENT),
        "cutmix+rand+erase": AugmentationSet(cutmix=_CUTMIX, rand_augment=_RAND_AUGMENT, erase=_ERASE),
        "mixup+cutmix+rand": AugmentationSet(_MIXUP, _CUTMIX, _RAND_AUGMENT),
    }
)
