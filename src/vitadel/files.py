"""What may be opened: files, not what only looks like one in a folder."""

import os
import stat
from pathlib import Path

from vitadel.errors import UsageError

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def refuse_special(path: Path) -> None:
    """Refuse a named pipe, socket or device: opening one may wait forever, and reading one may never end.

    What is missing or a folder is left for `open` to complain about.

    Args:
        path: the file about to be opened; a symbolic link counts as what it leads to.

    Raises:
        UsageError: `path` exists and is neither a file nor a folder.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise UsageError(f"cannot read {path}: it is {name}. Put a regular file there, or remove it.")
