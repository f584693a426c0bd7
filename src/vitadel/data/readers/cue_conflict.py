"""Cue-conflict stimuli: the shape of one class with the texture of another.

Geirhos et al. 2019 (arXiv:1811.12231): `DIR/SHAPE/SHAPEi-TEXTUREj.png`, 1280 images of 16 classes, of which 80 have
shape and texture of the same class.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import torch

from vitadel.core.errors import UsageError, spelled
from vitadel.data.dataset import Source
from vitadel.data.pixels import Files
from vitadel.data.preprocess import Preprocess
from vitadel.data.readers.folder import EXTENSIONS
from vitadel.data.split import Split

SHAPES = (
    "airplane",
    "bear",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "car",
    "cat",
    "chair",
    "clock",
    "dog",
    "elephant",
    "keyboard",
    "knife",
    "oven",
    "truck",
)
NUM_STIMULI = 1280
_NAME = re.compile(r"([a-z]+)\d+-([a-z]+)\d+\.[A-Za-z]+")
_LAYOUT = "The layout is DIR/SHAPE/SHAPEi-TEXTUREj.png, such as cat/cat4-knife1.png."


def read_stimuli(root: Path, preprocess: Preprocess, *, skip: bool) -> Source:
    """The stimuli in `root`, labeled by their shape; other files raise a UsageError, or are skipped on request."""
    ids, unexpected = list_stimuli(root)
    if unexpected and not skip:
        raise UsageError(
            f"{root} holds {len(unexpected)} entries that are not stimuli, the first is {unexpected[0]}. Move them "
            f"elsewhere, or write {spelled('skip_unreadable')}."
        )
    if not ids:
        raise UsageError(f"{root} holds no cue-conflict stimuli. {_LAYOUT}")
    labels = torch.tensor([SHAPES.index(cues(one)[0]) for one in ids], dtype=torch.int64)
    split = Split("test", tuple(ids), labels, Files(root, tuple(ids), preprocess))
    return Source(SHAPES, None, replace(split, skipped=tuple(f"{one}: no stimulus" for one in unexpected)), None)


def list_stimuli(root: Path) -> tuple[list[str], list[str]]:
    """The stimuli in a folder, and all other files, both as sorted relative paths."""
    ids: list[str] = []
    unexpected: list[str] = []
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = Path(parent).relative_to(root).as_posix()
        for name in sorted(names):
            path = name if inside == "." else f"{inside}/{name}"
            if not name.startswith("."):
                (ids if _is_stimulus(path) else unexpected).append(path)
    return sorted(ids), sorted(unexpected)


def cues(stimulus: str) -> tuple[str, str]:
    """The classes of shape and texture, from the name of a stimulus."""
    match = _NAME.fullmatch(stimulus.rpartition("/")[2])
    assert match is not None, f"{stimulus} was read as a stimulus and is none"
    return match[1], match[2]


def _is_stimulus(path: str) -> bool:
    *folders, name = path.split("/")
    match = _NAME.fullmatch(name)
    if match is None or not name.lower().endswith(EXTENSIONS):
        return False
    return match[1] in SHAPES and match[2] in SHAPES and folders == [match[1]]
