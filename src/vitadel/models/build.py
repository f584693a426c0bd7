"""From a model's spec to its network."""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitadel.core.errors import UsageError, short_reason, unknown_name_error
from vitadel.core.numeric import check_seed
from vitadel.models.families import OTHER_FAMILY, family_of, family_of_timm_file
from vitadel.models.families.base import Family, check_grid
from vitadel.models.masked_gradient_net import MaskedGradientNet
from vitadel.models.options import check_options
from vitadel.models.spec import RAW_PIXELS, ModelSpec, Normalization, Option
from vitadel.models.tora import make_adapted_vit
from vitadel.models.wide_resnet import WideResNet

if TYPE_CHECKING:
    from timm.models import PretrainedCfg

# bytes of the tables of LeViT, Swin and BEiT, which are in no file: they grow with the fourth power of the image size
_MOST_TABLES = 2**29
# a registered name, and the tag of its published weights
_TIMM_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_-]+)?")


@dataclass(frozen=True, slots=True)
class _Own:
    """An architecture of Vitadel, or one that timm has only with further arguments."""

    about: str
    image_size: int
    build: Callable[..., nn.Module]
    options: tuple[str, ...] = ()


def _resnet50_gelu(num_classes: int) -> nn.Module:
    import timm

    net = timm.create_model("resnet50", pretrained=False, act_layer="gelu", num_classes=num_classes)
    assert isinstance(net, nn.Module)
    return net


def _wide(depth: int, width: int) -> _Own:
    build = partial(WideResNet, depth, width)
    return _Own(f"WideResNet-{depth}-{width} for 32 px; takes the option act_layer=silu", 32, build, ("act_layer",))


OWN_ARCHITECTURES: dict[str, _Own] = {
    "wrn28_10": _wide(28, 10),
    "wrn28_10_silu": _Own("WideResNet-28-10 with SiLU, for 32 px", 32, partial(WideResNet, 28, 10, act_layer="silu")),
    "wrn34_10": _wide(34, 10),
    "wrn70_16": _wide(70, 16),
    "resnet50_gelu": _Own("ResNet-50 with GELU", 224, _resnet50_gelu),
    "masked_gradient_net": _Own(
        "hard attention for 8 px whose gradient is zero; to test attacks with", 8, MaskedGradientNet
    ),
}


# names in checkpoints of earlier versions
_FORMER_ARCHITECTURES = {"pointer": "masked_gradient_net"}


def own_models() -> dict[str, str]:
    """Vitadel's own architectures: the names after `vitadel:`, each with a description."""
    return {name: own.about for name, own in OWN_ARCHITECTURES.items()}


def timm_families() -> dict[str, str]:
    """One name of timm per family that Vitadel supports, each with a description; timm is not imported for it."""
    return {
        "vit_small_patch16_224": "ViT; taps, other patch sizes",
        "deit_small_patch16_224": "DeiT; taps, other patch sizes",
        "cait_s24_224": "CaiT; taps, other patch sizes",
        "xcit_small_12_p16_224": "XCiT; taps, other patch sizes",
        "swin_tiny_patch4_window7_224": "Swin; taps, image and patch size",
        "levit_128s": "LeViT; taps, image size",
        "resnet50": "ResNet",
        "resnetv2_50x1_bit": "ResNetV2 and BiT",
        "...": "any other, at its own size and without taps inside; `vitadel models TEXT` lists those with TEXT",
    }


def timm_names(text: str) -> list[str]:
    """The names of timm in which a text occurs."""
    import timm

    return [name for name in timm.list_models() if text.lower() in name]


def default_spec(name: str, options: Mapping[str, Option], num_classes: int | None = None) -> ModelSpec:
    """The spec of `timm:NAME` or `vitadel:NAME` with its published geometry and normalization."""
    kind, _, arch = name.partition(":")
    if kind == "vitadel":
        own = _own(arch)
        size = own.image_size
        check_options(name, options, allowed=own.options)
        usual = 10 if size <= 32 else 1000
        return ModelSpec(name, usual if num_classes is None else num_classes, size, None, RAW_PIXELS, dict(options))
    config = _timm_config(arch)
    classes = config.num_classes if num_classes is None else num_classes
    if num_classes is None and not classes:
        raise UsageError(f"{name} has no number of classes. Write num_classes=N (--num-classes N).")
    normalization = Normalization(tuple(config.mean), tuple(config.std))
    return ModelSpec(name, classes, config.input_size[-1], None, normalization, dict(options))


