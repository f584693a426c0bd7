"""CIFAR-10 and CIFAR-100 in the layout of the authors' Python archives."""

import io
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitadel.core.errors import UsageError, short_reason
from vitadel.core.files import check_regular_file
from vitadel.data.dataset import Source, Statistics
from vitadel.data.pixels import Arrays
from vitadel.data.preprocess import Preprocess
from vitadel.data.split import Split

# the largest file has 155 MB, and a few opcodes for each of its 50,000 images
MOST_BYTES = 2**28
MOST_OPCODES = 2**20


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
    stored, labels = content.get(b"data"), content.get(layout.labels_key)
    data = stored.values if isinstance(stored, _Array) else None
    if data is None or data.ndim != 2 or data.shape[1] != 3072:
        raise _corrupt(path, layout, "'data' is not an array of bytes, 3072 per image")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(_is_label(y, num_classes) for y in labels):
        raise _corrupt(path, layout, f"{layout.labels_key.decode()!r} is not one label per image below {num_classes}")
    return torch.from_numpy(data.copy()).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)


def _is_label(value: object, num_classes: int) -> bool:
    return type(value) is int and 0 <= value < num_classes


def _load(path: Path, layout: Layout) -> dict[object, object]:
    check_regular_file(path)
    if (size := path.stat().st_size) > MOST_BYTES:
        raise _corrupt(path, layout, f"it has {size} bytes, more than {MOST_BYTES}")
    try:
        content = _DataUnpickler(path.read_bytes()).load()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Check the file's permissions.") from error
    except Exception as error:  # a damaged file can raise anything
        raise _corrupt(path, layout, short_reason(error)) from error
    if not isinstance(content, dict):
        raise _corrupt(path, layout, f"it holds a {type(content).__name__}, not a dictionary")
    return content


def _corrupt(path: Path, layout: Layout, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not a file of {layout.title}: {reason}. "
        "Unpack the Python version from the CIFAR page at toronto.edu again."
    )


class _DType:
    """What a file says of an array's type; numpy never sees it, because some descriptions make it access memory."""

    def __init__(self, code: object, *_options: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, _state: object) -> None:
        """The byte order and the fields, which bytes do not have."""


class _Array:
    """What a file says of an array; `values` is None unless these are bytes."""

    def __init__(self, *_blank: object) -> None:
        self.values: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __setstate__(self, state: tuple[object, tuple[int, ...], object, bool, object]) -> None:
        _version, shape, dtype, is_fortran, data = state
        if isinstance(dtype, _DType) and dtype.code in ("u1", "|u1", "uint8") and isinstance(data, bytes):
            self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _latin1(text: str, _encoding: object) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in the old protocol


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of `_reconstruct`
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _latin1,
}
# all that numbers, texts, lists, dictionaries and arrays are written with in the protocols 0 to 4
_OPCODES = (
    pickle.PROTO,
    pickle.FRAME,
    pickle.STOP,
    pickle.MARK,
    pickle.POP,
    pickle.POP_MARK,
    pickle.GLOBAL,
    pickle.STACK_GLOBAL,
    pickle.REDUCE,
    pickle.BUILD,
    pickle.NONE,
    pickle.NEWTRUE,
    pickle.NEWFALSE,
    pickle.INT,
    pickle.BININT,
    pickle.BININT1,
    pickle.BININT2,
    pickle.LONG,
    pickle.LONG1,
    pickle.LONG4,
    pickle.FLOAT,
    pickle.BINFLOAT,
    pickle.STRING,
    pickle.BINSTRING,
    pickle.SHORT_BINSTRING,
    pickle.BINBYTES,
    pickle.SHORT_BINBYTES,
    pickle.BINBYTES8,
    pickle.UNICODE,
    pickle.BINUNICODE,
    pickle.SHORT_BINUNICODE,
    pickle.BINUNICODE8,
    pickle.TUPLE,
    pickle.EMPTY_TUPLE,
    pickle.TUPLE1,
    pickle.TUPLE2,
    pickle.TUPLE3,
    pickle.LIST,
    pickle.EMPTY_LIST,
    pickle.APPEND,
    pickle.APPENDS,
    pickle.DICT,
    pickle.EMPTY_DICT,
    pickle.SETITEM,
    pickle.SETITEMS,
    pickle.GET,
    pickle.BINGET,
    pickle.LONG_BINGET,
    pickle.PUT,
    pickle.BINPUT,
    pickle.LONG_BINPUT,
    pickle.MEMOIZE,
)
_Opcodes = dict[int, Callable[[Any], None]]


class _DataUnpickler(pickle._Unpickler):
    """Reads numbers, texts, lists, dictionaries and arrays of bytes; refuses everything else.

    Python's own implementation, because the faster one in C reserves as much memory as a file claims to need.
    """

    dispatch: ClassVar[_Opcodes] = {}
    stack: list[object]
    metastack: list[list[object]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # the archives were written by Python 2
        self.opcodes_left = MOST_OPCODES

    @staticmethod
    def _counted(load: Callable[[Any], None]) -> Callable[[Any], None]:
        """The method of an opcode, which refuses the file if it has too many opcodes."""

        def counted(self: "_DataUnpickler") -> None:
            self.opcodes_left -= 1
            if self.opcodes_left < 0:
                raise pickle.UnpicklingError(f"it has more than {MOST_OPCODES} opcodes")
            load(self)

        return counted

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module:.80}.{name:.80}, which data has no need of")
        return _ALLOWED[module, name]

    def _load_reduce(self) -> None:
        if not any(self.stack[-2] is allowed for allowed in (_Array, _DType, _latin1)):
            raise pickle.UnpicklingError("it calls something other than a function")
        _PLAIN[pickle.REDUCE[0]](self)

    def _load_build(self) -> None:
        if not isinstance(self.stack[-2], _Array | _DType):
            raise pickle.UnpicklingError("it sets the state of something other than an array")
        _PLAIN[pickle.BUILD[0]](self)

    def _load_setitem(self) -> None:
        self._check_pairs(self.stack[-3], self.stack[-2:-1])
        _PLAIN[pickle.SETITEM[0]](self)

    def _load_setitems(self) -> None:
        self._check_pairs(self.metastack[-1][-1], self.stack[::2])
        _PLAIN[pickle.SETITEMS[0]](self)

    def _load_dict(self) -> None:
        self._check_pairs({}, self.stack[::2])
        _PLAIN[pickle.DICT[0]](self)

    def _check_pairs(self, target: object, keys: Iterable[object]) -> None:
        # the hash of a deeply nested tuple exceeds the stack
        if not isinstance(target, dict) or not all(isinstance(key, bytes | str) for key in keys):
            raise pickle.UnpicklingError("it has a dictionary whose keys are not texts")

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it holds more than numbers, texts, lists, dictionaries and arrays")


_PLAIN: _Opcodes = dict(pickle._Unpickler.dispatch)
_CHECKED: _Opcodes = {
    **{code: _PLAIN[code] for (code,) in _OPCODES},
    pickle.REDUCE[0]: _DataUnpickler._load_reduce,
    pickle.BUILD[0]: _DataUnpickler._load_build,
    pickle.SETITEM[0]: _DataUnpickler._load_setitem,
    pickle.SETITEMS[0]: _DataUnpickler._load_setitems,
    pickle.DICT[0]: _DataUnpickler._load_dict,
}
_DataUnpickler.dispatch.update(
    {
        **dict.fromkeys(range(256), _DataUnpickler._refuse),
        **{code: _DataUnpickler._counted(load) for code, load in _CHECKED.items()},
    }
)
