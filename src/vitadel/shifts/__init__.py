"""What the world does to an image, no model involved."""

from vitadel.shifts.corruption import SEVERITIES, Corruption, Quality, Severity, grid
from vitadel.shifts.jpeg import jpeg
from vitadel.shifts.rotate_translate import RotateTranslate, rotated_translated
from vitadel.shifts.tables import CORRUPTIONS, GROUPS, TABLES, Kind

__all__ = [
    "CORRUPTIONS",
    "GROUPS",
    "SEVERITIES",
    "TABLES",
    "Corruption",
    "Kind",
    "Quality",
    "RotateTranslate",
    "Severity",
    "grid",
    "jpeg",
    "rotated_translated",
]
