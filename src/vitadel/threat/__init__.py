"""Where an image may go."""

from vitadel.numeric import read_number
from vitadel.threat.base import Threat, check_size, per_image, spread, with_eps
from vitadel.threat.l1 import L1, project_l1
from vitadel.threat.l2 import L2
from vitadel.threat.linf import Linf
from vitadel.threat.rotate_translate import RotateTranslate, moved
from vitadel.threat.spelling import THREATS, as_threat, read, spell

__all__ = [
    "L1",
    "L2",
    "THREATS",
    "Linf",
    "RotateTranslate",
    "Threat",
    "as_threat",
    "check_size",
    "moved",
    "per_image",
    "project_l1",
    "read",
    "read_number",
    "spell",
    "spread",
    "with_eps",
]
