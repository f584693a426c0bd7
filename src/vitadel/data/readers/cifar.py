"""CIFAR-10 and CIFAR-100 in the layout of the authors' Python archives."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data.dataset import Source, Statistics
from vitadel.data.pixels import Arrays
from vitadel.data.preprocess import Preprocess
from vitadel.data.split import Split

_BROKEN = (pickle.UnpicklingError, EOFError, TypeError, ValueError, LookupError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files of one of the two data sets are called, and the statistics published for it."""

    title: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels_key: bytes
    names_key: bytes
    statistics: Statistics


CIFAR10 = Layout(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    labels_key=b"labels",
    names_key=b"label_names",
    statistics=Statistics((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = Layout(
    title="CIFAR-100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    labels_key=b"fine_labels",
    names_key=b"fine_label_names",
    statistics=Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


def read_cifar(root: Path, layout: Layout, preprocess: Preprocess) -> Source:
    """Both splits of the archive unpacked in `root`; nothing is downloaded."""
    folder = root / layout.folder
    for name in (layout.meta, *layout.train, *layout.test):
        if not (folder / name).is_file():
            raise UsageError(
                f"{layout.title} should lie in {folder}, but {folder / name} is missing. "
                f"Unpack the Python version from the CIFAR page at toronto.edu into {root}."
            )
    names = _names(folder / layout.meta, layout)
    train = _split("train", [folder / name for name in layout.train], layout, len(names), preprocess)
    test = _split("test", [folder / name for name in layout.test], layout, len(names), preprocess)
    return Source(names, train, test, layout.statistics)


def _names(path: Path, layout: Layout) -> tuple[str, ...]:
    names = _load(path, layout).get(layout.names_key)
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes) for name in names):
        raise _corrupt(path, layout, f"no list of names under {layout.names_key.decode()!r}")
    try:
        return tuple(name.decode() for name in names)
    except UnicodeDecodeError as error:
        raise _corrupt(path, layout, f"the name of a class is not UTF-8 ({error})") from error


def _split(name: str, paths: list[Path], layout: Layout, num_classes: int, preprocess: Preprocess) -> Split:
    parts = [_part(path, layout, num_classes) for path in paths]
    pictures, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    ids = tuple(f"{name}/{number:05d}" for number in range(len(labels)))
    return Split(name, ids, labels, Arrays.of(pictures, preprocess))


def _part(path: Path, layout: Layout, num_classes: int) -> tuple[Tensor, Tensor]:
    content = _load(path, layout)
    data, labels = content.get(b"data"), content.get(layout.labels_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise _corrupt(path, layout, "'data' is not an array of bytes, 3072 per image")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(_is_label(y, num_classes) for y in labels):
        raise _corrupt(path, layout, f"{layout.labels_key.decode()!r} is not one label per image below {num_classes}")
    return torch.from_numpy(data.copy()).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)


def _is_label(value: object, num_classes: int) -> bool:
    return type(value) is int and 0 <= value < num_classes


def _load(path: Path, layout: Layout) -> dict[object, object]:
    try:
        with path.open("rb") as handle:
            content = ArrayUnpickler(handle).load()
    except _BROKEN as error:
        raise _corrupt(path, layout, str(error) or type(error).__name__) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Check the file's permissions.") from error
    if not isinstance(content, dict):
        raise _corrupt(path, layout, f"it holds a {type(content).__name__}, not a dictionary")
    return content


def _corrupt(path: Path, layout: Layout, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not a file of {layout.title}: {reason}. "
        "Unpack the Python version from the CIFAR page at toronto.edu again."
    )


class ArrayUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists, dictionaries and numpy arrays; refuses everything that could run code."""

    def __init__(self, handle: BinaryIO) -> None:
        super().__init__(handle, encoding="bytes")  # the archives were written by Python 2

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data has no need of")
        return _ALLOWED[module, name]


def _blank(_kind: object, _shape: object, _dtype: object) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.ndarray((0,), dtype=np.uint8)  # the array's state, which follows in the file, gives shape and content


def _latin1(text: str, _encoding: object) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in the old protocol


_ALLOWED: dict[tuple[str, str], Callable[..., object] | object] = {
    ("numpy.core.multiarray", "_reconstruct"): _blank,
    ("numpy._core.multiarray", "_reconstruct"): _blank,
    ("numpy", "ndarray"): "ndarray",  # only ever handed to `_blank`
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
