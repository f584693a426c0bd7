"""From a spec to a network."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import timm
import torch
import torch.nn.functional as F
from torch import nn

from vitadel.errors import UsageError, unknown
from vitadel.models.families import OTHER, Family, check_grid, family_of, family_of_timm_file
from vitadel.models.pointer import Pointer
from vitadel.models.spec import RAW_PIXELS, ModelSpec, Normalisation, Option
from vitadel.models.tora import adapt
from vitadel.models.wide_resnet import WideResNet
from vitadel.numeric import check_seed


@dataclass(frozen=True, slots=True)
class _Own:
    """An architecture that timm does not have under one name."""

    about: str
    image_size: int
    build: Callable[[int], nn.Module]


OWN: dict[str, _Own] = {
    "wrn28_10": _Own("WideResNet-28-10 for 32 px", 32, lambda classes: WideResNet(28, 10, classes)),
    "wrn28_10_silu": _Own(
        "WideResNet-28-10 with SiLU, for 32 px", 32, lambda classes: WideResNet(28, 10, classes, F.silu)
    ),
    "wrn34_10": _Own("WideResNet-34-10 for 32 px", 32, lambda classes: WideResNet(34, 10, classes)),
    "wrn70_16": _Own("WideResNet-70-16 for 32 px", 32, lambda classes: WideResNet(70, 16, classes)),
    "resnet50_gelu": _Own(
        "ResNet-50 with GELU", 224, lambda classes: timm.create_model("resnet50", act_layer="gelu", num_classes=classes)
    ),
    "pointer": _Own("hard attention for 8 px whose gradient is zero; to test attacks with", 8, Pointer),
}


def own_models() -> dict[str, str]:
    """The names after `vitadel:`, and what they stand for."""
    return {name: own.about for name, own in OWN.items()}


def timm_families() -> dict[str, str]:
    """One timm name of each family Vitadel knows inside out, and how many names there are."""
    return {
        "vit_small_patch16_224": f"ViT, one of {len(timm.list_models('vit_*'))}; taps, patch surgery",
        "deit_small_patch16_224": f"DeiT, one of {len(timm.list_models('deit*'))}; taps, patch surgery",
        "cait_s24_224": f"CaiT, one of {len(timm.list_models('cait_*'))}; taps, patch surgery",
        "xcit_small_12_p16_224": f"XCiT, one of {len(timm.list_models('xcit_*'))}; taps, patch surgery",
        "swin_tiny_patch4_window7_224": f"Swin, one of {len(timm.list_models('swin_*'))}; taps, image and patch size",
        "levit_128s": f"LeViT, one of {len(timm.list_models('levit_[0-9]*'))}; taps, image size",
        "resnet50": f"ResNet, one of {len(timm.list_models('resnet*'))}",
        "resnetv2_50x1_bit": f"ResNetV2 and BiT, one of {len(timm.list_models('resnetv2*'))}",
        "...": f"any of timm's {len(timm.list_models())} names, at its own size and without taps inside",
    }


def complete(name: str, options: Mapping[str, Option]) -> ModelSpec:
    """The spec of `timm:NAME` or `vitadel:NAME` as its authors made it."""
    kind, _, arch = name.partition(":")
    if kind == "vitadel":
        size = _own(arch).image_size
        if options:
            raise UsageError(f"{name} takes no options, got {', '.join(options)}. Leave them out.")
        return ModelSpec(name, 10 if size <= 32 else 1000, size, None, RAW_PIXELS)
    config = _timm_config(arch)
    normalisation = Normalisation(tuple(config.mean), tuple(config.std))
    return ModelSpec(name, config.num_classes, config.input_size[-1], None, normalisation, dict(options))


def build(spec: ModelSpec, *, seed: int) -> nn.Module:
    """A fresh network of this spec, its weights drawn from `seed`, its token grid checked against the image."""
    check_seed(seed)
    for what in ("num_classes", "image_size", "patch_size"):
        if (value := getattr(spec, what)) is not None and value < 1:
            raise UsageError(f"{what} must be at least 1, got {value}.")
    if spec.tuning is not None:
        frozen = build(_frozen(spec), seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return adapt(frozen, spec.tuning, spec.num_classes).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = _construct(spec)
    family = family_of(net)
    if spec.patch_size is not None and spec.patch_size != family.patch_size(net):
        family.set_patch(net, spec.patch_size)
    net.eval()
    check_grid(family, net, spec.image_size)
    return net


def _frozen(spec: ModelSpec) -> ModelSpec:
    kept = spec.num_classes if spec.kept_classes is None else spec.kept_classes
    return replace(spec, num_classes=kept, tuning=None, kept_classes=None)


def _construct(spec: ModelSpec) -> nn.Module:
    kind, _, arch = spec.name.partition(":")
    if kind == "vitadel":
        OTHER.size_options(spec.image_size, spec.patch_size)
        return _own(arch).build(spec.num_classes)
    if (channels := spec.options.get("in_chans", 3)) != 3:
        raise UsageError(
            f"images have 3 channels here, got in_chans={channels}. Leave it out; grey images are repeated."
        )
    config = _timm_config(arch)
    family: Family = family_of_timm_file(timm.model_entrypoint(arch).__module__.rsplit(".", 1)[-1])
    if family is OTHER and config.fixed_input_size and spec.image_size != config.input_size[-1]:
        raise UsageError(f"{spec.name} has a fixed size of {config.input_size[-1]}, got {spec.image_size}.")
    sizes = family.size_options(spec.image_size, spec.patch_size)
    try:
        net = timm.create_model(arch, num_classes=spec.num_classes, **sizes, **spec.options)
    except (TypeError, AssertionError, ValueError) as error:
        asked = ", ".join(f"{key}={value}" for key, value in {**sizes, **spec.options}.items())
        raise UsageError(f"timm cannot build {arch} with {asked or 'its defaults'}: {error}.") from error
    assert isinstance(net, nn.Module)
    return net


def _own(arch: str) -> _Own:
    if arch not in OWN:
        raise unknown("model", f"vitadel:{arch}", (f"vitadel:{known}" for known in OWN))
    return OWN[arch]


def _timm_config(arch: str) -> timm.models.PretrainedCfg:
    bare = arch.split(".", 1)[0]
    if not timm.is_model(bare):
        near = difflib.get_close_matches(bare, timm.list_models(), n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"timm has no model {bare!r}.{hint} `vitadel models` shows the families.")
    try:
        return timm.get_pretrained_cfg(arch)
    except RuntimeError as error:
        tag = arch.partition(".")[2]
        raise UsageError(f"timm's {bare} has no weights tagged {tag!r}. Leave the tag out.") from error
