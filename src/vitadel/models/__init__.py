"""Pixels in [0, 1] to logits: timm's networks with the normalisation inside, and taps to see inside them."""

from vitadel.models.build import own_models, timm_families
from vitadel.models.costs import Cost, cost
from vitadel.models.families import family_of
from vitadel.models.loading import load, save
from vitadel.models.model import Model, wrap
from vitadel.models.spec import RAW_PIXELS, ModelSpec, Normalisation, Option
from vitadel.models.taps import Taps
from vitadel.models.weights import fingerprint, read_tensors, write_tensors

__all__ = [
    "RAW_PIXELS",
    "Cost",
    "Model",
    "ModelSpec",
    "Normalisation",
    "Option",
    "Taps",
    "cost",
    "family_of",
    "fingerprint",
    "load",
    "own_models",
    "read_tensors",
    "save",
    "timm_families",
    "wrap",
    "write_tensors",
]
