"""The eighth batch of three orders, as the first version drew it: a run that is resumed later has to see the same."""

import pytest

from vitadel.train import Sampler


@pytest.mark.parametrize(
    ("order", "rows", "index"),
    [
        (Sampler(50, 10, 3), [34, 24, 3, 0, 16, 40, 41, 39, 37, 17], [34, 24, 3, 0, 16, 40, 41, 39, 37, 17]),
        (
            Sampler(50, 10, 3, repeats=3),
            [19, 38, 38, 38, 36, 36, 36, 13, 13, 13],
            [119, 38, 88, 138, 36, 86, 136, 13, 63, 113],
        ),
        (
            Sampler(50, 10, 3, synthetic=1000, share=0.8),
            [183, 38, 272, 591, 670, 75, 26, 650, 932, 912],
            [233, 38, 322, 641, 720, 125, 26, 700, 982, 962],  # of synthetic images the row and 50
        ),
    ],
    ids=["real", "repeated", "mixed"],
)
def test_the_eighth_batch(order: Sampler, rows: list[int], index: list[int]) -> None:
    (pick,) = order.batches(range(7, 8))
    assert pick.row_B.tolist() == rows
    assert pick.index_B.tolist() == index
