"""Writing files so that a kill at any moment leaves either the old file or the new one."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from vitadel.errors import UsageError
from vitadel.strict_json import MOST_CHARACTERS, parse_json

# the last key of every JSON file: a hash of all that stands before it
_HASH = "sha256"
_AGAIN = "Restore it, or delete it and run the same command again."


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, bring it to the disk, and only then give it its name."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Choose a folder you may write to, with space left."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the error above says more
            beside.unlink(missing_ok=True)


def is_unfinished(path: Path) -> bool:
    """Whether a kill left this file beside the one that `write_whole` was to write."""
    return path.name.startswith(".") and path.suffix == ".part"


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object, and a hash of it as its last key, by which `read_json` notices damage."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    assert _HASH not in plain, f"the key {_HASH!r} of a JSON file is for its hash"
    text = json.dumps({**plain, _HASH: _hash(plain)}, indent=2) + "\n"

    def write(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    write_whole(path, write)


def read_json(path: Path, remedy: str = _AGAIN) -> dict[str, object]:
    """What `write_json` wrote, or any other JSON object; `remedy` says what to do about a damaged file.

    Raises:
        UsageError: The file is missing, not a regular file, damaged, or beyond the bounds of `parse_json`.
    """
    try:
        content = parse_json(_text(path))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Is {path.parent} the folder you meant?") from None
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
    if content[last] == _hash(rest):  # whatever damage made of the key
        return rest
    if _HASH in content:
        raise UsageError(f"{path} is damaged or was edited: its content does not match the hash in it. {remedy}")
    return content


def _text(path: Path) -> str:
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a named pipe would wait for ever
        raise ValueError("it is no regular file")
    if path.stat().st_size > 4 * MOST_CHARACTERS:
        raise ValueError(f"it has {path.stat().st_size} bytes, more than any file written here")
    return path.read_text(encoding="utf-8")


def _hash(content: Mapping[str, object]) -> str:
    """A hash of JSON values, the same however the file is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
