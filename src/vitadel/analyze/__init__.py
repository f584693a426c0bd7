"""Studies that explain a model: its attention, the role of its layers, the effect of attacks."""

from collections.abc import Callable

from vitadel.analyze.base import Study, map_chunks, run_study, study, tensor_context
from vitadel.analyze.convergence import Convergence
from vitadel.analyze.correlation import Correlation
from vitadel.analyze.feature_visualization import FeatureVisualization
from vitadel.analyze.lesion import Lesion
from vitadel.analyze.masking import Masking
from vitadel.analyze.masking_verdict import Evidence, Verdict
from vitadel.analyze.perturbation_semantics import PerturbationSemantics, classify_perturbations
from vitadel.analyze.perturbations import Perturbations
from vitadel.analyze.restricted_attention import RestrictedAttention
from vitadel.analyze.saliency import Saliency
from vitadel.analyze.tora_gates import TORAGates

STUDIES: dict[str, Callable[[], Study]] = {
    "convergence": Convergence,
    "correlation": Correlation,
    "feature-visualization": FeatureVisualization,
    "lesion": Lesion,
    "masking": Masking,
    "masking-quick": Masking.quick,
    "perturbation-semantics": PerturbationSemantics,
    "perturbations": Perturbations,
    "restricted-attention": RestrictedAttention,
    "saliency": Saliency,
    "tora-gates": TORAGates,
}

__all__ = [
    "STUDIES",
    "Convergence",
    "Correlation",
    "Evidence",
    "FeatureVisualization",
    "Lesion",
    "Masking",
    "PerturbationSemantics",
    "Perturbations",
    "RestrictedAttention",
    "Saliency",
    "Study",
    "TORAGates",
    "Verdict",
    "classify_perturbations",
    "map_chunks",
    "run_study",
    "study",
    "tensor_context",
]
