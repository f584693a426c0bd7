"""Files: written so that an interruption leaves either the old file or the new one, and read within bounds.

Files are untrusted: JSON is bounded in length, in depth and in the size of its numbers, NumPy archives in their size,
and named pipes, sockets and devices are refused.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitadel.core.errors import UsageError, short_reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

# the last key of every JSON file: a hash of all before it
_HASH = "sha256"
_AGAIN = "Restore it, or delete it and run the same command again."
# far beyond anything that Vitadel writes: the figures of a study are a few megabytes, nested ten levels deep
MOST_CHARACTERS = 2**28
MOST_LEVELS = 100
# an integer of 40 digits holds every seed and count, and still fits into a float
MOST_DIGITS = 40
# uncompressed: 256 perturbations of 800 x 800 pixels
MOST_BYTES = 2**30
# characters of a name; file systems take 255 bytes, and names have endings
LONGEST_NAME = 120
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def slug(text: str) -> str:
    """A text as the name of a file: `pgd:steps=40` is `pgd-steps-40`; a long one is cut and ends in a hash."""
    name = re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-")
    return name if len(name) <= LONGEST_NAME else hashed_name(name, text)


def hashed_name(name: str, text: str) -> str:
    """The name of a file that is distinct from those of other texts: the beginning of `name`, and a hash of `text`."""
    return f"{name[:LONGEST_NAME]}-{zlib.crc32(text.encode(errors='backslashreplace')):08x}"


def printable(text: str) -> str:
    """A text with characters escaped that UTF-8 cannot encode, as the names of files may have."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, flush it, and only then rename it to `path`.

    Args:
        path: The file to create or replace.
        write: Writes the content to the path it is given.

    Raises:
        UsageError: `path` cannot be written, or is a named pipe, socket or device, which is never replaced.
    """
    if kind := _special_kind(path):
        raise UsageError(f"cannot write {path}: it is {kind}. Give the path of a new file or of one to replace.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Choose a folder you may write to, with space left."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the error above says more
            temporary.unlink(missing_ok=True)


def lock(file: IO[Any]) -> None:
    """Lock an open file for this process, without waiting; the lock ends with the process, or when the file is closed.

    Windows has no such lock: there it is up to the user that two processes do not write to one folder.

    Raises:
        OSError: BlockingIOError if another process has the lock, any other if the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_npz(path: Path, arrays: Mapping[str, "NDArray[Any]"]) -> None:
    """Write a compressed NumPy archive."""
    import numpy as np

    def write(temporary: Path) -> None:
        with temporary.open("wb") as handle:
            np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]

    write_atomically(path, write)


def read_npz(
    path: Path, wanted: Mapping[str, tuple[str, int]], remedy: str, *, former: Mapping[str, str] | None = None
) -> dict[str, "NDArray[Any]"]:
    """Some arrays of a file of `write_npz`.

    Args:
        path: The file.
        wanted: By name, the kinds of values of an array as in `dtype.kind`, and its number of dimensions. An array
            without values may be of any kind.
        remedy: What to do about a damaged file, for the error.
        former: By name, what earlier versions called an array.

    Raises:
        UsageError: The file is missing, not a regular file, damaged, too large, or its arrays are not as `wanted`.
    """
    import numpy as np

    check_regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if (size := sum(entry.file_size for entry in archive.infolist())) > MOST_BYTES:
                raise ValueError(f"it expands to {size} bytes, more than {MOST_BYTES}")
        with np.load(path, allow_pickle=False) as stored:
            names = {name: name if name in stored else (former or {}).get(name, name) for name in wanted}
            arrays = {name: stored[stored_as] for name, stored_as in names.items()}
        for name, (kinds, ndim) in wanted.items():
            array = arrays[name]
            if array.ndim != ndim or (array.size and array.dtype.kind not in kinds):
                raise ValueError(f"{name} is {array.dtype} of {list(array.shape)}, which is not what this file holds")
    except Exception as error:  # a damaged archive can raise anything
        raise UsageError(f"cannot read {path}: {short_reason(error)}. {remedy}") from error
    return arrays


def is_unfinished(path: Path) -> bool:
    """Whether this is a temporary file of `write_atomically` that an interruption left behind."""
    return path.name.startswith(".") and path.suffix == ".part"


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object with a hash as its last key, so that `read_json` detects damage."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    assert _HASH not in plain, f"the key {_HASH!r} of a JSON file is for its hash"
    text = json.dumps({**plain, _HASH: _hash(plain)}, indent=2) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def read_json(path: Path, remedy: str = _AGAIN) -> dict[str, object]:
    """Read a file of `write_json`, or any other JSON object; `remedy` says what to do about a damaged file.

    Raises:
        UsageError: The file is missing, not a regular file, damaged, or beyond the bounds of `parse_json`.
    """
    try:
        content = parse_json(_text(path))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Check that {path.parent} is the folder you mean.") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}. {remedy}") from error
    except ValueError as error:  # of the syntax, the encoding, or a number too long
        raise UsageError(f"{path} is not readable JSON ({error}). {remedy}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} should hold a JSON object, got a {type(content).__name__}. {remedy}")
    return _checked(path, content, remedy)


def _checked(path: Path, content: dict[str, object], remedy: str) -> dict[str, object]:
    """`content` without its hash; files written before there were hashes have none, and pass unchecked."""
    if not content:
        return content
    *keys, last = content
    rest = {key: content[key] for key in keys}
    if content[last] == _hash(rest):  # also if only the key is damaged
        return rest
    if _HASH in content:
        raise UsageError(f"{path} is damaged or was edited: its content does not match the hash in it. {remedy}")
    return content


def _text(path: Path) -> str:
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a named pipe would wait forever
        raise ValueError("it is not a regular file")
    if path.stat().st_size > 4 * MOST_CHARACTERS:
        raise ValueError(f"it has {path.stat().st_size} bytes, more than any file written here")
    return path.read_text(encoding="utf-8")


def _hash(content: Mapping[str, object]) -> str:
    """A hash of JSON values, independent of the layout of the file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_regular_file(path: Path) -> None:
    """Refuse a named pipe, socket or device: opening one may wait forever, and reading one may never end.

    For missing files and folders `open` raises an error of its own.

    Args:
        path: The file about to be opened; symbolic links are followed.

    Raises:
        UsageError: `path` exists and is neither a file nor a folder.
    """
    if kind := _special_kind(path):
        raise UsageError(f"cannot read {path}: it is {kind}. Put a regular file there, or remove it.")


def _special_kind(path: Path) -> str | None:
    """What `path` is if it is neither missing, a file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), None)


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: The text is not JSON, or is longer or nested more deeply than any this package writes, or has a
            longer integer. The message is one short line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
    try:
        value: object = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"


def _integer(digits: str) -> int:
    # Python's own error advises raising its limit
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits, more than {MOST_DIGITS}")
    return int(digits)


def _check_depth(value: object) -> None:
    """Refuse values that are nested too deeply for code that traverses them by recursion."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _parts(outer) if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
