"""Named splits with pinned indices and hashes; pixels in [0, 1], never normalized."""

from vitadel.data.batching import batches, read_ahead
from vitadel.data.completeness import CORRUPTED, missing, missing_corrupted
from vitadel.data.dataset import DataSet
from vitadel.data.integrity import CheckReport, Unreadable, check, readable, unreadable, without
from vitadel.data.loading import load
from vitadel.data.permutation import Shuffle
from vitadel.data.pixels import Held
from vitadel.data.preprocess import CenterCrop, Interpolation, Preprocess, Squash, parse_preprocess
from vitadel.data.readers.corrupted_release import Released, open_released
from vitadel.data.readers.cue_conflict import SHAPES, STIMULI, cues
from vitadel.data.readers.folder import part_wnids, wnids
from vitadel.data.shards.convert import convert
from vitadel.data.shards.format import Shards
from vitadel.data.spec import parse_spec
from vitadel.data.split import Split

__all__ = [
    "CORRUPTED",
    "SHAPES",
    "STIMULI",
    "CenterCrop",
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
