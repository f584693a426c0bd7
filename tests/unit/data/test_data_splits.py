"""Splits, the hold-out and measured statistics."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Split, Squash, load
from vitadel.data.dataset import check_chosen_classes, measure
from vitadel.data.partition import fixed_order, hold_out
from vitadel.data.pixels import InMemory, threads

Paint = Callable[..., Path]


def numbered(counts: list[int]) -> Split:
    """A split with so many images of each class, and pixels that give the number of the image."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    ids = tuple(f"train/{number:05d}" for number in range(len(labels)))
    return Split("train", ids, labels, InMemory(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8)))


def held_counts(counts: list[int]) -> list[int]:
    _, holdout = hold_out(numbered(counts))
    return [] if holdout is None else torch.bincount(holdout.labels, minlength=len(counts)).tolist()


@pytest.mark.parametrize(
    ("counts", "held"),
    [
        ([100, 20, 14, 15], [10, 2, 1, 2]),  # a half is rounded up
        ([1, 2, 3], [0, 1, 1]),  # a class of one keeps it
        ([1, 1], []),
        ([5000] * 10, [100] * 10),  # CIFAR-10: the limit of 1000, shared evenly
        ([20000, 50, 3000], [695, 5, 300]),  # a small class gives all of its tenth before a large one gives more
    ],
)
def test_holdout_counts(counts: list[int], held: list[int]) -> None:
    assert held_counts(counts) == held


def test_holdout_never_exceeds_its_limit_with_many_classes() -> None:
    counts = held_counts([10] * 1500)
    assert sum(counts) == 1000
    assert max(counts) == 1


def test_holdout_and_training_images_are_disjoint() -> None:
    whole = numbered([30, 40])
    train, holdout = hold_out(whole)
    assert holdout is not None
    assert (train.name, holdout.name) == ("train", "holdout")
    assert sorted(train.ids + holdout.ids) == list(whole.ids)


def test_holdout_and_order_depend_on_names_alone() -> None:
    whole = numbered([30, 40])
    shuffled = whole.take(torch.randperm(70, generator=torch.Generator().manual_seed(0)))
    for ours, theirs in zip(hold_out(whole), hold_out(shuffled), strict=True):
        assert ours is not None
        assert theirs is not None
        assert fixed_order(ours).sha256 == fixed_order(theirs).sha256


def test_an_image_is_the_same_in_every_batch(digits: DataSet) -> None:
    whole = digits.test.images(torch.arange(50))
    for rows in ([7], [49, 7, 7, 3], list(range(50))[::-1]):
        assert torch.equal(digits.test.images(torch.tensor(rows)), whole[rows])


def test_no_rows_give_no_images(digits: DataSet, pets: Path) -> None:
    empty = torch.empty(0, dtype=torch.int64)
    assert digits.test.images(empty).shape == (0, 3, 8, 8)
    assert load(f"folder:{pets}", preprocess=Squash(6)).test.images(empty).shape == (0, 3, 6, 6)


def test_writing_to_a_batch_does_not_reach_the_split(digits: DataSet) -> None:
    rows = torch.arange(3)
    before = digits.test.images(rows)
    digits.test.images(rows).zero_()
    assert torch.equal(digits.test.images(rows), before)
    with pytest.raises(AttributeError):
        digits.test.name = "other"  # type: ignore[misc]


def test_files_are_decoded_the_same_alone_and_in_a_batch(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(4)).split("train")
    together = split.images(torch.arange(len(split)))
    alone = torch.cat([split.images(torch.tensor([row])) for row in range(len(split))])
    assert torch.equal(together, alone)


def test_in_memory_splits_have_the_same_images(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(4)).test
    resident = split.load_into_memory()
    assert (split.is_in_memory, resident.is_in_memory) == (False, True)
    assert resident.sha256 == split.sha256
    rows = torch.tensor([5, 2])
    expected = split.images(rows)
    for name in split.ids:
        (pets / name).unlink()
    assert torch.equal(resident.images(rows), expected)
    assert resident.load_into_memory() is resident


def test_small_splits_are_kept_in_memory(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(4)).test
    assert split.load_if_small(limit=8 * 48).is_in_memory
    assert split.load_if_small(limit=8 * 48 - 1) is split


def test_in_memory_refuses_what_does_not_fit(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(4)).test
    assert split.load_into_memory(limit=8 * 48).is_in_memory
    with pytest.raises(UsageError, match=r"holding the 8 images of split 'test' in memory takes 0.00 GiB, more than"):
        split.load_into_memory(limit=8 * 48 - 1)


