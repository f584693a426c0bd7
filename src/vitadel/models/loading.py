"""Models by name: an architecture, a run folder, a checkpoint of ours, weights of others."""

import copy
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError, unknown
from vitadel.core.numeric import check_seed
from vitadel.models import attention_scales
from vitadel.models.build import build, complete, outline
from vitadel.models.families import family_of
from vitadel.models.model import Model
from vitadel.models.spec import ModelSpec, Normalization, Option
from vitadel.models.tora import ANSWERS, Adapted, Tuning, adapt
from vitadel.models.weights import check_keys, fingerprint, read_foreign, read_tensors, strip_prefix, write_tensors

SPEC_KEY = "vitadel.model"
BACKBONE_KEY = "vitadel.backbone"  # in a file of adapters: a hash of the frozen weights they belong to
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

    Arguments that are left out keep their value: from the checkpoint if there is one, else from the architecture.

    Args:
        model: `timm:NAME` or `vitadel:NAME`, either with `@FILE` for weights in a file (safetensors, or a `.pth` of
            which only tensors are read); `zoo:NAME`; a run folder; or a checkpoint of ours. `MODEL+FILE` adds adapters
            that `save_adapters` wrote, `MODEL#HEAD` chooses the output head of a model with adapters.
        num_classes: Another number than the weights have replaces the head by a fresh one.
        image_size: Another size resamples position embeddings; weights of another geometry are refused if neither this
            nor `patch_size` is given.
        patch_size: Another size resamples the patch kernel, too.
        normalization: Mean and standard deviation; by default timm's for the architecture. `RAW_PIXELS` is none.
        options: Further arguments of the architecture's constructor, such as `{"depth": 6}`.
        pretrained: Download timm's published weights.
        keep_head: Refuse weights with another number of classes instead of replacing their head.
        seed: Draws the weights that no file provides.

    Raises:
        UsageError: There is no such model, or its weights do not fit.

    Example:
        model = load("timm:vit_tiny_patch16_224", num_classes=10, image_size=32, patch_size=4)
        logits = model(torch.rand(2, 3, 32, 32))
    """
    check_seed(seed)
    if (named := _with_head(str(model))) is not None:
        keep = {"num_classes": num_classes, "image_size": image_size, "patch_size": patch_size}
        more = {"normalization": normalization, "options": options, "pretrained": pretrained, "seed": seed}
        return with_head(load(named[0], keep_head=keep_head, **keep, **more), named[1])  # type: ignore[arg-type]
    if (added := _with_adapters(str(model))) is not None:
        if any(one is not None for one in (num_classes, image_size, patch_size, normalization, options)) or pretrained:
            raise UsageError(f"the adapters in {added[1]} fit one network as it is. Leave its classes and sizes out.")
        return add_adapters(load(added[0]), added[1])
    name, at, file = str(model).partition("@")
    if at and not file:  # with an unset variable in a script, this would silently train from scratch
        raise UsageError(f"no file follows the @ in {model!r}. Write {name}@FILE, or leave out the @.")
    state: Mapping[str, Tensor] | None = None
    if name.startswith(("timm:", "vitadel:")):
        if file and pretrained:
            raise UsageError(f"{model} names a weights file, got pretrained=True as well. Choose one of the two.")
        old = complete(name, options or {}, num_classes)
        if file or pretrained:
            state = read_foreign(Path(file)) if file else _hub_weights(name)
    else:
        if pretrained:
            raise UsageError(f"{model} is a checkpoint and has its weights, got pretrained=True. Leave it out.")
        path = _checkpoint_path(str(model))
        state, old = _read_checkpoint(path)
    spec = replace(
        old,
        num_classes=old.num_classes if num_classes is None else num_classes,
        image_size=old.image_size if image_size is None else image_size,
        patch_size=old.patch_size if patch_size is None else patch_size,
        normalization=normalization or old.normalization,
        options=old.options if options is None else dict(options),
    )
    given = {"image_size": image_size is not None, "patch_size": patch_size is not None}
    source = _Source(state, str(model), **given, new_head=num_classes is not None, keep_head=keep_head)
    return _assemble(spec, source, seed=seed)


def save(
    model: Model, path: Path, about: Mapping[str, str] | None = None, *, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Write a checkpoint that `load` can read without further arguments.

    Args:
        model: A model made by `load`.
        path: The safetensors file to write.
        about: Further texts for its header.
        tensors: The state dict to write, if not the model's own (as when weights are sharded over processes).
    """
    if model.spec is None:
        raise UsageError("only models made by `load` know how to be built again; save this one's state dict instead.")
    values = model.net.state_dict() if tensors is None else tensors
    write_tensors(path, attention_scales.without_training(values), {SPEC_KEY: model.spec.to_json(), **(about or {})})


