"""Batches read ahead: same images, same errors, no thread left behind."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Split, Squash, batches, load

ORDER = [torch.tensor(rows) for rows in ([3, 1, 2], [0], [7, 7], [4, 5, 6, 0])]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.fixture
def split(pets: Path) -> Split:
    return load(f"folder:{pets}", preprocess=Squash(4)).test


@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_batches_are_the_images_in_the_order_given(split: Split, ahead: int) -> None:
    got = list(batches(split, ORDER, ahead=ahead))
    assert len(got) == len(ORDER)
    for (rows, x, y), expected in zip(got, ORDER, strict=True):
        assert torch.equal(rows, expected)
        assert torch.equal(x, split.images(expected))
        assert torch.equal(y, split.labels[expected])


def test_in_memory_splits_give_the_same_batches(digits: DataSet) -> None:
    rows = torch.arange(359).split(100)
    x = torch.cat([x for _, x, _ in batches(digits.test, rows)])
    assert torch.equal(x, digits.test.images(torch.arange(359)))


def test_no_indices_give_no_batches(split: Split) -> None:
    assert list(batches(split, [])) == []


def test_only_a_bounded_number_of_batches_is_prefetched(split: Split) -> None:
    requested: list[int] = []

    def order() -> Iterator[Tensor]:
        for number in range(8):
            requested.append(number)
            yield torch.tensor([number])

    reader = batches(split, order(), ahead=2)
    assert requested == []
    next(reader)
    assert requested == [0, 1, 2]
    reader.close()


def test_stopping_early_ends_the_threads(split: Split) -> None:
    before = threading.active_count()
    reader = batches(split, [torch.tensor([0])] * 50)
    next(reader)
    assert threading.active_count() > before
    del reader
    assert threading.active_count() == before


def test_an_error_of_the_consumer_ends_the_threads(split: Split) -> None:
    def consume() -> None:
        for _ in batches(split, ORDER):
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        consume()
    assert threading.active_count() == before


def test_an_unreadable_image_is_named_at_its_batch(pets: Path, split: Split) -> None:
    broken = pets / split.ids[5]
    broken.write_bytes(broken.read_bytes()[:60])
    reader = batches(split, [torch.tensor([0, 1]), torch.tensor([4, 5, 6])])
    assert next(reader)[0].tolist() == [0, 1]
    with pytest.raises(UsageError, match=re.escape(f"cannot read the image {broken}: ")):
        next(reader)
    with pytest.raises(StopIteration):
        next(reader)


@pytest.mark.parametrize("count", [1, 8])
def test_the_first_unreadable_image_of_a_batch_is_named(pets: Path, split: Split, count: int) -> None:
    for row in range(count):
        (pets / split.ids[row]).write_text("no image")
    with pytest.raises(UsageError, match=re.escape(split.ids[0])):
        split.images(torch.arange(8))


def test_ahead_must_be_positive(split: Split) -> None:
    with pytest.raises(
        UsageError, match=re.escape("batches(ahead=) must be at least 1, got 0. Write for example 2, the default.")
    ):
        batches(split, ORDER, ahead=0)
