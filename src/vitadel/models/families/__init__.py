"""One adapter per family of architectures."""

from torch import nn

from vitadel.models.families.base import Block, Family, check_grid
from vitadel.models.families.cait import CaiT
from vitadel.models.families.swin import Swin
from vitadel.models.families.vit import ViT
from vitadel.models.families.xcit import XCiT

FAMILIES: tuple[Family, ...] = (ViT(), CaiT(), XCiT(), Swin())
OTHER = Family()

# timm builds a network before it can be asked what it is, so the family is also known by the file it comes from
_BY_TIMM_FILE = {
    "vision_transformer": FAMILIES[0],
    "deit": FAMILIES[0],
    "cait": FAMILIES[1],
    "xcit": FAMILIES[2],
    "swin_transformer": FAMILIES[3],
}


def family_of(net: nn.Module) -> Family:
    """The family a network belongs to; `OTHER` knows of no blocks and no patches."""
    return next((family for family in FAMILIES if isinstance(net, family.architectures)), OTHER)


def family_of_timm_file(name: str) -> Family:
    """The family of the architectures that timm defines in the file called `name`."""
    return _BY_TIMM_FILE.get(name, OTHER)


__all__ = ["FAMILIES", "OTHER", "Block", "Family", "check_grid", "family_of", "family_of_timm_file"]
