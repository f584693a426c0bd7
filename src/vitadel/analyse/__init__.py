"""From taps, models and images to numbers: studies that explain what an evaluation found."""

from collections.abc import Callable

from vitadel.analyse.gates import Gates
from vitadel.analyse.masking import Masking, masking
from vitadel.analyse.study import Images, Parts, Study, study
from vitadel.analyse.verdict import Evidence, Verdict

STUDIES: dict[str, Callable[[], Study]] = {
    "gates": Gates,
    "masking": Masking,
    "masking-quick": Masking.quick,
}

__all__ = ["STUDIES", "Evidence", "Gates", "Images", "Masking", "Parts", "Study", "Verdict", "masking", "study"]
