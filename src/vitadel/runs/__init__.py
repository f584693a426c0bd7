"""The run folder: manifest, log, rows, checkpoints; claim and resume."""

from vitadel.runs.events import Scalars
from vitadel.runs.files import read_json, write_json, write_whole
from vitadel.runs.folder import Run
from vitadel.runs.manifest import code_hashes, describe, fingerprint, surroundings
from vitadel.runs.progress import Notify, silent
from vitadel.runs.rows import Rows

__all__ = [
    "Notify",
    "Rows",
    "Run",
    "Scalars",
    "code_hashes",
    "describe",
    "fingerprint",
    "read_json",
    "silent",
    "surroundings",
    "write_json",
    "write_whole",
]
