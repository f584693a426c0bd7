"""Writing files so that a kill at any moment leaves either the old file or the new one."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from vitadel.errors import UsageError
from vitadel.strict_json import MOST_CHARACTERS, parse_json


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
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"

    def write(beside: Path) -> None:
        beside.write_text(text)

    write_whole(path, write)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file, which anybody may have written.

    Raises:
        UsageError: The file is missing, not a regular file, damaged, or beyond the bounds of `parse_json`.
    """
    try:
        content = parse_json(_text(path))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Is {path.parent} the folder you meant?") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}. Make it readable.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not readable JSON ({error}). Restore it or choose a new folder.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} should hold a JSON object, got a {type(content).__name__}.")
    return content


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a named pipe would wait for ever
        raise ValueError("it is no regular file")
    if path.stat().st_size > 4 * MOST_CHARACTERS:
        raise ValueError(f"it has {path.stat().st_size} bytes, more than any file written here")
    return path.read_text(encoding="utf-8")
