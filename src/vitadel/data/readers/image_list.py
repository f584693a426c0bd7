"""Images chosen by a list, in its order: how published subsets, such as RobustBench's 5000 of ImageNet, are told."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from vitadel.core.errors import UsageError
from vitadel.data.source import Source
from vitadel.data.split import Split


def is_image_list(lines: tuple[str, ...]) -> bool:
    """Whether a list names images rather than classes: no class name has a slash in it."""
    return bool(lines) and all("/" in line for line in lines)


def choose_images(source: Source, lines: tuple[str, ...], file: Path, *, skip: bool) -> Source:
    """The test images that the lines name by the end of their path, CLASS/FILE, in the order of the lines."""
    place = _places(source.test)
    for line, count in Counter(lines).items():
        if count > 1:
            raise UsageError(f"{file} names {line} {count} times. Name each image once: its line is its row.")
    absent = [line for line in lines if _tail(line) not in place]
    if absent and (not skip or len(absent) == len(lines)):
        raise UsageError(
            f"{len(absent)} of the {len(lines)} images that {file} names are missing, the first is {absent[0]}. "
            "Fetch them, or say --skip-unreadable to go on without them."
        )
    rows = [place[_tail(line)] for line in lines if _tail(line) in place]
    test = source.test.take(torch.tensor(rows, dtype=torch.int64))
    left_out = (*source.test.skipped, *(f"{line}: missing" for line in absent))
    return Source(source.classes, None, replace(test, skipped=left_out), source.statistics)


def _places(split: Split) -> dict[str, int]:
    return {_tail(one): row for row, one in enumerate(split.ids)}


def _tail(path: str) -> str:
    return "/".join(path.split("/")[-2:])
