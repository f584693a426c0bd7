"""Perturbations of natural origin: the corruptions of ImageNet-C, rotations and translations; no model involved."""

from vitadel.shifts.corruption import SEVERITIES, Corruption, Quality, Severity
from vitadel.shifts.jpeg import jpeg
from vitadel.shifts.rotate_translate import RotateTranslate, rotated_translated
from vitadel.shifts.tables import CORRUPTIONS, GROUPS, TABLES, CorruptionKind

__all__ = [
    "CORRUPTIONS",
    "GROUPS",
    "SEVERITIES",
    "TABLES",
    "Corruption",
    "CorruptionKind",
    "Quality",
    "RotateTranslate",
    "Severity",
    "jpeg",
    "rotated_translated",
]
