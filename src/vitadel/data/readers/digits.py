"""The bundled data set: 1797 handwritten digits of 8 x 8 pixels, from scikit-learn."""

import numpy as np
import torch

from vitadel.data.dataset import Source, Statistics
from vitadel.data.partition import train_and_test
from vitadel.data.pixels import Arrays
from vitadel.data.preprocess import Preprocess
from vitadel.data.split import Split

# measured over the training split at its own size of 8 x 8 (tests/unit/data/test_data_digits.py)
_STATISTICS = Statistics((0.3053, 0.3053, 0.3053), (0.3758, 0.3758, 0.3758))


def read_digits(preprocess: Preprocess) -> Source:
    """A fifth of every class is the test split, drawn by its images' names; the rest is for training."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    gray = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    pictures = torch.from_numpy(gray)[:, None].expand(-1, 3, -1, -1).contiguous()
    ids = tuple(f"digits/{number:05d}" for number in range(len(pictures)))
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    train, test = train_and_test(Split("all", ids, labels, Arrays.of(pictures, preprocess)))
    classes = tuple(str(digit) for digit in range(10))
    return Source(classes, train, test, _STATISTICS)
