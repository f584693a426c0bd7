"""The run folder: manifest, log, rows, checkpoints; claim and resume."""

from vitadel.core.files import read_json, write_atomically, write_json
from vitadel.core.progress import ProgressCallback, silent
from vitadel.runs.manifest import ManifestRecord, code_hashes, describe, environment, fingerprint
from vitadel.runs.run import LogEntry, Run
from vitadel.runs.tables import ResultFolder
from vitadel.runs.tensorboard import Scalars

__all__ = [
    "LogEntry",
    "ManifestRecord",
    "ProgressCallback",
    "ResultFolder",
    "Run",
    "Scalars",
    "code_hashes",
    "describe",
    "environment",
    "fingerprint",
    "read_json",
    "silent",
    "write_atomically",
    "write_json",
]
