"""The fixed order of images and the hold-out, which depend on the images' names only, not on a seed or a listing."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitadel.data.split import Split

# Never change a salt: it would move images of every data set between splits. Each purpose has its own salt, as the
# images that remain after a selection would otherwise be ordered by the same hash.
_ORDER_SALT = "vitadel/order"
_HOLDOUT_SALT = "vitadel/holdout"
_TEST_SALT = "vitadel/test"
_HOLDOUT_LIMIT = 1000


def fixed_order(split: Split) -> Split:
    """The split sorted by a salted hash of each image's name, so that any prefix mixes the classes."""
    return split.take(torch.tensor(_by_hash(split.ids, _ORDER_SALT), dtype=torch.int64))


def hold_out(train: Split) -> tuple[Split, Split | None]:
    """Training images without their hold-out, and the hold-out.

    The hold-out is a tenth of every class, at least one image of a class that has two, and at most 1000 images in
    total: the first image of every class is taken before the second of any.
    """
    counts = Counter(train.labels.tolist())
    quota = {label: max(_tenths(count, 1), 1) if count > 1 else 0 for label, count in counts.items()}
    rest, drawn = _draw(train, quota, _HOLDOUT_SALT, limit=_HOLDOUT_LIMIT)
    return train.take(rest), replace(train.take(drawn), name="holdout") if len(drawn) else None


def train_and_test(pool: Split) -> tuple[Split, Split]:
    """Training and test images of a source without splits: a fifth of every class becomes test images."""
    counts = Counter(pool.labels.tolist())
    rest, drawn = _draw(pool, {label: _tenths(count, 2) for label, count in counts.items()}, _TEST_SALT)
    return replace(pool.take(rest), name="train"), replace(pool.take(drawn), name="test")


def _draw(split: Split, quota: Mapping[int, int], salt: str, *, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """The indices of remaining and selected images: `quota` per class with the lowest hashes, at most `limit`."""
    labels = split.labels.tolist()
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, int]] = []
    for i in _by_hash(split.ids, salt):
        ranked.append((seen[labels[i]], i))
        seen[labels[i]] += 1
    within = [(rank, i) for rank, i in ranked if rank < quota[labels[i]]]
    within.sort(key=lambda pair: pair[0])  # stable: images of one rank stay in the order of their hashes
    drawn = torch.zeros(len(split), dtype=torch.bool)
    drawn[torch.tensor([i for _, i in within[:limit]], dtype=torch.int64)] = True
    return (~drawn).nonzero().flatten(), drawn.nonzero().flatten()


def _tenths(count: int, share: int) -> int:
    """`share` tenths of `count`, a half rounded up."""
    return (count * share + 5) // 10


def _by_hash(ids: tuple[str, ...], salt: str) -> list[int]:
    keys = [hashlib.sha256(f"{salt}/{name}".encode(errors="surrogateescape")).digest() for name in ids]
    return sorted(range(len(keys)), key=keys.__getitem__)
