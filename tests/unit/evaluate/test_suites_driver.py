"""A survey can be stopped, shared out and cut into any batches without a change in what it says."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from suite_parts import Bins, claim, grays  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.data import DataSet
from vitadel.evaluate import SURVEYS, survey
from vitadel.evaluate.suites import Corruptions, base
from vitadel.runs import ResultFolder, Rows

LEVELS = [10, 40, 65, 90, 120, 140, 170, 200, 230, 250, 33]
CELLS = Corruptions(names=("gaussian_noise", "brightness", "contrast"), severities=(1, 5))
LOOKS = len(LEVELS) * 7  # six cells and the images as they are


def rows_of(folder: Path) -> dict[str, list[object]]:
    return ResultFolder(folder / "eval" / "corruptions").rows()


def without_time(summary: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in summary.items() if key != "seconds"}


def test_no_number_depends_on_the_batch(tmp_path: Path) -> None:
    summaries = [
        survey(Bins(), grays(LEVELS), CELLS, claim(tmp_path / str(batch)), batch=batch) for batch in (1, 4, 64)
    ]
    assert without_time(summaries[0]) == without_time(summaries[1]) == without_time(summaries[2])
    assert rows_of(tmp_path / "1") == rows_of(tmp_path / "4") == rows_of(tmp_path / "64")


def test_another_seed_draws_other_noise(tmp_path: Path) -> None:
    for seed in (0, 1):
        survey(Bins(100), grays(LEVELS, classes=100), CELLS, claim(tmp_path / str(seed)), seed=seed)
    assert rows_of(tmp_path / "0")["predictions"] != rows_of(tmp_path / "1")["predictions"]


@pytest.mark.parametrize("moment", [1, 3, 7, 8])
def test_nothing_is_looked_at_twice_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    isolated = Bins()
    whole = survey(isolated, grays(LEVELS), CELLS, claim(tmp_path / "whole"), batch=4)
    monkeypatch.setattr(base, "_SECONDS", -1.0)  # every batch is written down at once
    model, written, add = Bins(), 0, Rows.add

    def interrupted(self: Rows, columns: Mapping[str, Sequence[object]]) -> None:
        nonlocal written
        add(self, columns)
        written += 1
        if written == moment:
            raise KeyboardInterrupt

    monkeypatch.setattr(Rows, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        survey(model, grays(LEVELS), CELLS, claim(tmp_path / "cut"), batch=4)
    monkeypatch.setattr(Rows, "add", add)
    assert model.seen == min(4 * moment - moment // 3, LOOKS)  # batches of 4, 4 and 3
    resumed = survey(model, grays(LEVELS), CELLS, claim(tmp_path / "cut"), batch=3)
    assert model.seen == isolated.seen > LOOKS  # the rest are questions about the model's habits, asked at the end
    assert without_time(resumed) == without_time(whole)
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    assert not (tmp_path / "cut" / "eval" / "corruptions" / "pages").exists()
    seen = model.seen
    assert survey(model, grays(LEVELS), CELLS, claim(tmp_path / "cut")) == resumed
    assert model.seen == seen


def test_an_error_costs_nothing_that_was_found(tmp_path: Path) -> None:
    class Tired(Bins):
        def forward(self, x: Tensor) -> Tensor:
            if self.seen >= 19:  # eleven clean answers, and two batches of the first cell
                raise RuntimeError("tired")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="tired"):
        survey(Tired(), grays(LEVELS), CELLS, claim(tmp_path / "run"), batch=4)
    rows = Rows(tmp_path / "run" / "eval" / "corruptions")
    assert len(rows.page("clean").finished()) == 11
    assert len(rows.page("gaussian_noise-1").finished()) == 8


def test_two_processes_say_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = survey(Bins(), grays(LEVELS), CELLS, claim(tmp_path / "one"))
    monkeypatch.setattr(Ranks, "wait", lambda self: None)
    run, models = claim(tmp_path / "two"), [Bins(), Bins()]
    with pytest.raises(UsageError, match="summary.json does not exist"):  # nobody has drawn the conclusion yet
        survey(models[1], grays(LEVELS), CELLS, run, ranks=Ranks(1, 2))
    assert models[1].seen == LOOKS // 11 * 5
    shared = survey(models[0], grays(LEVELS), CELLS, run, ranks=Ranks(0, 2))
    assert without_time(shared) == without_time(whole)
    assert rows_of(tmp_path / "two") == rows_of(tmp_path / "one")


def test_a_batch_that_does_not_fit_is_cut_in_two(tmp_path: Path) -> None:
    class Small(Bins):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 3:
                raise torch.OutOfMemoryError
            return super().forward(x)

    whole = survey(Bins(), grays(LEVELS[:3]), CELLS, claim(tmp_path / "whole"))
    cut = survey(Small(), grays(LEVELS[:3]), CELLS, claim(tmp_path / "cut"), batch=64)
    assert without_time(cut) == without_time(whole)


def test_images_are_held_a_portion_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    data = grays(LEVELS)
    read = type(data.test.pixels).read

    def counted(self: object, rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return read(self, rows)

    monkeypatch.setattr(type(data.test.pixels), "read", counted)
    monkeypatch.setattr(base, "_VALUES", 4 * 3 * 32 * 32)
    survey(Bins(), data, CELLS, claim(tmp_path / "run"))
    assert asked[:3] == [4, 4, 3]  # once for all cells


def test_the_summary_keeps_the_contract(tmp_path: Path) -> None:
    summary = survey(Bins(), grays(LEVELS), CELLS, claim(tmp_path / "run"))
    assert Rows(tmp_path / "run" / "eval" / "corruptions").summary == summary
    assert (summary["name"], summary["suite"], summary["n"]) == ("corruptions", "corruptions", 11)
    assert (summary["robust"], summary["attacks"], summary["threat"]) == (None, [], None)
    measures = summary["measures"]
    assert isinstance(measures, list)
    assert [one["main"] for one in measures].count(True) == 1
    assert {"name", "value", "low", "high", "n", "kind", "higher_is_better", "main"} == set(measures[0])
    exhibits = summary["exhibits"]
    assert isinstance(exhibits, list)
    assert [one["kind"] for one in exhibits] == ["heat", "bars", "table", "pictures"]
    rows = rows_of(tmp_path / "run")
    assert list(rows)[:5] == ["row", "id", "label", "clean_prediction", "right"]
    assert rows["row"] == list(range(11))


class Nans(Bins):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Bins(3), grays(LEVELS), "labels up to 9. Is it the model for this data set?"),
        (Nans(), grays(LEVELS), "NaN or infinite logits for 11 of 11 images"),
        (Bins(), grays(LEVELS, size=8), "at least 16 px a side, got 8"),
    ],
)
def test_what_cannot_be_surveyed_is_named(tmp_path: Path, model: nn.Module, data: DataSet, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        survey(model, data, CELLS, claim(tmp_path / "run"))


@pytest.mark.parametrize("name", SURVEYS)
def test_every_survey_says_what_it_is(name: str) -> None:
    kind = SURVEYS[name]
    assert kind.name == name
    assert kind.about
    assert kind.title
    assert (type(kind()).__doc__ or "").strip()