def build_on_meta(spec: ModelSpec) -> nn.Module:
    """The network of this spec on the meta device: its shapes, without memory for weights.

    Raises:
        UsageError: If there is no such network, its token grid does not tile the image, or it takes too much memory.
    """
    with torch.device("meta"):
        net = build(spec, seed=0)
        check_grid(family_of(net), net, spec.image_size)
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*net.parameters(), *net.buffers()))
    if size > (most := machine_memory()):
        raise UsageError(
            f"{spec.name} with these sizes and options takes {size / 2**30:,.1f} GiB, and this machine has "
            f"{most / 2**30:,.1f}. Choose smaller ones."
        )
    stored = net.state_dict()
    if (tables := sum(table.nbytes for name, table in net.named_buffers() if name not in stored)) > _MOST_TABLES:
        raise UsageError(
            f"{spec.name} with these sizes and options has tables of positions of {tables / 2**30:,.1f} GiB, more than "
            f"{_MOST_TABLES / 2**30:,.1f}. Choose a smaller image_size or other options."
        )
    return net


def build(spec: ModelSpec, *, seed: int) -> nn.Module:
    """A network of this spec, initialized from `seed`; call `build_on_meta` first, which checks the spec."""
    check_seed(seed)
    if spec.tuning is not None:
        frozen = build(_frozen(spec), seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_adapted_vit(frozen, spec.tuning, spec.num_classes).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = _construct(spec)
    family = family_of(net)
    if spec.patch_size is not None and spec.patch_size != family.patch_size(net):
        family.set_patch(net, spec.patch_size)
    return net.eval()


def _frozen(spec: ModelSpec) -> ModelSpec:
    kept = spec.num_classes if spec.kept_classes is None else spec.kept_classes
    return replace(spec, num_classes=kept, tuning=None, kept_classes=None)


def _construct(spec: ModelSpec) -> nn.Module:
    kind, _, arch = spec.name.partition(":")
    if kind == "vitadel":
        OTHER_FAMILY.size_options(spec.image_size, spec.patch_size)
        own = _own(arch)
        check_options(spec.name, spec.options, allowed=own.options)
        return own.build(spec.num_classes, **spec.options)
    if kind != "timm":
        raise UsageError(f"{spec.name!r} is not an architecture. Write timm:NAME for timm's, vitadel:NAME for our own.")
    import timm

    config = _timm_config(arch)
    family: Family = family_of_timm_file(timm.model_entrypoint(arch).__module__.rsplit(".", 1)[-1])
    if family is OTHER_FAMILY and config.fixed_input_size and spec.image_size != config.input_size[-1]:
        raise UsageError(
            f"{spec.name} has a fixed size of {config.input_size[-1]}, got {spec.image_size}. Leave image_size out."
        )
    sizes = family.size_options(spec.image_size, spec.patch_size)
    check_options(spec.name, spec.options, family.architectures)
    try:
        net = timm.create_model(arch, pretrained=False, num_classes=spec.num_classes, **sizes, **spec.options)
    except Exception as error:  # inconsistent sizes can raise anything in timm or torch
        given = ", ".join(f"{key}={value}" for key, value in {**sizes, **spec.options}.items())
        raise UsageError(
            f"timm cannot build {arch} with {given or 'its defaults'}: {short_reason(error)}. "
            "Change its sizes or options."
        ) from error
    assert isinstance(net, nn.Module)
    return net


def machine_memory() -> float:
    """The memory of this machine in bytes; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _own(arch: str) -> _Own:
    arch = _FORMER_ARCHITECTURES.get(arch, arch)
    if arch not in OWN_ARCHITECTURES:
        raise unknown_name_error("model", f"vitadel:{arch}", (f"vitadel:{known}" for known in OWN_ARCHITECTURES))
    return OWN_ARCHITECTURES[arch]


def _timm_config(arch: str) -> "PretrainedCfg":
    import timm

    bare = arch.split(".", 1)[0]
    # timm itself would download hf-hub:NAME and read the folder of local-dir:NAME
    if not _TIMM_NAME.fullmatch(arch):
        raise UsageError(f"timm has no model {arch!r:.80}. Write letters, digits and _, and one . before a tag.")
    if not timm.is_model(bare):
        near = difflib.get_close_matches(bare, timm.list_models(), n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"timm has no model {bare!r}.{hint} See `vitadel models` for the families.")
    try:
        return timm.get_pretrained_cfg(arch)
    except RuntimeError as error:
        tag = arch.partition(".")[2]
        raise UsageError(f"timm's {bare} has no weights tagged {tag!r}. Leave the tag out.") from error
