"""Small data sets on disk, and the digits read once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitadel.data import DataSet, Squash, load

Paint = Callable[..., Path]


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return load("digits", preprocess=Squash(8))


@pytest.fixture
def paint() -> Paint:
    """Save a picture of random pixels under a path, folders included."""

    def save(path: Path, *, seed: int = 0, width: int = 6, height: int = 6) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return save


@pytest.fixture
def pets(tmp_path: Path, paint: Paint) -> Path:
    """Two classes with 20 training and 4 test images each."""
    root = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        for split, count in (("train", 20), ("test", 4)):
            for number in range(count):
                paint(root / split / name / f"{number:02d}.png", seed=1000 * label + number)
    return root