def tora(backbone: Model, tuning: Tuning | None = None, *, num_classes: int | None = None, seed: int = 0) -> Model:
    """A TORA-ViT: the backbone copied and frozen, with adapters that do not change its function yet.

    Args:
        backbone: A ViT or DeiT with a class token, made by `load`.
        tuning: What is added; by default both adapters with their gated fusion.
        num_classes: Of the new heads, drawn from `seed`; by default those of the old head, whose weights they copy.
        seed: Draws the new weights.
    """
    check_seed(seed)
    if backbone.spec is None or backbone.spec.tuning is not None:
        raise UsageError("adapters are added to a model that `load` made and that has none yet.")
    kept, chosen = backbone.spec.num_classes, tuning or Tuning()
    classes = kept if num_classes is None else num_classes
    spec = replace(backbone.spec, tuning=chosen, num_classes=classes, kept_classes=kept)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = adapt(backbone.net, chosen, classes).train(backbone.training)
    return Model(net, backbone.normalization, spec)


def save_adapters(model: Model, path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write the adapters alone, without the frozen network: a small file that `add_adapters` adds to it again."""
    net = _adapted(model)
    assert model.spec is not None
    added = {key: value for key, value in net.state_dict().items() if not key.startswith("backbone.")}
    known = {SPEC_KEY: model.spec.to_json(), BACKBONE_KEY: fingerprint(net.backbone.state_dict())}
    write_tensors(path, added, {**known, **(about or {})})


def add_adapters(backbone: Model, path: str | Path) -> Model:
    """The network with the adapters of a file; adapters that were trained on other weights are refused."""
    state, about = read_tensors(Path(path))
    if SPEC_KEY not in about or BACKBONE_KEY not in about:
        raise UsageError(f"{path} holds no adapters. Write them with vitadel.models.save_adapters.")
    spec = ModelSpec.from_json(about[SPEC_KEY])
    if about[BACKBONE_KEY] != fingerprint(backbone.net.state_dict()):
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
    tuning = replace(net.tuning, answer=head)
    shared = copy.copy(net)  # a new object with the same modules inside
    shared.tuning = tuning
    return Model(shared, model.normalization, replace(model.spec, tuning=tuning))


def _adapted(model: Model) -> Adapted:
    if not isinstance(model.net, Adapted):
        raise UsageError(f"this {type(model.net).__name__} has no adapters. Make them with vitadel.models.tora.")
    return model.net


def run_of(model: str | Path) -> Path | None:
    """The run folder in which a model, named as for `load`, was trained; None if it came from elsewhere.

    With a file of adapters it is the run that trained them, else that of the frozen network.
    """
    if (named := _with_head(str(model))) is not None:
        return run_of(named[0])
    if (added := _with_adapters(str(model))) is not None:
        return run_of(added[1]) or run_of(added[0])
    path = Path(model)
    if os.path.isdir(path):
        return path
    run = path.parent.parent
    within = path.parent.name == "checkpoints" and os.path.isfile(path) and os.path.isfile(run / "manifest.json")
    return run if within else None


def zoo() -> dict[str, str]:
    """The models that come with the package, by the NAME of `zoo:NAME`, each with a line about it."""
    return {path.stem: _about(path.with_suffix(".md")) for path in sorted(ZOO.glob("*.safetensors"))}


def _about(card: Path) -> str:
    """The first paragraph of a model card."""
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    paragraphs = [part for part in text.split("\n\n") if part.strip() and not part.startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else ""


def is_foreign(model: str | Path) -> bool:
    """Whether a model, named as for `load`, has weights from a file that does not record its normalization."""
    if (named := _with_head(str(model))) is not None:
        return is_foreign(named[0])
    if (added := _with_adapters(str(model))) is not None:
        return is_foreign(added[0])
    name, _, file = str(model).partition("@")
    return bool(file) and name.startswith(("timm:", "vitadel:"))


def _with_head(text: str) -> tuple[str, str] | None:
    name, mark, head = text.rpartition("#")
    return (name, head) if mark and head in ANSWERS and not _names_a_file(text) else None


def _with_adapters(text: str) -> tuple[str, str] | None:
    name, mark, file = text.rpartition("+")
    return (name, file) if mark and file.endswith(".safetensors") and not _names_a_file(text) else None


def _names_a_file(text: str) -> bool:
    """Whether a # or + is part of a path: a file or folder has the whole name, or the name after the @."""
    return os.path.exists(text) or ("@" in text and os.path.exists(text.partition("@")[2]))


@dataclass(frozen=True, slots=True)
class _Source:
    """The weights for a network, None for fresh ones, and which arguments the caller of `load` gave."""

    state: Mapping[str, Tensor] | None
    name: str
    image_size: bool
    patch_size: bool
    new_head: bool
    keep_head: bool


def _assemble(spec: ModelSpec, source: _Source, *, seed: int) -> Model:
    """Build the network and fill it; weights that do not fit are refused before memory is allocated."""
    shapes = outline(spec)
    state = None if source.state is None else _fitted(spec, shapes, source.state, source)
    net = build(spec, seed=seed)
    if state is not None:
        factors_M = state.pop(attention_scales.ATTENTION, None)
        net.load_state_dict({**net.state_dict(), **state})
        if factors_M is not None:
            attention_scales.set_factors(net, attention_scales.ATTENTION, factors_M)
    return Model(net, spec.normalization, replace(spec, patch_size=family_of(net).patch_size(net)))


def _fitted(spec: ModelSpec, shapes: nn.Module, state: Mapping[str, Tensor], source: _Source) -> dict[str, Tensor]:
    """The weights of `state` with the names and shapes of the network, without those that stay freshly drawn."""
    wanted = shapes.state_dict()
    stripped = strip_prefix(state, wanted)
    factors_M = stripped.pop(attention_scales.ATTENTION, None)
    _refuse_other_geometry(spec, shapes, stripped, source)
    fitted, fresh = family_of(shapes).fit(stripped, shapes), set()
    for key, value in wanted.items():
        other_classes = key in fitted and fitted[key].shape != value.shape and _in_head(shapes, key)
        if other_classes and source.keep_head and fitted[key].ndim and (own := len(fitted[key])) != len(value):
            raise UsageError(
                f"the head of {source.name} has {own} classes, not {len(value)}, and a fresh one would know nothing. "
                f"Write --classes {own}."
            )
        # old files lack the batch counter of BatchNorm, which evaluation never reads
        if (source.new_head and other_classes) or (key not in fitted and key.endswith("num_batches_tracked")):
            fresh.add(key)
    check_keys({**fitted, **{key: wanted[key] for key in fresh}}, wanted, source.name)
    kept = {key: value for key, value in fitted.items() if key not in fresh}
    return kept if factors_M is None else {**kept, attention_scales.ATTENTION: factors_M}


def _refuse_other_geometry(spec: ModelSpec, net: nn.Module, state: Mapping[str, Tensor], source: _Source) -> None:
    """Refuse weights of another geometry if no size was given: resampling would silently make the model worse."""
    family = family_of(net)
    seen, built = family.geometry(state, net), family.geometry(net.state_dict(), net)
    resized = source.image_size or source.patch_size
    other_kernel = not source.patch_size and seen.kernel not in (None, built.kernel)
    other_grid = not resized and seen.grid not in (None, built.grid)
    other_window = not resized and seen.window not in (None, built.window)
    if not (other_kernel or other_grid or other_window):
        return
    patch = family.patch_size(net)
    # a hybrid's kernel does not act on the image; there, a token covers as many pixels as in the network built
    pixels = seen.kernel if patch is not None else spec.image_size // (built.grid or spec.image_size)
    size = pixels * seen.grid if pixels and seen.grid else None
    looks = [
        f"patches of {seen.kernel}" if seen.kernel and patch is not None else "",
        f"a grid of {seen.grid} x {seen.grid} tokens" if seen.grid else "",
        f"windows of {seen.window}" if other_window else "",
    ]
    raise UsageError(
        f"the weights in {source.name} have {', '.join(filter(None, looks))}"
        f"{f', so they are of images of {size} x {size}' if size else ''}; {spec.name} was to take images of "
        f"{spec.image_size} x {spec.image_size}{f' in patches of {patch}' if patch else ''}. "
        + _how_to_say(size, seen.kernel if patch is not None else None, seen.window if not seen.grid else None)
    )


def _how_to_say(image_size: int | None, patch_size: int | None, window: int | None) -> str:
    """The arguments that give a network of this geometry."""
    if window is not None:
        return f"Choose an architecture with such windows, or options={{'window_size': {window}}} in Python."
    sizes = {"image_size": image_size, "patch_size": patch_size}
    known = {name: value for name, value in sizes.items() if value is not None}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in known.items())
    python = ", ".join(f"{name}={value}" for name, value in known.items())
    return f"Write {flags} ({python} in Python), or the sizes you want them resampled to."


