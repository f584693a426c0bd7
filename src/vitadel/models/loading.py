"""Models by name: an architecture, a run folder, a checkpoint, or a file of other libraries."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitadel.core.errors import UsageError, spelled, unknown_name_error
from vitadel.core.numeric import check_seed
from vitadel.models import attention_scales
from vitadel.models.adapters import BACKBONE_KEY, add_adapters, with_head
from vitadel.models.build import build, build_on_meta, default_spec
from vitadel.models.families import family_of
from vitadel.models.families.base import classifiers
from vitadel.models.model import Model
from vitadel.models.spec import SPEC_KEY, ModelSpec, Normalization, Option
from vitadel.models.tora import HEADS
from vitadel.models.weights import (
    check_keys,
    check_readable,
    read_external_weights,
    read_tensors,
    strip_prefix,
    write_tensors,
)

_ARCHITECTURES = ("timm:", "vitadel:")
ZOO = Path(__file__).parents[1] / "zoo"  # a link to zoo/ inside the package, so that it is installed


def load(
    model: str | Path,
    *,
    num_classes: int | None = None,
    image_size: int | None = None,
    patch_size: int | None = None,
    normalization: Normalization | None = None,
    options: Mapping[str, Option] | None = None,
    pretrained: bool = False,
    keep_head: bool = False,
    seed: int = 0,
) -> Model:
    """A model on pixels in [0, 1], in evaluation mode.

    By default, arguments are those of the checkpoint if there is one, else those of the architecture.

    Args:
        model: `timm:NAME` or `vitadel:NAME`, either with `@FILE` for weights in a file (safetensors, or a `.pth` of
            which only tensors are read); `zoo:NAME`; a run folder; or a checkpoint of Vitadel. `MODEL+FILE` adds
            adapters that `save_adapters` wrote, `MODEL#HEAD` chooses the output head of a model with adapters.
        num_classes: Number of classes; if the weights have another number, the head is replaced by a new one.
        image_size: Image size; position embeddings are resampled if needed. If it is not given, weights of images of
            another size are refused.
        patch_size: Patch size; the patch kernel is resampled if needed. If it is not given, weights with other patches
            are refused.
        normalization: Mean and standard deviation; by default timm's for the architecture. `RAW_PIXELS` is none.
        options: Further arguments of the architecture's constructor, such as `{"depth": 6}`.
        pretrained: Download timm's published weights.
        keep_head: Refuse weights with another number of classes instead of replacing their head.
        seed: Seeds the initialization of weights that no file provides.

    Returns:
        A plain `nn.Module` with the normalization inside and `taps` for its internal values, on the CPU.

    Raises:
        UsageError: If there is no such model, or its weights do not fit.

    Example:
        >>> model = load("timm:vit_tiny_patch16_224", num_classes=10, image_size=32, patch_size=4)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    check_seed(seed)
    changes: dict[str, object] = {"num_classes": num_classes, "image_size": image_size, "patch_size": patch_size}
    changes |= {"normalization": normalization, "options": None if options is None else dict(options)}
    given = {name: value for name, value in changes.items() if value is not None}
    return _load(str(model), _ModelRequest(given, pretrained, keep_head, seed))


