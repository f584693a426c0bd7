"""The context of suites and studies: every image once, also after interruptions."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from suite_parts import Bins, gray_images, on_two_ranks  # type: ignore[import-not-found]
from torch import Tensor

from vitadel.attacks import FGSM, Engine
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.oom import in_batches, run_in_parts
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.images import TensorImages, thumbnail
from vitadel.evaluate.store import MemoryStore, ResultStore, Row
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs import ResultFolder
from vitadel.runs.tables import Columns
from vitadel.threats import Linf

LEVELS = (0, 40, 80, 120, 160, 200, 240)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResultStore:
    return MemoryStore() if request.param == "memory" else ResultFolder(tmp_path / "results")


def context(store: ResultStore, **changes: object) -> Context:
    data = gray_images(LEVELS)
    made = Context(Bins(), data.test, data, store=store, engine=Engine(batch_size=2), name="test")
    return replace(made, **changes)  # type: ignore[arg-type]


class Counted:
    """Work that records its batches."""

    def __init__(self, fails_at: int = -1) -> None:
        self.batches: list[list[int]] = []
        self.fails_at = fails_at

    def __call__(self, batch: Batch) -> dict[str, object]:
        self.batches.append(batch.index.tolist())
        if self.fails_at in self.batches[-1]:
            raise KeyboardInterrupt
        return {"level": batch.x.mean((1, 2, 3)) * 255, "label": batch.y}


@pytest.mark.parametrize("forged", [[0] * 6, [0.0] * 7, ["x"] * 7, [None] * 7, [[0, 1]] * 7, [[0], [0, 1]]], ids=str)
def test_predictions_that_are_not_one_class_per_image_are_refused(store: ResultStore, forged: list[Any]) -> None:
    ctx = context(store)
    assert ctx.correct(ctx.images.labels.tolist()) == [1.0] * 7
    with pytest.raises(UsageError, match="there are 7 images, and their predictions in .* are not one class each"):
        ctx.correct(forged)


def test_map_gives_every_image_its_row(store: ResultStore) -> None:
    ctx, work = context(store), Counted()
    ctx.map("levels", work)
    rows = ctx.table("levels")
    assert work.batches == [[0, 1], [2, 3], [4, 5], [6]]
    assert rows.index == list(range(7))
    assert rows["level"] == pytest.approx(LEVELS, abs=1e-3)
    assert rows["label"] == [0, 1, 3, 4, 6, 7, 9]
    assert rows.by_index()[3]["label"] == 4


def test_map_works_on_chosen_images_and_batch_sizes(store: ResultStore) -> None:
    ctx, work = context(store), Counted()
    ctx.map("levels", work, index=[5, 1, 2], batch_size=3)
    ctx.map("levels", work, index=range(3), batch_size=3)
    assert work.batches == [[1, 2, 5], [0]]
    assert ctx.table("levels").index == [0, 1, 2, 5]


def test_an_interrupted_map_resumes(store: ResultStore) -> None:
    ctx = context(store)
    with pytest.raises(KeyboardInterrupt):
        ctx.map("levels", Counted(fails_at=4))
    assert ctx.table("levels").index == [0, 1, 2, 3]
    work = Counted()
    context(store, engine=Engine(batch_size=8)).map("levels", work)
    assert work.batches == [[4, 5, 6]]
    assert ctx.table("levels")["level"] == pytest.approx(LEVELS, abs=1e-3)


def test_several_tables_share_one_pass_over_the_images(store: ResultStore) -> None:
    reads: list[list[int]] = []

    class Images(TensorImages):
        def images(self, index: Tensor, /) -> Tensor:
            reads.append(index.tolist())
            return super().images(index)

    images = Images(torch.rand(5, 3, 4, 4), torch.arange(5))
    ctx = context(store, images=images, data=None)
    ctx.map_tables({"mean": lambda batch: {"x": batch.x.mean((1, 2, 3))}, "max": lambda b: {"x": b.x.amax((1, 2, 3))}})
    assert [len(one) for one in reads if len(one) > 1] == [5]
    assert ctx.table("max")["x"] == pytest.approx(images.pixels.amax((1, 2, 3)).tolist())
    ctx.map_tables({"mean": Counted(), "new": (work := Counted())})
    assert work.batches == [[0, 1], [2, 3], [4]]
    assert "level" not in ctx.table("mean")


def test_out_of_memory_halves_the_following_batches(store: ResultStore) -> None:
    seen: list[int] = []

    def work(batch: Batch) -> dict[str, object]:
        seen.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("full")
        return {"label": batch.y}

    ctx = context(store, engine=Engine(batch_size=7))
    ctx.map("labels", work)
    assert seen == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert ctx.table("labels")["label"] == [0, 1, 3, 4, 6, 7, 9]


def test_a_single_image_that_does_not_fit_is_refused(store: ResultStore) -> None:
    def work(batch: Batch) -> dict[str, object]:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(UsageError, match="single image"):
        context(store).map("labels", work)


def test_halving_concatenates_the_parts() -> None:
    def double(x: Tensor) -> Tensor:
        if len(x) > 3:
            raise torch.OutOfMemoryError("full")
        return 2 * x

    x = torch.arange(10.0)[:, None]
    assert torch.equal(run_in_parts(double, x), 2 * x)
    assert [len(part) for part, _ in in_batches(range(10), 10, lambda at: double(x[at]))] == [2, 2, 2, 2, 2]
    assert list(in_batches([], 4, lambda at: at)) == []


def test_stream_takes_results_in_any_order(store: ResultStore) -> None:
    requested: list[list[int]] = []
    reports: list[tuple[str, int, int, dict[str, float]]] = []

    def results(missing: list[int]) -> Iterator[tuple[int, Row]]:
        requested.append(missing)
        for index in reversed(missing):
            if index == 2:
                raise KeyboardInterrupt
            yield index, {"square": index**2, "kept": index}

    def before_write(rows: list[Row]) -> None:
        for row in rows:
            row["kept"] = -int(str(row["kept"]))

    ctx = context(store, progress=lambda what, done, total, numbers: reports.append((what, done, total, dict(numbers))))
    with pytest.raises(KeyboardInterrupt):
        ctx.stream("squares", results, before_write=before_write)
    assert ctx.table("squares").index == [3, 4, 5, 6]
    ctx.stream(
        "squares", lambda missing: ((i, {"square": i**2, "kept": 0}) for i in missing), counts=lambda row: {"n": 1}
    )
    assert requested == [[0, 1, 2, 3, 4, 5, 6]]
    assert ctx.table("squares")["square"] == [0, 1, 4, 9, 16, 25, 36]
    assert ctx.table("squares")["kept"] == [0, 0, 0, -3, -4, -5, -6]
    assert reports[0] == ("test squares", 1, 7, {})
    assert reports[-1] == ("test squares", 7, 7, {"n": 7})


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_is_what_is_reported_and_the_rows_are_computed_again(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitadel.evaluate.store.LARGE_ROWS", 2)

    class Full(MemoryStore):
        fails = True

        def append(self, table: str, columns: Columns) -> None:
            if self.fails:
                raise error
            super().append(table, columns)

    def before_write(rows: list[Row]) -> None:
        for row in rows:
            row["square"] = row.pop("root") ** 2

    store = Full()
    for fails in (True, False):
        store.fails = fails
        with pytest.raises(error) if fails else nullcontext():
            context(store).stream(
                "squares", lambda missing: ((at, {"root": at}) for at in missing), before_write=before_write
            )
    assert context(store).table("squares")["square"] == [0, 1, 4, 9, 16, 25, 36]


def test_a_part_is_made_once(store: ResultStore) -> None:
    made: list[int] = []

    def make() -> dict[str, object]:
        made.append(1)
        return {"factors": (1, 2)}

    for _ in range(2):
        part = context(store).compute_once("factors", make)
        assert part["factors"] == [1, 2]
        assert part["seconds"] >= 0
    assert made == [1]


def test_flags_stay_in_order_and_are_not_repeated(store: ResultStore) -> None:
    flags = [Flag("b", "second letter", {"n": 2}), Flag("a", "first letter", {"n": 1.5})]
    context(store).add_flags(flags[:1])
    context(store).add_flags(flags)
    assert context(store).flags() == flags


def test_two_ranks_share_images_and_parts(tmp_path: Path) -> None:
    shares: dict[int, list[list[int]]] = {}
    made: list[int] = []
    tables: list[list[float]] = []

    def evaluate(ranks: Ranks) -> None:
        ctx, work = context(ResultFolder(tmp_path / "results"), ranks=ranks), Counted()
        part = ctx.compute_once("part", lambda: made.append(ranks.rank) or {"by": ranks.rank})  # type: ignore[func-returns-value]
        assert part["by"] == 0
        ctx.map("levels", work)
        shares[ranks.rank] = work.batches
        tables.append(ctx.table("levels")["level"])

    on_two_ranks(evaluate)
    assert shares == {0: [[0, 2], [4, 6]], 1: [[1, 3], [5]]}
    assert made == [0]
    for levels in tables:
        assert levels == pytest.approx(LEVELS, abs=1e-3)


def test_predictions_and_attacks_of_a_known_model(store: ResultStore) -> None:
    ctx = context(store, threat=Linf(30 / 255))
    ctx.map("clean", lambda batch: {"prediction": ctx.predict(batch.x)})
    ctx.map("fgsm", lambda batch: ctx.attack(FGSM(), batch).columns())
    assert ctx.table("clean")["prediction"] == [0, 1, 3, 4, 6, 7, 9]
    assert ctx.table("fgsm")["distance"][3] == pytest.approx(30 / 255)
    assert ctx.logits(ctx.batch([0]).x).shape == (1, 10)
    assert (ctx.class_name(3), ctx.class_name(12)) == ("3", "12")


def test_a_model_of_fewer_classes_is_refused(store: ResultStore) -> None:
    ctx = context(store, model=Bins(5))
    with pytest.raises(UsageError, match=r"labels from 0 to 9\. Is it the model for this data set"):
        ctx.predict(ctx.batch([0]).x)
    assert ctx.logits(ctx.batch([0]).x).shape == (1, 5)


@pytest.mark.parametrize(("shape", "small"), [((3, 224, 448), (3, 56, 112)), ((3, 100, 30), (3, 100, 30))])
def test_thumbnails_keep_proportions(shape: tuple[int, ...], small: tuple[int, ...]) -> None:
    """A constant image stays constant, and the picture of a wide image is wide."""
    image = torch.full(shape, 0.25)
    assert torch.equal(thumbnail(image), torch.full(small, 0.25))
    shown = picture(image).pixels
    assert shown is not None
    assert shown.shape[:2] == small[1:]
