"""From taps, models and images to numbers: studies that explain what an evaluation found."""

from collections.abc import Callable

from vitadel.analyse.accumulate import Accumulate
from vitadel.analyse.convergence import Convergence
from vitadel.analyse.correlation import Correlation
from vitadel.analyse.gates import Gates
from vitadel.analyse.lesion import Lesion
from vitadel.analyse.masking import Masking, masking
from vitadel.analyse.perturbations import Perturbations
from vitadel.analyse.restrict import Restrict
from vitadel.analyse.saliency import Saliency
from vitadel.analyse.semantics import Semantics, semantics
from vitadel.analyse.study import Bench, Images, Parts, Study, study
from vitadel.analyse.verdict import Evidence, Verdict

STUDIES: dict[str, Callable[[], Study]] = {
    "accumulate": Accumulate,
    "convergence": Convergence,
    "correlation": Correlation,
    "gates": Gates,
    "lesion": Lesion,
    "masking": Masking,
    "masking-quick": Masking.quick,
    "perturbations": Perturbations,
    "restrict": Restrict,
    "saliency": Saliency,
    "semantics": Semantics,
}

__all__ = [
    "STUDIES",
    "Accumulate",
    "Bench",
    "Convergence",
    "Correlation",
    "Evidence",
    "Gates",
    "Images",
    "Lesion",
    "Masking",
    "Parts",
    "Perturbations",
    "Restrict",
    "Saliency",
    "Semantics",
    "Study",
    "Verdict",
    "masking",
    "semantics",
    "study",
]