@dataclass(frozen=True, slots=True)
class _ModelRequest:
    """The arguments of `load`: the given fields of the spec, and how to treat the weights."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    keep_head: bool = False
    seed: int = 0


def _load(text: str, request: _ModelRequest) -> Model:
    name, mark, suffix = _split_suffix(text)
    if mark == "#":
        return with_head(_load(name, request), suffix)
    if mark == "+":
        if request.changes or request.pretrained:
            raise UsageError(f"the adapters in {suffix} fit one network as it is. Leave its classes and sizes out.")
        return add_adapters(_load(name, _ModelRequest()), suffix)
    state, spec = _weights(text, request)
    return _assemble(replace(spec, **request.changes), text, state, request)


def _weights(text: str, request: _ModelRequest) -> tuple[Mapping[str, Tensor] | None, ModelSpec]:
    """The weights named by the text, None for random ones, and the spec before the changes of the request."""
    name, file = _split_file(text)
    if not name.startswith(_ARCHITECTURES):
        if request.pretrained:
            raise UsageError(f"{text} is a checkpoint and has its weights, got pretrained=True. Leave it out.")
        return _read_checkpoint(_checkpoint_path(text))
    if file and request.pretrained:
        raise UsageError(f"{text} names a weights file, got pretrained=True as well. Choose one of the two.")
    spec = default_spec(name, request.changes.get("options", {}), request.changes.get("num_classes"))
    if file:
        return read_external_weights(Path(file)), spec
    return _hub_weights(name) if request.pretrained else None, spec


def _split_file(text: str) -> tuple[str, str]:
    """`NAME@FILE` in two parts; the second is empty for a model without a file."""
    name, at, file = text.partition("@")
    if at and not file:  # with an unset variable in a script, this would silently train from scratch
        raise UsageError(f"no file follows the @ in {text!r}. Write {name}@FILE, or leave out the @.")
    return name, file


def check_exists(model: str | Path) -> None:
    """Refuse a model, named as for `load`, that does not exist; weights are not read.

    Raises:
        UsageError: If there is no such architecture, run folder or file.
    """
    name, mark, suffix = _split_suffix(str(model))
    if mark:
        check_exists(name)
        file = suffix if mark == "+" else ""
    elif name.startswith(_ARCHITECTURES):
        name, file = _split_file(name)
        default_spec(name, {}, num_classes=1)
    else:
        file = str(_checkpoint_path(name))
    if file:
        check_readable(Path(file))


def is_path(model: str) -> bool:
    """Whether a model, named as for `load`, is a file or folder that exists, or an architecture with such a file."""
    name, mark, _ = _split_suffix(model)
    if mark:
        return is_path(name)
    return os.path.exists(name.partition("@")[2] if name.startswith(_ARCHITECTURES) else name)


def save(
    model: Model,
    path: str | Path,
    about: Mapping[str, str] | None = None,
    *,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint that `load` can read without further arguments.

    Args:
        model: A model made by `load`.
        path: The safetensors file to write.
        about: Further metadata for its header.
        tensors: The state dict to write, if not the model's own (as when weights are sharded over processes).
    """
    if model.spec is None:
        raise UsageError("only models made by `load` know how to be built again; save this one's state dict instead.")
    values = model.net.state_dict() if tensors is None else tensors
    write_tensors(
        Path(path), attention_scales.without_training(values), {SPEC_KEY: model.spec.to_json(), **(about or {})}
    )


def training_run_of(model: str | Path) -> Path | None:
    """The run folder in which a model, named as for `load`, was trained; None if there is none.

    With adapters it is the run that trained them, or else that of the frozen network.
    """
    name, mark, suffix = _split_suffix(str(model))
    if mark:
        return (training_run_of(suffix) if mark == "+" else None) or training_run_of(name)
    path = Path(model)
    if os.path.isdir(path):
        return path
    run = path.parent.parent
    in_run = path.parent.name == "checkpoints" and os.path.isfile(path) and os.path.isfile(run / "manifest.json")
    return run if in_run else None


def zoo() -> dict[str, str]:
    """The models that come with the package, by the NAME of `zoo:NAME`, each with a description."""
    return {path.stem: _about(path.with_suffix(".md")) for path in sorted(ZOO.glob("*.safetensors"))}


