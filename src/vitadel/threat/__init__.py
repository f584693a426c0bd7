"""Where an image may go."""

from vitadel.threat.base import Threat, per_image
from vitadel.threat.l1 import L1
from vitadel.threat.l2 import L2
from vitadel.threat.linf import Linf

THREATS = {"linf": Linf, "l2": L2, "l1": L1}

__all__ = ["L1", "L2", "THREATS", "Linf", "Threat", "per_image"]
