"""Interruptions, several processes and any batch size do not change the results of a suite."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from suite_parts import (  # type: ignore[import-not-found]
    Bins,
    claim,
    gray_images,
    on_two_ranks,
    rows_of,
    without_time,
)
from torch import Tensor, nn

import vitadel as vd
from vitadel.attacks import FGSM, PGD, Attack
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.data import DataSet
from vitadel.evaluate import SUITES
from vitadel.evaluate.parsing import as_suites
from vitadel.evaluate.suites import Corruptions
from vitadel.runs import ResultFolder
from vitadel.runs.schema import SuiteRecord

LEVELS = [10, 40, 65, 90, 120, 140, 170, 200, 230, 250, 33]
CELLS = Corruptions(names=("gaussian_noise", "brightness", "contrast"), severities=(1, 5))
FORWARDS = len(LEVELS) * 7  # six cells and the clean images


class Interrupted(Bins):
    """Stops after so many images."""

    def __init__(self, after: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        super().__init__()
        self.after, self.error = after, error

    def forward(self, x: Tensor) -> Tensor:
        if self.seen >= self.after:
            raise self.error
        return super().forward(x)


def test_results_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    summaries = [
        evaluate_one(Bins(), gray_images(LEVELS), CELLS, claim(tmp_path / str(batch)), batch=batch)
        for batch in (1, 4, 64)
    ]
    assert without_time(summaries[0]) == without_time(summaries[1]) == without_time(summaries[2])
    assert rows_of(tmp_path / "1") == rows_of(tmp_path / "4") == rows_of(tmp_path / "64")


def test_another_seed_gives_other_noise(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluate_one(Bins(100), gray_images(LEVELS, classes=100), CELLS, claim(tmp_path / str(seed)), seed=seed)
    assert rows_of(tmp_path / "0")["predictions"] != rows_of(tmp_path / "1")["predictions"]


@pytest.mark.parametrize(("after", "error"), [(4, KeyboardInterrupt), (11, RuntimeError), (30, KeyboardInterrupt)])
def test_an_interrupted_suite_computes_nothing_twice(tmp_path: Path, after: int, error: type[BaseException]) -> None:
    reference = Bins()
    whole = evaluate_one(reference, gray_images(LEVELS), CELLS, claim(tmp_path / "whole"), batch=4)
    first, second = Interrupted(after, error), Bins()
    with pytest.raises(error):
        evaluate_one(first, gray_images(LEVELS), CELLS, claim(tmp_path / "cut"), batch=4)
    assert after <= first.seen < FORWARDS
    tables = tmp_path / "cut" / "eval" / "corruptions" / "tables"
    resumed = evaluate_one(second, gray_images(LEVELS), CELLS, claim(tmp_path / "cut"), batch=3)
    assert first.seen + second.seen == reference.seen > FORWARDS  # the rest are the sanity checks at the end
    assert without_time(resumed) == without_time(whole)
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    assert not tables.exists()
    third = Bins()
    assert evaluate_one(third, gray_images(LEVELS), CELLS, claim(tmp_path / "cut")) == resumed
    assert third.seen == 0


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prediction", "x", "predictions in .*run/eval/corruptions are not one class each: .* Delete its tables"),
        ("prediction", None, "predictions in .*run/eval/corruptions are not one class each: .* Delete its tables"),
        ("seconds", "x", "rows in .*run/eval/corruptions cannot be summarized: TypeError: .* Restore its tables"),
        ("other", 0, r"the rows in .*tables/clean have no column 'prediction'\. Delete .*tables/clean and"),
    ],
)
def test_forged_rows_of_an_interrupted_suite_are_refused_and_kept(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_one(Interrupted(30), gray_images(LEVELS), CELLS, claim(tmp_path / "run"), batch=4)
    clean = tmp_path / "run" / "eval" / "corruptions" / "tables" / "clean"
    for path in clean.iterdir():
        path.unlink()
    stored = {"index": range(11), "seconds": [0.1] * 11, "prediction": [0] * 11, column: [value] * 11}
    if column == "other":
        del stored["prediction"]
    pq.write_table(pa.table(stored), clean / "0.parquet")
    with pytest.raises(UsageError, match=message) as error:
        evaluate_one(Bins(), gray_images(LEVELS), CELLS, claim(tmp_path / "run"), batch=4)
    assert "\n" not in str(error.value)
    assert len(list(clean.parent.iterdir())) == 7


def test_an_error_of_a_suite_itself_is_not_blamed_on_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corruptions, "rows", lambda self, ctx: ctx.unknown)
    with pytest.raises(AttributeError, match="unknown"):
        evaluate_one(Bins(), gray_images(LEVELS), CELLS, claim(tmp_path / "run"), batch=4)


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    whole, shared = evaluate_one(Bins(), gray_images(LEVELS), CELLS, claim(tmp_path / "one")), claim(tmp_path / "two")
    summaries, seen = list[dict[str, object]](), dict[int, int]()

    def work(ranks: Ranks) -> None:
        model = Bins()
        summaries.append(evaluate_one(model, gray_images(LEVELS), CELLS, shared, ranks=ranks))
        seen[ranks.rank] = model.seen

    on_two_ranks(work)
    assert without_time(summaries[0]) == without_time(summaries[1]) == without_time(whole)
    assert rows_of(tmp_path / "two") == rows_of(tmp_path / "one")
    assert seen[1] == FORWARDS // 11 * 5


def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    class Small(Bins):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 3:
                raise torch.OutOfMemoryError
            return super().forward(x)

    whole = evaluate_one(Bins(), gray_images(LEVELS[:3]), CELLS, claim(tmp_path / "whole"))
    halved = evaluate_one(Small(), gray_images(LEVELS[:3]), CELLS, claim(tmp_path / "halved"), batch=64)
    assert without_time(halved) == without_time(whole)


def test_every_image_is_read_once_for_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = gray_images(LEVELS), list[int]()
    original = type(data.test.pixels).read

    def counted(self: object, index: Tensor) -> Tensor:
        read.extend(index.tolist())
        return original(self, index)

    monkeypatch.setattr(type(data.test.pixels), "read", counted)
    evaluate_one(Bins(), data, CELLS, claim(tmp_path / "run"))
    assert read.count(10) == 2  # for all cells, and for the sanity checks of the model


def test_the_record_and_the_rows(tmp_path: Path) -> None:
    summary = evaluate_one(Bins(), gray_images(LEVELS), CELLS, claim(tmp_path / "run"))
    folder = ResultFolder(tmp_path / "run" / "eval" / "corruptions")
    assert folder.read_verified()[0] == summary
    record = SuiteRecord.from_json(summary)
    assert (record.name, record.suite, record.n) == ("corruptions", "corruptions", 11)
    assert (record.robust, record.attacks, record.threat) == (None, (), None)
    assert record.main is record.measures[0]
    assert [type(one).__name__ for one in record.exhibits] == ["Heatmap", "Bars", "Table", "Pictures"]
    rows = folder.rows()
    assert list(rows)[:5] == ["index", "id", "label", "clean_prediction", "correct"]
    assert rows["index"] == list(range(11))


class Nans(Bins):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Bins(3), gray_images(LEVELS), "labels from 0 to 9. Is it the model for this data set?"),
        (Nans(), gray_images(LEVELS), "NaN or infinite logits for 11 of 11 images"),
        (Bins(), gray_images(LEVELS, size=8), "at least 16 px a side, got 8"),
    ],
)
def test_unsupported_models_and_data_are_named(tmp_path: Path, model: nn.Module, data: DataSet, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_one(model, data, CELLS, claim(tmp_path / "run"))


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_describes_itself(name: str) -> None:
    suite = SUITES[name]
    assert suite.name == name
    assert suite.about
    assert suite.title
    assert (type(suite).__doc__ or "").strip()


@pytest.mark.parametrize(
    ("suites", "names"),
    [
        ("pgd:steps=2", ["attack"]),
        ("pgd:steps=2,square:queries=3,clean", ["pgd-steps-2", "square-queries-3", "clean"]),
        ([PGD(steps=1), PGD(steps=2), FGSM()], ["pgd", "pgd-2", "fgsm"]),
    ],
)
def test_several_attacks_are_several_suites(suites: str | list[Attack], names: list[str]) -> None:
    assert [suite.name for suite in as_suites(suites)] == names


def test_several_attacks_in_one_evaluation(tmp_path: Path) -> None:
    data = gray_images([5, 40, 90])
    result = vd.evaluate(Bins(), data, ["pgd:steps=2", "square:queries=3"], run=tmp_path / "run", threat="linf:1/255")
    assert [record.suite for record in result.records] == ["pgd-steps-2", "square-queries-3"]
