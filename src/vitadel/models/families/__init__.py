"""One adapter per family of architectures; timm is imported when the first network is looked up."""

import functools

from torch import nn

from vitadel.models.families.base import Family

OTHER_FAMILY = Family()


@functools.cache
def _families() -> tuple[Family, ...]:
    from vitadel.models.families.levit import LeViT
    from vitadel.models.families.own import MaskedGradientFamily, TORAFamily
    from vitadel.models.families.residual import Residual
    from vitadel.models.families.swin import Swin
    from vitadel.models.families.vit import CaiT, ViT
    from vitadel.models.families.xcit import XCiT

    return (ViT(), CaiT(), XCiT(), Swin(), LeViT(), MaskedGradientFamily(), TORAFamily(), Residual())


def family_of(net: nn.Module) -> Family:
    """The family a network belongs to; `OTHER_FAMILY`, without blocks and patches, if its class is unknown."""
    return next((family for family in _families() if isinstance(net, family.architectures)), OTHER_FAMILY)


def family_of_timm_file(name: str) -> Family:
    """The family of the architectures that timm defines in the file called `name`."""
    return next((family for family in _families() if name in family.timm_files), OTHER_FAMILY)
