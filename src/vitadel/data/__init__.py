"""Named splits with pinned indices and hashes; pixels in [0, 1], never normalised."""

from vitadel.data.batching import batches, read_ahead
from vitadel.data.checking import CheckReport, Unreadable, check
from vitadel.data.convert import convert
from vitadel.data.dataset import DataSet
from vitadel.data.loading import load
from vitadel.data.pixels import Held
from vitadel.data.preprocess import CentreCrop, Interpolation, Preprocess, Squash, parse_preprocess
from vitadel.data.shards import Shards
from vitadel.data.shuffle import Shuffle
from vitadel.data.split import Split

__all__ = [
    "CentreCrop",
    "CheckReport",
    "DataSet",
    "Held",
    "Interpolation",
    "Preprocess",
    "Shards",
    "Shuffle",
    "Split",
    "Squash",
    "Unreadable",
    "batches",
    "check",
    "convert",
    "load",
    "parse_preprocess",
    "read_ahead",
]