def test_a_split_can_be_pickled(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(4)).test
    twin = pickle.loads(pickle.dumps(split))  # noqa: S301
    assert twin.sha256 == split.sha256
    assert torch.equal(twin.images(torch.arange(8)), split.images(torch.arange(8)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([359]), "split 'test' has images 0 to 358, got index 359 to 359."),
        (torch.tensor([-1, 4]), "split 'test' has images 0 to 358, got index -1 to 4."),
        (
            torch.tensor([0.5]),
            "index must be a list of int64 numbers, got torch.float32 of shape (1,). Write torch.tensor",
        ),
        (torch.tensor(3), "index must be a list of int64 numbers, got torch.int64 of shape ()."),
    ],
)
def test_wrong_rows_are_named(digits: DataSet, rows: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        digits.test.images(rows)


def test_statistics_of_a_folder_are_measured(tmp_path: Path) -> None:
    for number, color in enumerate(((0, 51, 255), (255, 51, 0))):
        path = tmp_path / "test" / "cat" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), color, dtype=np.uint8)).save(path)
    data = load(f"folder:{tmp_path}", preprocess=Squash(4))
    assert data.mean == (0.5, 0.2, 0.5)
    assert data.std == (0.5, 0.0039, 0.5)  # a channel of one value: one gray level, not zero


def test_large_images_are_decoded_the_same_by_several_threads(tmp_path: Path, paint: Paint) -> None:
    for number in range(5):
        paint(tmp_path / "test" / "cat" / f"{number}.png", seed=number, width=200, height=190)
    split = load(f"folder:{tmp_path}", preprocess=Squash(64)).test
    alone = torch.cat([split.images(torch.tensor([row])) for row in range(len(split))])
    assert torch.equal(split.images(torch.arange(len(split))), alone)


def test_small_images_are_decoded_by_one_thread() -> None:
    """Several threads would wait for the interpreter lock, and for each other."""
    assert threads(32 * 32) == 1
    assert threads(500 * 375) == min(16, os.cpu_count() or 1, 11)


def test_a_split_is_an_iterable_data_set(digits: DataSet) -> None:
    split = digits.test
    x, y = split.tensors(5)
    assert torch.equal(x, split.images(torch.arange(5)))
    assert torch.equal(y, split.labels[:5])
    assert len(split.tensors()[0]) == len(split.tensors(10**6)[0]) == len(split)
    for i in (0, 4, -1):
        image, label = split[i]
        assert torch.equal(image, split.images(torch.tensor([i % len(split)]))[0])
        assert type(label) is int
        assert label == int(split.labels[i])
    assert [y for _, y in split] == split.labels.tolist()
    with pytest.raises(IndexError, match=re.escape("split 'test' has 359 images, got index 359")):
        split[359]


def test_the_data_loader_of_torch_takes_a_split(pets: Path) -> None:
    split = load(f"folder:{pets}", preprocess=Squash(8)).test
    parts = list(DataLoader(split, batch_size=3))
    assert torch.equal(torch.cat([x for x, _ in parts]), split.tensors()[0])
    assert torch.equal(torch.cat([y for _, y in parts]), split.labels)


def test_data_sets_and_splits_print_in_a_few_lines(digits: DataSet) -> None:
    lines = repr(digits).splitlines()
    assert lines[0] == "DataSet('digits': 10 classes, squash8-bilinear"
    assert lines[-1] == "  Split('test': 359 images of 8 x 8, 10 classes; in memory))"
    assert len(lines) == 4


def test_a_slice_of_a_split_has_images_and_labels_stacked(digits: DataSet) -> None:
    test = digits.test
    x, y = test[:5]
    assert (x.shape, y.dtype) == ((5, 3, 8, 8), torch.int64)
    assert torch.equal(x, test.tensors(5)[0])
    assert torch.equal(y, test.tensors(5)[1])
    backward, labels = test[4::-2]
    assert torch.equal(backward, x[[4, 2, 0]])
    assert labels.tolist() == y[[4, 2, 0]].tolist()
    assert test[len(test) :][0].shape == (0, 3, 8, 8)


def test_statistics_are_those_of_the_first_thousand_images() -> None:
    pixels = torch.full((1002, 3, 2, 2), 51, dtype=torch.uint8)
    pixels[500:1000, 1] = 153
    pixels[1000:] = 255
    split = Split("train", tuple(map(str, range(1002))), torch.zeros(1002, dtype=torch.int64), InMemory(pixels))
    measured = measure(split)
    assert measured.mean == pytest.approx((0.2, 0.4, 0.2), abs=1e-4)
    # one gray level where all pixels are equal, since models divide by it
    assert measured.std == pytest.approx((1 / 255, 0.2, 1 / 255), abs=1e-4)


@pytest.mark.parametrize(("count", "listed"), [(100, True), (101, False)])
def test_up_to_a_hundred_classes_are_listed(count: int, listed: bool) -> None:
    known = [f"class-{number:03d}" for number in range(count)]
    check_chosen_classes(known, known)
    with pytest.raises(UsageError, match=r"unknown class 'class-0500'\. Did you mean 'class-050'\?") as error:
        check_chosen_classes(["class-0500"], known)
    assert (known[-2] in str(error.value)) == listed
    assert known[-1] in str(error.value)
