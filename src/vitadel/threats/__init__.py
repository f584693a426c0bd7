"""Where an image may go."""

from vitadel.core.numeric import read_number
from vitadel.threats.base import Threat, bounds_each_pixel, check_size, diameter, per_image, spread, with_eps
from vitadel.threats.l1 import L1, project_l1
from vitadel.threats.l2 import L2
from vitadel.threats.linf import Linf
from vitadel.threats.parsing import THREATS, as_threat, read, spell

__all__ = [
    "L1",
    "L2",
    "THREATS",
    "Linf",
    "Threat",
    "as_threat",
    "bounds_each_pixel",
    "check_size",
    "diameter",
    "per_image",
    "project_l1",
    "read",
    "read_number",
    "spell",
    "spread",
    "with_eps",
]
