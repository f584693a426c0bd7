"""Shared by tests of training."""

import pytest

from vitadel import data
from vitadel.data import Split, Squash


@pytest.fixture(scope="session")
def train() -> Split:
    """The training images of digits[:64]."""
    split = data.load("digits[:64]", preprocess=Squash(8)).train
    assert split is not None
    return split
