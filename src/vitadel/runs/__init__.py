"""The run folder: manifest, log, rows, checkpoints; claim and resume."""

from vitadel.core.files import read_json, write_json, write_whole
from vitadel.core.progress import Notify, silent
from vitadel.runs.manifest import ManifestRecord, code_hashes, describe, fingerprint, surroundings
from vitadel.runs.run import LogEntry, Run
from vitadel.runs.tables import ResultFolder
from vitadel.runs.tensorboard import Scalars

__all__ = [
    "LogEntry",
    "ManifestRecord",
    "Notify",
    "ResultFolder",
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
