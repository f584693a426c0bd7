"""Named splits with pinned indices and hashes; pixels in [0, 1], never normalised."""

from vitadel.data.batching import batches, read_ahead
from vitadel.data.checking import CheckReport, Unreadable, check, readable, unreadable, without
from vitadel.data.complete import CORRUPTED, missing, missing_corrupted
from vitadel.data.convert import convert
from vitadel.data.dataset import DataSet
from vitadel.data.folder import part_wnids, wnids
from vitadel.data.loading import load
from vitadel.data.pixels import Held
from vitadel.data.preprocess import CentreCrop, Interpolation, Preprocess, Squash, parse_preprocess
from vitadel.data.released import Released, open_released
from vitadel.data.shards import Shards
from vitadel.data.shuffle import Shuffle
from vitadel.data.spec import parse_spec
from vitadel.data.split import Split
from vitadel.data.stimuli import SHAPES, STIMULI, cues

__all__ = [
    "CORRUPTED",
    "SHAPES",
    "STIMULI",
    "CentreCrop",
    "CheckReport",
    "DataSet",
    "Held",
    "Interpolation",
    "Preprocess",
    "Released",
    "Shards",
    "Shuffle",
    "Split",
    "Squash",
    "Unreadable",
    "batches",
    "check",
    "convert",
    "cues",
    "load",
    "missing",
    "missing_corrupted",
    "open_released",
    "parse_preprocess",
    "parse_spec",
    "part_wnids",
    "read_ahead",
    "readable",
    "unreadable",
    "without",
    "wnids",
]
