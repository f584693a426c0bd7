"""Adding adapters to a frozen network, and files that contain the adapters only."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from vitadel.core.errors import UsageError
from vitadel.core.numeric import check_seed
from vitadel.models.model import Model
from vitadel.models.spec import SPEC_KEY, ModelSpec
from vitadel.models.tora import AdaptedViT, AdapterConfig, make_adapted_vit
from vitadel.models.weights import check_keys, read_tensors, weights_sha256, write_tensors

BACKBONE_KEY = "vitadel.backbone"  # in the header of a file of adapters: a hash of the frozen weights they belong to


def tora(
    backbone: Model, tuning: AdapterConfig | None = None, *, num_classes: int | None = None, seed: int = 0
) -> Model:
    """A TORA-ViT: a frozen copy of the backbone with adapters that do not change its function before training.

    Args:
        backbone: A ViT or DeiT with a class token, made by `load`.
        tuning: The weights to add; by default both adapters with their gated fusion.
        num_classes: Number of classes of the new heads, which are initialized from `seed`; by default that of the old
            head, which is copied.
        seed: Seeds the initialization of new weights.
    """
    check_seed(seed)
    if backbone.spec is None or backbone.spec.tuning is not None:
        raise UsageError(
            "adapters are added to a model that `load` made and that has none yet. Load its backbone first."
        )
    kept, chosen = backbone.spec.num_classes, tuning or AdapterConfig()
    classes = kept if num_classes is None else num_classes
    spec = replace(backbone.spec, tuning=chosen, num_classes=classes, kept_classes=kept)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make_adapted_vit(backbone.net, chosen, classes).train(backbone.training)
    return Model(net, backbone.normalization, spec)


def save_adapters(model: Model, path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write the adapters without the frozen network, to a small file for `add_adapters`."""
    net = _adapted(model)
    assert model.spec is not None
    added = {key: value for key, value in net.state_dict().items() if not key.startswith("backbone.")}
    known = {SPEC_KEY: model.spec.to_json(), BACKBONE_KEY: weights_sha256(net.backbone.state_dict())}
    write_tensors(Path(path), added, {**known, **(about or {})})


def add_adapters(backbone: Model, path: str | Path) -> Model:
    """The network with the adapters of a file, which must have been trained on the same frozen weights."""
    state, about = read_tensors(Path(path))
    if SPEC_KEY not in about or BACKBONE_KEY not in about:
        raise UsageError(f"{path} holds no adapters. Write them with vitadel.models.save_adapters.")
    spec = ModelSpec.from_json(about[SPEC_KEY])
    if about[BACKBONE_KEY] != weights_sha256(backbone.net.state_dict()):
        raise UsageError(
            f"the adapters in {path} were trained on another network ({spec.name} with other weights, or another one). "
            "Add them to the network they belong to."
        )
    model = tora(backbone, spec.tuning, num_classes=spec.num_classes)
    wanted = {key: value for key, value in model.net.state_dict().items() if not key.startswith("backbone.")}
    check_keys(state, wanted, str(path))
    model.net.load_state_dict(state, strict=False)
    return model


def with_head(model: Model, head: str) -> Model:
    """A model with adapters, with the same weights and another output head: `joint`, `acc`, `rob` or `kept`."""
    net = _adapted(model)
    assert model.spec is not None
    tuning = replace(net.tuning, head=head)
    shared = copy.copy(net)  # a new object with the same modules inside
    shared.tuning = tuning
    chosen = Model(shared, model.normalization, replace(model.spec, tuning=tuning))
    chosen.mean, chosen.std = model.mean, model.std  # where the weights are, and in their precision
    return chosen


def _adapted(model: Model) -> AdaptedViT:
    if not isinstance(model.net, AdaptedViT):
        raise UsageError(f"this {type(model.net).__name__} has no adapters. Make them with vitadel.models.tora.")
    return model.net
