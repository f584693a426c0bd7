"""Evaluations that are not cascades of attacks: what the world does to images, and attacks with protocols of their own.

A survey is a frozen dataclass of settings; `survey` carries one out on a model and a data set into a run folder.
"""

from typing import Any

from vitadel.evaluate.suites.base import Desk, Outcome, Referring, Survey, refuse_survey, survey
from vitadel.evaluate.suites.corruptions import Corruptions
from vitadel.evaluate.suites.gray_level import GrayLevel
from vitadel.evaluate.suites.natural import ImageNetA, ImageNetR, LabelSpace, NaturalAdversarial
from vitadel.evaluate.suites.shape_bias import ShapeBias
from vitadel.evaluate.suites.spatial import Spatial
from vitadel.evaluate.suites.transfer import Transfer
from vitadel.runs.schema import Measure

_KINDS: tuple[type[Any], ...] = (
    Corruptions,
    GrayLevel,
    Spatial,
    Transfer,
    ShapeBias,
    NaturalAdversarial,
    ImageNetA,
    ImageNetR,
)
SURVEYS: dict[str, type[Any]] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "SURVEYS",
    "Corruptions",
    "Desk",
    "GrayLevel",
    "ImageNetA",
    "ImageNetR",
    "LabelSpace",
    "Measure",
    "NaturalAdversarial",
    "Outcome",
    "Referring",
    "ShapeBias",
    "Spatial",
    "Survey",
    "Transfer",
    "refuse_survey",
    "survey",
]
