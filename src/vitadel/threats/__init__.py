"""Threat models: norm balls around an image, within the box [0, 1]."""

from vitadel.threats.base import Threat, bounds_each_pixel, broadcast_per_image, check_size, per_image
from vitadel.threats.l1 import L1, project_l1
from vitadel.threats.l2 import L2
from vitadel.threats.linf import Linf
from vitadel.threats.parsing import THREATS, as_threat, parse_threat, suggested_threat

__all__ = [
    "L1",
    "L2",
    "THREATS",
    "Linf",
    "Threat",
    "as_threat",
    "bounds_each_pixel",
    "broadcast_per_image",
    "check_size",
    "parse_threat",
    "per_image",
    "project_l1",
    "suggested_threat",
]