def _in_head(net: nn.Module, key: str) -> bool:
    config = getattr(net, "pretrained_cfg", None) or {}
    heads = config.get("classifier") or ()
    return any(key.startswith(f"{head}.") for head in ([heads] if isinstance(heads, str) else heads))


def _checkpoint_path(text: str) -> Path:
    try:
        return _find(text)
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        raise UsageError(
            f"cannot look at {error.filename}: {error.strerror}. Make it and its folders readable, or name another."
        ) from error


def _find(text: str) -> Path:
    if text.startswith("zoo:"):
        path = ZOO / f"{text.removeprefix('zoo:')}.safetensors"
        if not path.exists():
            raise unknown("zoo model", text, (f"zoo:{file.stem}" for file in ZOO.glob("*.safetensors")))
        return path
    path = Path(text)
    if path.is_dir():
        best, final = (path / "checkpoints" / f"{name}.safetensors" for name in ("best", "final"))
        if best.exists():
            return best
        if not final.exists():
            raise UsageError(f"{path} holds no finished checkpoint (checkpoints/best.safetensors). Train it first.")
        if _was_selected(path):
            raise UsageError(
                f"{best} is missing, the weights with the best hold-out score. Restore it, or name the last weights "
                f"of the training instead: {final}."
            )
        return final
    if not path.exists():
        raise UsageError(
            f"{text!r} is no model: no such file or folder.{_maybe_timm(text)} Give a run folder, a checkpoint, "
            "zoo:NAME or timm:NAME."
        )
    if path.suffix != ".safetensors":
        raise UsageError(f"{path} does not say what it is. Name its architecture: timm:NAME@{path}.")
    return path


