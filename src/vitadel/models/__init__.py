"""Models from pixels in [0, 1] to logits: timm's networks with the normalization inside, and taps into them."""

from vitadel.models import attention_scales
from vitadel.models.adapters import add_adapters, save_adapters, tora, with_head
from vitadel.models.build import own_models, timm_families
from vitadel.models.families import family_of
from vitadel.models.families.base import Layer
from vitadel.models.loading import check_exists, is_path, load, normalization_is_unknown, save, training_run_of, zoo
from vitadel.models.model import Cost, Model, cost, describe_model, set_attention_scales, wrap
from vitadel.models.spec import RAW_PIXELS, ModelSpec, Normalization, Option
from vitadel.models.taps import Taps
from vitadel.models.tora import AdaptedViT, AdapterConfig
from vitadel.models.weights import read_tensors, weights_sha256, write_tensors

__all__ = [
    "RAW_PIXELS",
    "AdaptedViT",
    "AdapterConfig",
    "Cost",
    "Layer",
    "Model",
    "ModelSpec",
    "Normalization",
    "Option",
    "Taps",
    "add_adapters",
    "attention_scales",
    "check_exists",
    "cost",
    "describe_model",
    "family_of",
    "is_path",
    "load",
    "normalization_is_unknown",
    "own_models",
    "read_tensors",
    "save",
    "save_adapters",
    "set_attention_scales",
    "timm_families",
    "tora",
    "training_run_of",
    "weights_sha256",
    "with_head",
    "wrap",
    "write_tensors",
    "zoo",
]
