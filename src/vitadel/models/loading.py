"""One way in for every model: by architecture, from a run folder, from a file of ours or of others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import timm
from torch import Tensor, nn

from vitadel.errors import UsageError, unknown
from vitadel.models.build import build, complete
from vitadel.models.families import family_of
from vitadel.models.model import Model
from vitadel.models.spec import ModelSpec, Normalisation, Option
from vitadel.models.weights import check_keys, read_foreign, read_tensors, strip_prefix, write_tensors

SPEC_KEY = "vitadel.model"
ZOO = Path(__file__).parents[3] / "zoo"


def load(
    model: str | Path,
    *,
    num_classes: int | None = None,
    image_size: int | None = None,
    patch_size: int | None = None,
    normalisation: Normalisation | None = None,
    options: Mapping[str, Option] | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> Model:
    """A model on pixels in [0, 1], in evaluation mode.

    `model` is `timm:NAME` or `vitadel:NAME`, either with `@FILE` for weights in a file (safetensors, or a `.pth` of
    which only tensors are read), `zoo:NAME`, a run folder, or a checkpoint of ours.

    What is left out keeps its value: from the checkpoint if there is one, else from the architecture. Another
    `num_classes` replaces the head by a fresh one; another `image_size` or `patch_size` resamples patch kernel and
    positions. `normalisation` defaults to timm's for the architecture; `RAW_PIXELS` is none. `seed` draws the weights
    that no file provides.
    """
    name, at, file = str(model).partition("@")
    if at and not file:  # an unset variable in a script would train from nothing without a word
        raise UsageError(f"no file follows the @ in {model!r}. Write {name}@FILE, or leave out the @.")
    state: Mapping[str, Tensor] | None = None
    if name.startswith(("timm:", "vitadel:")):
        if file and pretrained:
            raise UsageError(f"{model} names a weights file, got pretrained=True as well. Choose one of the two.")
        old = complete(name, options or {})
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
        normalisation=normalisation or old.normalisation,
        options=old.options if options is None else dict(options),
    )
    return _assemble(spec, state, str(model), new_head=num_classes is not None, seed=seed)


def save(
    model: Model, path: Path, about: Mapping[str, str] | None = None, *, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """A checkpoint that `load` can read without being told anything; of `tensors` if the model's own are elsewhere."""
    if model.spec is None:
        raise UsageError("only models made by `load` know how to be built again; save this one's state dict instead.")
    values = model.net.state_dict() if tensors is None else tensors
    write_tensors(path, values, {SPEC_KEY: model.spec.to_json(), **(about or {})})


def _assemble(spec: ModelSpec, state: Mapping[str, Tensor] | None, source: str, *, new_head: bool, seed: int) -> Model:
    net = build(spec, seed=seed)
    if state is not None:
        _fill(net, state, source, new_head=new_head)
    return Model(net, spec.normalisation, replace(spec, patch_size=family_of(net).patch_size(net)))


def _fill(net: nn.Module, state: Mapping[str, Tensor], source: str, *, new_head: bool) -> None:
    fresh = net.state_dict()
    fitted = family_of(net).fit(strip_prefix(state, fresh), net)
    for key, value in fresh.items():
        other_classes = key in fitted and fitted[key].shape != value.shape and _in_head(net, key)
        # old files lack BatchNorm's counter, which evaluation never reads
        if (new_head and other_classes) or (key not in fitted and key.endswith("num_batches_tracked")):
            fitted[key] = value
    check_keys(fitted, fresh, source)
    net.load_state_dict(fitted)


def _in_head(net: nn.Module, key: str) -> bool:
    config = getattr(net, "pretrained_cfg", None) or {}
    heads = config.get("classifier") or ()
    return any(key.startswith(f"{head}.") for head in ([heads] if isinstance(heads, str) else heads))


def _checkpoint_path(text: str) -> Path:
    if text.startswith("zoo:"):
        path = ZOO / f"{text.removeprefix('zoo:')}.safetensors"
        if not path.exists():
            raise unknown("zoo model", text, (f"zoo:{file.stem}" for file in ZOO.glob("*.safetensors")))
        return path
    path = Path(text)
    if path.is_dir():
        found = [path / "checkpoints" / f"{name}.safetensors" for name in ("best", "final")]
        chosen = next((file for file in found if file.exists()), None)
        if chosen is None:
            raise UsageError(f"{path} holds no finished checkpoint (checkpoints/best.safetensors). Train it first.")
        return chosen
    if not path.exists():
        raise UsageError(
            f"{text!r} is no model: no such file or folder. Give a run folder, a checkpoint, zoo:NAME or timm:NAME."
        )
    if path.suffix != ".safetensors":
        raise UsageError(f"{path} does not say what it is. Name its architecture: timm:NAME@{path}.")
    return path


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], ModelSpec]:
    state, about = read_tensors(path)
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
