"""Named splits with pinned indices and hashes; pixels in [0, 1], never normalised."""

from vitadel.data.batching import batches
from vitadel.data.checking import CheckReport, Unreadable, check
from vitadel.data.dataset import DataSet
from vitadel.data.loading import load
from vitadel.data.preprocess import CentreCrop, Interpolation, Preprocess, Squash, parse_preprocess
from vitadel.data.split import Split

__all__ = [
    "CentreCrop",
    "CheckReport",
    "DataSet",
    "Interpolation",
    "Preprocess",
    "Split",
    "Squash",
    "Unreadable",
    "batches",
    "check",
    "load",
    "parse_preprocess",
]