def _about(card: Path) -> str:
    """The first paragraph of a model card."""
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    paragraphs = [part for part in text.split("\n\n") if part.strip() and not part.startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


def normalization_is_unknown(model: str | Path) -> bool:
    """Whether a model, named as for `load`, has weights from a file that does not record its normalization."""
    name, mark, _ = _split_suffix(str(model))
    if mark:
        return normalization_is_unknown(name)
    name, _, file = name.partition("@")
    return bool(file) and name.startswith(_ARCHITECTURES)


def _split_suffix(text: str) -> tuple[str, str, str]:
    """`MODEL#HEAD` or `MODEL+FILE` in three parts; the last two are empty for a model without head or adapters."""
    name, mark, head = text.rpartition("#")
    if mark and head in HEADS and not _is_path(text):
        return name, mark, head
    name, mark, file = text.rpartition("+")
    if mark and file.endswith(".safetensors") and not _is_path(text):
        return name, mark, file
    return text, "", ""


def _is_path(text: str) -> bool:
    """Whether a # or + is part of a path: a file or folder exists with the whole name, or the name after the @."""
    return os.path.exists(text) or ("@" in text and os.path.exists(text.partition("@")[2]))


def _assemble(spec: ModelSpec, text: str, state: Mapping[str, Tensor] | None, request: _ModelRequest) -> Model:
    """Build the network and load its weights; those that do not fit are refused before memory is allocated."""
    shapes = build_on_meta(spec)
    fitted = None if state is None else _fitted(spec, shapes, state, text, request)
    net = build(spec, seed=request.seed)
    if fitted is not None:
        factors = attention_scales.taken_from(fitted)
        net.load_state_dict({**net.state_dict(), **fitted})
        attention_scales.restore(net, factors)
    return Model(net, spec.normalization, replace(spec, patch_size=family_of(net).patch_size(net)))


def _fitted(
    spec: ModelSpec, shapes: nn.Module, state: Mapping[str, Tensor], text: str, request: _ModelRequest
) -> dict[str, Tensor]:
    """The weights of `state` with the names and shapes of the network, without those that keep their initialization."""
    wanted = shapes.state_dict()
    stripped = strip_prefix(state, wanted)
    factors = attention_scales.taken_from(stripped)
    _check_geometry(spec, shapes, stripped, text, request.changes)
    fitted, fresh = family_of(shapes).convert_weights(stripped, shapes), set()
    heads = tuple(f"{name}." for name in classifiers(shapes))
    for key, value in wanted.items():
        other_classes = key in fitted and fitted[key].shape != value.shape and key.startswith(heads)
        if other_classes and request.keep_head and fitted[key].ndim and (own := len(fitted[key])) != len(value):
            raise UsageError(
                f"the head of {text} has {own} classes, not {len(value)}, and a new head would be untrained. "
                f"Write {spelled('num_classes', own)}."
            )
        # old files lack the batch counter of BatchNorm, which evaluation never reads
        if (other_classes and "num_classes" in request.changes) or (
            key not in fitted and key.endswith("num_batches_tracked")
        ):
            fresh.add(key)
    check_keys({**fitted, **{key: wanted[key] for key in fresh}}, wanted, text)
    kept = {key: value for key, value in fitted.items() if key not in fresh}
    return {**kept, **factors}


def _check_geometry(
    spec: ModelSpec, net: nn.Module, state: Mapping[str, Tensor], text: str, changes: Mapping[str, Any]
) -> None:
    """Refuse weights of another geometry if it was not requested: resampling would silently make the model worse."""
    family = family_of(net)
    seen, built = family.geometry(state, net), family.geometry(net.state_dict(), net)
    patch = family.patch_size(net)
    # a hybrid's kernel does not act on the image; there, a token covers as many pixels as in the network built
    pixels = seen.kernel if patch is not None else spec.image_size // (built.grid or spec.image_size)
    size = pixels * seen.grid if pixels and seen.grid else None
    sized, patched = "image_size" in changes, "patch_size" in changes
    other_kernel = not patched and seen.kernel not in (None, built.kernel)
    # other patches of the same images have another grid
    other_grid = size not in (None, spec.image_size) if patched else seen.grid not in (None, built.grid)
    other_window = not patched and seen.window not in (None, built.window)
    if not (other_kernel or (not sized and (other_grid or other_window))):
        return
    geometry = [
        f"patches of {seen.kernel}" if seen.kernel and patch is not None else "",
        f"a grid of {seen.grid} x {seen.grid} tokens" if seen.grid else "",
        f"windows of {seen.window}" if other_window else "",
    ]
    raise UsageError(
        f"the weights in {text} have {', '.join(filter(None, geometry))}"
        f"{f', so they are of images of {size} x {size}' if size else ''}; {spec.name} was to take images of "
        f"{spec.image_size} x {spec.image_size}{f' in patches of {patch}' if patch else ''}. "
        + _geometry_advice(size, seen.kernel if patch is not None else None, seen.window if not seen.grid else None)
    )


def _geometry_advice(image_size: int | None, patch_size: int | None, window: int | None) -> str:
    """The arguments that give a network of this geometry."""
    if window is not None:
        return f"Choose an architecture with such windows, or options={{'window_size': {window}}} in Python."
    sizes = {"image_size": image_size, "patch_size": patch_size}
    known = {name: value for name, value in sizes.items() if value is not None}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in known.items())
    python = ", ".join(f"{name}={value}" for name, value in known.items())
    return f"Write {flags} ({python} in Python), or the sizes you want them resampled to."


