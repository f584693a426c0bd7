"""Data sets as splits with a fixed order and a hash; pixels in [0, 1], never normalized."""

from vitadel.data.batching import batches, read_ahead
from vitadel.data.dataset import DataSet
from vitadel.data.integrity import (
    CORRUPTED,
    CheckReport,
    Unreadable,
    check,
    missing,
    missing_corrupted,
    unreadable,
    without,
)
from vitadel.data.loading import load
from vitadel.data.permutation import Permutation
from vitadel.data.pixels import InMemory
from vitadel.data.preprocess import CenterCrop, Interpolation, Preprocess, Squash, parse_preprocess
from vitadel.data.readers.corrupted_release import CorruptedRelease, open_released
from vitadel.data.readers.cue_conflict import NUM_STIMULI, SHAPES, cues
from vitadel.data.readers.folder import subset_wnids, wnids
from vitadel.data.shards.convert import convert
from vitadel.data.shards.format import Shards
from vitadel.data.spec import parse_spec
from vitadel.data.split import Split, check_not_empty

__all__ = [
    "CORRUPTED",
    "NUM_STIMULI",
    "SHAPES",
    "CenterCrop",
    "CheckReport",
    "CorruptedRelease",
    "DataSet",
    "InMemory",
    "Interpolation",
    "Permutation",
    "Preprocess",
    "Shards",
    "Split",
    "Squash",
    "Unreadable",
    "batches",
    "check",
    "check_not_empty",
    "convert",
    "cues",
    "load",
    "missing",
    "missing_corrupted",
    "open_released",
    "parse_preprocess",
    "parse_spec",
    "read_ahead",
    "subset_wnids",
    "unreadable",
    "without",
    "wnids",
]
