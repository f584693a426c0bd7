"""Images chosen by a list, in its order: how subsets such as RobustBench's 5000 images of ImageNet are published."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from vitadel.core.errors import UsageError, spelled
from vitadel.data.dataset import Source


def is_image_list(lines: tuple[str, ...]) -> bool:
    """Whether a list names images rather than classes: no class name has a slash in it."""
    return bool(lines) and all("/" in line for line in lines)


def choose_images(source: Source, lines: tuple[str, ...], file: Path, *, skip: bool) -> Source:
    """The test images that the lines name by the end of their path, CLASS/FILE, in the order of the lines."""
    index_of = {_tail(name): i for i, name in enumerate(source.test.ids)}
    for line, count in Counter(lines).items():
        if count > 1:
            raise UsageError(f"{file} names {line} {count} times. Name each image once: its line is its index.")
    absent = [line for line in lines if _tail(line) not in index_of]
    if absent and (not skip or len(absent) == len(lines)):
        raise UsageError(
            f"{len(absent)} of the {len(lines)} images that {file} names are missing, the first is {absent[0]}. "
            f"Fetch them, or write {spelled('skip_unreadable')} to go on without them."
        )
    index = [index_of[_tail(line)] for line in lines if _tail(line) in index_of]
    test = source.test.take(torch.tensor(index, dtype=torch.int64))
    left_out = (*source.test.skipped, *(f"{line}: missing" for line in absent))
    return Source(source.classes, None, replace(test, skipped=left_out), source.statistics)


def _tail(path: str) -> str:
    return "/".join(path.split("/")[-2:])