def _checkpoint_path(text: str) -> Path:
    try:
        return _find(text)
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        raise UsageError(
            f"cannot access {error.filename}: {error.strerror}. Make it and its folders readable, or name another."
        ) from error


def _find(text: str) -> Path:
    if text.startswith("zoo:"):
        path = ZOO / f"{text.removeprefix('zoo:')}.safetensors"
        if not path.exists():
            raise unknown_name_error("zoo model", text, (f"zoo:{file.stem}" for file in ZOO.glob("*.safetensors")))
        return path
    path = Path(text)
    if path.is_dir():
        best, final = (path / "checkpoints" / f"{name}.safetensors" for name in ("best", "final"))
        if best.exists():
            return best
        if not final.exists():
            raise UsageError(f"{path} holds no finished checkpoint (checkpoints/best.safetensors). Train it first.")
        if missing := _missing_selection(path):
            raise UsageError(
                f"{best} is missing, {missing}. Restore it, or name the last weights of the training instead: {final}."
            )
        return final
    if not path.exists():
        raise UsageError(
            f"{text!r} is not a model: no such file or folder.{_timm_hint(text)} Give a run folder, a checkpoint, "
            "zoo:NAME or timm:NAME."
        )
    if path.suffix != ".safetensors":
        raise UsageError(f"{path} has no description of its model. Name the architecture: timm:NAME@{path}.")
    return path


def _timm_hint(text: str) -> str:
    """The hint for a name of timm without its prefix."""
    import timm

    bare = text.split(".", 1)[0]
    near = [bare] if timm.is_model(bare) else difflib.get_close_matches(bare, timm.list_models(), n=1)
    return f" Did you mean timm:{text if near == [bare] else near[0]}?" if near else ""


def _missing_selection(run: Path) -> str:
    """What a run folder without its best weights lacks; empty if its log has no hold-out scores to select them by."""
    log = run / "log.jsonl"
    try:
        selected = b'"event": "holdout"' in log.read_bytes()
    except OSError:
        return f"and {log}, which says whether the training selected weights, cannot be read"
    return "the weights with the best hold-out score" if selected else ""


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], ModelSpec]:
    state, about = read_tensors(path)
    if BACKBONE_KEY in about:
        raise UsageError(f"{path} holds adapters without their network. Write MODEL+{path}.")
    if SPEC_KEY not in about:
        raise UsageError(f"{path} has no description of its model. Name the architecture: timm:NAME@{path}.")
    return state, ModelSpec.from_json(about[SPEC_KEY])


def _hub_weights(name: str) -> dict[str, Tensor]:
    kind, _, arch = name.partition(":")
    if kind != "timm":
        raise UsageError(f"{name} has no published weights. Leave pretrained out, or give a file: {name}@FILE.")
    import timm

    try:
        return dict(timm.create_model(arch, pretrained=True).state_dict())
    except Exception as error:  # the client of the hub may raise anything
        raise UsageError(
            f"could not fetch the weights of {arch} ({type(error).__name__}: {str(error).splitlines()[0]}). "
            f"Without internet access, give a file: {name}@FILE."
        ) from error
