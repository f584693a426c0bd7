"""The suite of CONTRIBUTING.md: through the public driver, interrupted and on two ranks."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from suite_parts import Bins, claim, on_two_ranks, rows_of, without_time  # type: ignore[import-not-found]
from torch import Tensor

import vitadel as vd
from vitadel.attacks import Engine
from vitadel.core.distributed import Ranks
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import Context, Suite, evaluate_suite

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def suite() -> Suite:
    (code,) = re.findall(r"### Adding a suite\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {"__name__": "suite_of_ones_own"}
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102
    made: Suite = names["Mirrored"]()
    return made


class LeftHalf(Bins):
    """Class by the gray of the left half; stops for good after so many images."""

    def __init__(self, stops_after: int | None = None) -> None:
        super().__init__()
        self.stops_after = stops_after
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.stops_after is not None and self.seen >= self.stops_after:
            raise KeyboardInterrupt
        return super().forward(x[..., : x.shape[-1] // 2]) + self.weight


@pytest.fixture
def data() -> DataSet:
    """Ten images with the gray of their class on the left; on the right too, but for the last four."""
    gray = (25.5 * torch.arange(10) + 13).to(torch.uint8)
    pixels = gray.view(-1, 1, 1, 1).repeat(1, 3, 8, 8)
    pixels[6:, ..., 4:] = 0
    split = Split("test", tuple(map(str, range(10))), torch.arange(10), InMemory(pixels))
    return DataSet("halves", tuple(map(str, range(10))), Squash(8), None, None, split)


def test_it_runs_through_the_public_driver(suite: Suite, data: DataSet, tmp_path: Path) -> None:
    result = vd.evaluate(LeftHalf(), data, suite, run=tmp_path / "run", progress=False)
    record = result["mirrored"]
    assert record.sentence == "60.0% of 10 mirror images are correct."
    assert record.main is not None
    assert (record.main.value, record.main.n) == (0.6, 10)
    assert rows_of(tmp_path / "run", "mirrored")["correct"] == [1.0] * 6 + [0.0] * 4
    assert vd.evaluate(LeftHalf(0), data, suite, run=tmp_path / "run", progress=False)["mirrored"] == record


def test_it_resumes(suite: Suite, data: DataSet, tmp_path: Path) -> None:
    def evaluate(model: LeftHalf, folder: str) -> dict[str, object]:
        ctx = Context(model, data.test, data, engine=Engine(batch_size=3))
        (record,) = evaluate_suite(suite, ctx, claim(tmp_path / folder).results)
        return without_time(record.to_json())

    whole = evaluate(reference := LeftHalf(), "whole")
    with pytest.raises(KeyboardInterrupt):
        evaluate(first := LeftHalf(13), "cut")
    assert evaluate(second := LeftHalf(), "cut") == whole
    assert first.seen + second.seen == reference.seen
    assert rows_of(tmp_path / "cut", "mirrored") == rows_of(tmp_path / "whole", "mirrored")


def test_it_is_shared_by_two_ranks(suite: Suite, data: DataSet, tmp_path: Path) -> None:
    (whole,) = evaluate_suite(suite, Context(LeftHalf(), data.test, data), claim(tmp_path / "one").results)
    run, summaries, seen = claim(tmp_path / "two"), list[dict[str, object]](), dict[int, int]()

    def work(ranks: Ranks) -> None:
        model = LeftHalf()
        (record,) = evaluate_suite(suite, Context(model, data.test, data, ranks=ranks), run.results)
        summaries.append(without_time(record.to_json()))
        seen[ranks.rank] = model.seen

    on_two_ranks(work)
    assert summaries == [without_time(whole.to_json())] * 2
    assert seen[1] == 10  # its half of the images, in two tables