def _maybe_timm(text: str) -> str:
    """The hint for a name of timm without its prefix."""
    bare = text.split(".", 1)[0]
    near = [bare] if timm.is_model(bare) else difflib.get_close_matches(bare, timm.list_models(), n=1)
    return f" Did you mean timm:{text if near == [bare] else near[0]}?" if near else ""


def _was_selected(run: Path) -> bool:
    """Whether a training had hold-out scores, as its log says, and so wrote the best weights as well as the last."""
    try:
        return b'"event": "holdout"' in (run / "log.jsonl").read_bytes()
    except OSError:
        return False


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], ModelSpec]:
    state, about = read_tensors(path)
    if BACKBONE_KEY in about:
        raise UsageError(f"{path} holds adapters without their network. Write MODEL+{path}.")
    if SPEC_KEY not in about:
        raise UsageError(f"{path} does not say what it is. Name its architecture: timm:NAME@{path}.")
    return state, ModelSpec.from_json(about[SPEC_KEY])


def _hub_weights(name: str) -> dict[str, Tensor]:
    kind, _, arch = name.partition(":")
    if kind != "timm":
        raise UsageError(f"{name} has no published weights. Leave pretrained out, or give a file: {name}@FILE.")
    try:
        return dict(timm.create_model(arch, pretrained=True).state_dict())
    except Exception as error:  # whatever the hub's client raises, the advice is the same
        raise UsageError(
            f"could not fetch the weights of {arch} ({type(error).__name__}: {str(error).splitlines()[0]}). "
            f"Without the network, give a file: {name}@FILE."
        ) from error
