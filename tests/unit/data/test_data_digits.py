"""The bundled digits: counts, pixels and pinned hashes."""

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from vitadel.data import DataSet, Squash, load
from vitadel.data.dataset import Statistics

# A change of these numbers is a change of the data set: results before and after it do not compare.
PINNED = {
    "train": (1293, "1c9498a5d33cfad417632304da23fe79a0ffa34263bcf9c69d49a19959511505"),
    "holdout": (145, "88305e4a9abd145af9af1fe7d270d9a9081e7ad44326681160fea2508614708c"),
    "test": (359, "09f3059b0566a89564430089519c53bb78623e886cede40be4f6fdbd4935bc23"),
}


@pytest.mark.parametrize("name", PINNED)
def test_splits_are_pinned(digits: DataSet, name: str) -> None:
    split = digits.split(name)
    assert (len(split), split.sha256) == PINNED[name]


def test_hash_is_over_labels_and_ids_in_order(digits: DataSet) -> None:
    text = "".join(f"{y} {i}\n" for y, i in zip(digits.test.labels.tolist(), digits.test.ids, strict=True))
    assert digits.test.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_splits_partition_the_data(digits: DataSet) -> None:
    ids = [name for split in digits.splits.values() for name in split.ids]
    assert sorted(ids) == [f"digits/{number:05d}" for number in range(1797)]


def test_splits_are_stratified(digits: DataSet) -> None:
    whole = np.bincount(load_digits().target)
    test, holdout = (torch.bincount(digits.split(name).labels).numpy() for name in ("test", "holdout"))
    assert test.tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert holdout.tolist() == [(count + 5) // 10 for count in whole - test]


def test_pixels_and_labels_match_scikit_learn(digits: DataSet) -> None:
    bunch = load_digits()
    for split in digits.splits.values():
        numbers = [int(name.split("/")[1]) for name in split.ids]
        expected = np.round(bunch.images[numbers] * 255 / 16) / 255
        x = split.images(torch.arange(len(split)))
        assert x.shape == (len(split), 3, 8, 8)
        assert x.dtype == torch.float32
        for channel in range(3):
            torch.testing.assert_close(x[:, channel].double(), torch.from_numpy(expected), rtol=0, atol=1e-7)
        assert split.labels.tolist() == bunch.target[numbers].tolist()


def test_value_16_is_white_and_8_is_128() -> None:
    bunch, digits = load_digits(), load("digits[:1]", preprocess=Squash(8))
    number = int(digits.test.ids[0].split("/")[1])
    bytes_ = (digits.test.images(torch.tensor([0]))[0, 0] * 255).round().to(torch.int64).numpy()
    assert set(bytes_[bunch.images[number] == 16]) <= {255}
    assert set(bytes_[bunch.images[number] == 8]) <= {128}
    assert set(bytes_[bunch.images[number] == 0]) == {0}


def test_statistics_match_the_training_split(digits: DataSet) -> None:
    assert digits.train is not None
    x = digits.train.images(torch.arange(len(digits.train))).double()
    mean, std = round(x.mean().item(), 4), round(x.std(correction=0).item(), 4)
    assert digits.published == Statistics((mean,) * 3, (std,) * 3)
    assert digits.mean == (mean,) * 3
    assert digits.std == (std,) * 3


@pytest.mark.parametrize("n", [1, 64])
def test_a_prefix_takes_the_start_of_every_split(digits: DataSet, n: int) -> None:
    part = load(f"digits[:{n}]", preprocess=Squash(8))
    for name, split in part.splits.items():
        whole = digits.split(name)
        assert split.ids == whole.ids[:n]
        assert torch.equal(split.labels, whole.labels[:n])
        assert torch.equal(split.images(torch.arange(n)), whole.images(torch.arange(n)))


@pytest.mark.parametrize("name", PINNED)
def test_a_prefix_mixes_the_classes(digits: DataSet, name: str) -> None:
    counts = torch.bincount(digits.split(name).labels[:100], minlength=10)
    assert counts.min() >= 3
    assert counts.max() <= 20


def test_a_prefix_longer_than_the_split_is_the_split(digits: DataSet) -> None:
    assert load("digits[:100000]", preprocess=Squash(8)).describe()["splits"] == digits.describe()["splits"]


def test_digits_are_in_memory_at_any_size() -> None:
    larger = load("digits[:3]", preprocess=Squash(16))
    assert larger.test.is_in_memory
    assert larger.test.images(torch.tensor([2, 0])).shape == (2, 3, 16, 16)


def test_classes_are_renumbered_in_the_order_given(digits: DataSet) -> None:
    part = load("digits", preprocess=Squash(8), classes=("7", "0", "3"))
    assert part.classes == ("7", "0", "3")
    assert part.num_classes == 3
    old = dict(zip(digits.test.ids, digits.test.labels.tolist(), strict=True))
    assert [(7, 0, 3)[y] for y in part.test.labels.tolist()] == [old[name] for name in part.test.ids]
    assert part.test.ids == tuple(name for name in digits.test.ids if old[name] in (7, 0, 3))


def test_description_for_the_manifest(digits: DataSet) -> None:
    assert digits.describe() == {
        "spec": "digits",
        "preprocess": "squash8-bilinear",
        "classes": {"count": 10, "sha256": "29dd21f55e4611d4c787c2148e39b4e341d4c10701dd03eed360aa55035bdb34"},
        "splits": {name: {"count": count, "sha256": sha} for name, (count, sha) in PINNED.items()},
    }
