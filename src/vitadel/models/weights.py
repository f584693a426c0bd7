"""Weights in files: Vitadel's safetensors with the model's spec in the header, and files of other libraries."""

import argparse
import hashlib
import os
import pickle
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitadel.core.device import check_not_meta
from vitadel.core.errors import UsageError, short_reason
from vitadel.core.files import check_regular_file

# the keys of weights in a .pth of training scripts; averaged weights first, because papers report those
_CONTAINERS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model", "net", "weights")

# counters that torch.optim.swa_utils.AveragedModel keeps with the weights
_COUNTERS = ("n_averaged",)
# containers are nested two or three levels deep; one in a pickle can contain itself
_MOST_CONTAINERS = 8
# the types of weights and of tables of indices; torch cannot convert some others
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
# the header's key for a hash of the tensors and of the rest of the header
_HASH = "vitadel.sha256"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write one safetensors file; `about` goes into its header, with a hash that detects damage."""
    check_not_meta("weights", *tensors.values())
    # copies, because safetensors refuses tensors that share memory
    copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    try:
        save_file(copies, path, {**about, _HASH: _hash(copies, about)})
    except safetensors.SafetensorError as error:  # a full disk, which callers handle as an OSError
        raise OSError(str(error)) from error


def _hash(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """A hash of the header's texts, and of the names, dtypes, shapes and values of the tensors."""
    digest = hashlib.sha256(repr(sorted(about.items())).encode(errors="surrogatepass"))
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, str(value.dtype), list(value.shape))).encode(errors="surrogatepass"))
        digest.update(_bytes(value))
    return digest.hexdigest()


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the names and values of weights."""
    check_not_meta("weights", *tensors.values())
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(_bytes(tensors[name].detach().cpu()))
    return digest.hexdigest()


def _bytes(value: Tensor) -> bytes:
    """The bytes of the values; copied, because a tensor of one value may have a stride that does not allow a view."""
    plain = value.flatten().clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8).numpy().tobytes()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a file of `write_tensors`, checked against its hash, or of any safetensors file.

    Raises:
        UsageError: If the file cannot be read, or is damaged.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name {str(path)!a} is not UTF-8, and safetensors opens no such file. Rename it."
        ) from None
    with _refusing(path, "a safetensors file"), safetensors.safe_open(path, "pt") as file:
        tensors, about = {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    written = about.pop(_HASH, None)  # files of other libraries and of earlier versions have none
    if written is not None and written != _hash(tensors, about):
        raise UsageError(f"{path} is damaged: its content does not match the hash in its header. Use an intact file.")
    return {key: value for key, value in tensors.items() if _is_weight(key, value)}, about


def read_external_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a file of other libraries, in any known container; code in the file is not executed."""
    if path.suffix == ".safetensors":
        return read_tensors(path)[0]
    # argparse.Namespace is harmless and in half of all published checkpoints
    harmless = torch.serialization.safe_globals([argparse.Namespace])
    with _refusing(path, "a torch file"), harmless, warnings.catch_warnings():
        # torch warns of an unusual pickle protocol, which is either read or refused below
        warnings.simplefilter("ignore")
        _check_zip(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    tensors = _weights_in(content)
    if not tensors:
        raise UsageError(f"{path} holds no weights that can be found. Re-save its state dict alone.")
    # an expanded tensor: a file of a few bytes could claim any size, and every copy would take it
    if repeated := [key for key, value in tensors.items() if value.nbytes > value.untyped_storage().nbytes()]:
        raise UsageError(
            f"{path} has tensors with more values than it holds, which repeats some: {_few(repeated)}. "
            "Re-save its state dict with contiguous() called on every tensor."
        )
    return tensors


def check_readable(path: Path) -> None:
    """Refuse a file of weights that does not exist or may not be read; what it holds is not checked."""
    with _refusing(path, "a file of weights"), path.open("rb"):
        pass


def _check_zip(path: Path) -> None:
    """Refuse an archive that expands to more than the file: torch writes entries uncompressed, one after another."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # a file of torch before 1.6, or none of torch
            return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise ValueError("it is a TorchScript archive")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is a compressed archive, and torch writes uncompressed ones")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its entries are larger than the file")


@contextmanager
def _refusing(path: Path, kind: str) -> Iterator[None]:
    """Context manager: errors of reading become a UsageError; pipes, devices and folders are refused."""
    check_regular_file(path)
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder. Give the path of a file with weights.")
    try:
        yield
    except (FileNotFoundError, PermissionError):  # safetensors raises the first for an unreadable file, too
        if os.path.exists(path):
            raise UsageError(f"{path} may not be read: permission denied. Make it readable.") from None
        raise UsageError(f"{path} does not exist. Give the path of a file with weights.") from None
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} holds more than weights, and only weights are read ({short_reason(error)}). "
            "Re-save its state dict alone: torch.save(model.state_dict(), ...)."
        ) from error
    except Exception as error:  # damaged files can raise anything, and may name tensors that torch cannot make
        raise UsageError(f"{path} is truncated or not {kind} ({short_reason(error)}). Use an intact file.") from error


def _weights_in(content: object, depth: int = 0) -> dict[str, Tensor]:
    """The weights in the innermost container that has any, else at this level; {} if there are none."""
    if not isinstance(content, dict) or depth > _MOST_CONTAINERS:
        return {}
    for name in _CONTAINERS:
        if inner := _weights_in(content.get(name), depth + 1):
            return inner
    here = {key: value for key, value in content.items() if _is_weight(key, value)}
    return here if any(value.ndim for value in here.values()) else {}  # scalars only are settings, such as a decay


def _is_weight(key: object, value: object) -> bool:
    if not isinstance(key, str) or key in _COUNTERS or not isinstance(value, Tensor):
        return False
    # networks here have no sparse, quantized or complex weights, and none without values
    return value.layout is torch.strided and value.dtype in _FLOATS + _INTEGERS and not value.is_meta


def strip_prefix(state: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """Remove the prefix of wrappers (`module.`, `model.`, ...): the one after which most names are known."""
    known, hits = set(wanted), Counter({"": 0})
    for key in state:
        parts = key.split(".")
        for prefix in {"", *(".".join(parts[:depth]) + "." for depth in (1, 2, 3))}:
            if key.startswith(prefix) and key.removeprefix(prefix) in known:
                hits[prefix] += 1
    best = min(hits, key=lambda prefix: (-hits[prefix], len(prefix), prefix))
    return {key.removeprefix(best): value for key, value in state.items()}


def check_keys(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that do not fit, with the names that are missing, unexpected or of another shape."""
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    misfits = [
        f"{key} {list(state[key].shape)} instead of {list(wanted[key].shape)}"
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape
    ]
    if missing or unexpected or misfits:
        lists = (("missing", missing), ("unexpected", unexpected), ("of another shape", misfits))
        misfit = "; ".join(f"{len(keys)} {what}: {_few(keys)}" for what, keys in lists if keys)
        raise UsageError(f"{source} does not fit this architecture: {misfit}. Check its name, num_classes and sizes.")


def _few(keys: list[str]) -> str:
    return ", ".join(f"{key:.120}" for key in keys[:5]) + (", ..." if len(keys) > 5 else "")
