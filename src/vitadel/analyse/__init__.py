"""From taps, models and images to numbers: studies that explain what an evaluation found."""

from collections.abc import Callable

from vitadel.analyse.masking import Masking, masking
from vitadel.analyse.study import Images, Parts, Study
from vitadel.analyse.verdict import Evidence, Verdict

STUDIES: dict[str, Callable[[], Study]] = {
    "masking": Masking,
    "masking-quick": Masking.quick,
}

__all__ = ["STUDIES", "Evidence", "Images", "Masking", "Parts", "Study", "Verdict", "masking"]
