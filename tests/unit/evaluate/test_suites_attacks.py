"""Surveys that search for what fools a model: one gray level, turns and shifts, other models' adversaries."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gray_images import claim, grays  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import models
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.progress import Notify
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import survey
from vitadel.evaluate.suites import GrayLevel, Spatial, Transfer, base
from vitadel.evaluate.suites.spatial import _blocks, likely_first
from vitadel.runs import ResultFolder, Rows
from vitadel.shifts.rotate_translate import RotateTranslate, moved
from vitadel.threats import Linf


def rows_of(folder: Path, name: str) -> dict[str, list[object]]:
    return ResultFolder(folder / "eval" / name).rows()


def values(summary: Mapping[str, object]) -> dict[str, float]:
    measures = summary["measures"]
    assert isinstance(measures, list)
    return {one["name"]: one["value"] for one in measures}


def without_time(summary: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in summary.items() if key != "seconds"}


# ----------------------------------------------------------------- gray level


class Edge(nn.Module):
    """Bright or dark: the mean of the pixels against one half. A gray image falls if that is within eps."""

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = x.mean((1, 2, 3)) - 0.5
        return torch.stack([-logit_difference, logit_difference], 1) * 50


def test_one_gray_level_fells_what_is_nearer_than_one(tmp_path: Path) -> None:
    # 127.5 is the edge: 127 and 128 fall to one level, 126 and 129 stand; the last is wrong from the start
    data = grays([127, 128, 126, 129, 40, 250], [0, 1, 0, 1, 0, 0], classes=2, size=8)
    summary = survey(Edge(), data, GrayLevel(), claim(tmp_path / "run"), batch=4)
    rows = rows_of(tmp_path / "run", "gray-level")
    assert rows["correct"] == rows["fgsm_correct"] == [0, 0, 1, 1, 1, 0]
    assert rows["clean_prediction"] == [0, 1, 0, 1, 0, 1]
    assert rows["prediction"] == [1, 0, 0, 1, 0, 1]
    assert values(summary) == {"PGD-8 at 1 gray level": 0.5, "FGSM at 1 gray level": 0.5}
    assert summary["threat"] == {"norm": "linf", "eps": 1 / 255, "text": "linf:1/255"}
    assert summary["clean"]["correct"] == 5  # type: ignore[index]
    wider = survey(Edge(), data, GrayLevel(levels=2), claim(tmp_path / "two"))
    assert values(wider) == {"PGD-8 at 2 gray levels": 1 / 6, "FGSM at 2 gray levels": 1 / 6}


class Kink(nn.Module):
    """The slope at the image points the wrong way after half a level: only a single full step gets across."""

    def forward(self, x: Tensor) -> Tensor:
        up = (x.mean((1, 2, 3)) - 100 / 255) * 255
        objective = torch.where(up < 0.4, up, 0.8 - up) + 20 * (up - 0.9).clamp_min(0)
        return torch.stack([0.5 - objective, objective - 0.5], 1)


def test_more_steps_that_find_less_are_flagged(tmp_path: Path) -> None:
    data = grays([100, 100], [0, 0], classes=2, size=8)
    summary = survey(Kink(), data, GrayLevel(), claim(tmp_path / "run"))
    assert values(summary) == {"PGD-8 at 1 gray level": 1.0, "FGSM at 1 gray level": 0.0}
    codes = [flag["code"] for flag in summary["flags"]]  # type: ignore[attr-defined]
    assert "pgd-weaker-than-fgsm" in codes


def test_gray_levels_that_make_no_sense_are_named() -> None:
    with pytest.raises(UsageError, match=r"GrayLevel.levels must lie in \(0, 255\], got 0. The paper's is 1"):
        GrayLevel(levels=0)
    with pytest.raises(UsageError, match="steps must be at least 1"):
        GrayLevel(steps=0)


# -------------------------------------------------------------------- spatial


class Corner(nn.Module):
    """Looks at two pixels: class 1 if the upper one is brighter."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        logit_difference = x[:, 0, 5, 8] - x[:, 0, 10, 8]
        return torch.stack([-logit_difference, logit_difference], 1)


def blurred(count: int) -> DataSet:
    """Soft noise with labels that `Corner` mostly agrees with."""
    rng = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, 3, 3, 3, generator=rng)
    pixels = (torch.nn.functional.interpolate(coarse, size=16, mode="bilinear") * 255).byte()
    labels = Corner()(pixels / 255).argmax(1)
    labels[1::5] = 1 - labels[1::5]
    split = Split("test", tuple(map(str, range(count))), labels, InMemory(pixels))
    return DataSet("soft", ("0", "1"), Squash(16), None, None, split)


SMALL = {"shifts": 3, "turns": 5}


def by_hand(data: DataSet, settings: Spatial) -> list[float]:
    """The whole grid, image by image."""
    moves, right = settings.threat(16).moves(), []
    for row in range(len(data.test)):
        x = data.test.images(torch.tensor([row])).expand(len(moves), -1, -1, -1)
        right.append(float((Corner()(moved(x, moves)).argmax(1) == data.test.labels[row]).all()))
    return right


@pytest.mark.parametrize("mapped", [0, 4, 100])
def test_verdicts_are_those_of_the_whole_grid(tmp_path: Path, mapped: int) -> None:
    data, settings = blurred(30), Spatial(**SMALL, mapped=mapped)
    model = Corner()
    told: list[tuple[int, int]] = []
    notify: Notify = lambda what, done, total, numbers: told.append((done, total))  # noqa: E731
    summary = survey(model, data, settings, claim(tmp_path / "run"), batch=7, notify=notify)
    assert told[-1] == (45 * 30, 45 * 30)
    assert told == sorted(told)
    rows = rows_of(tmp_path / "run", "spatial")
    expected = by_hand(data, settings)
    assert rows["correct"] == expected
    assert 0 < sum(expected) < 24
    assert values(summary)["worst of 45 moves"] == pytest.approx(sum(expected) / 30)
    spent = sum(map(int, map(str, rows["forwards"])))
    assert model.seen == spent + habits(data)  # what is said to be spent is what was spent
    assert summary["conventions"]["forwards"] == spent  # type: ignore[index]
    assert summary["conventions"]["forwards_of_the_whole_grid"] == 45 * 30  # type: ignore[index]
    if mapped < 30:
        assert spent < 45 * 30
    # the move that is named does fell the image
    for row, right in enumerate(expected):
        move = [rows[what][row] for what in ("down", "to_the_right", "degrees")]
        if right:
            assert move == [None] * 3
        else:
            x = data.test.images(torch.tensor([row]))
            assert int(Corner()(moved(x, torch.tensor([move]))).argmax()) != int(data.test.labels[row])


class Pixel(nn.Module):
    """Class 1 if one pixel is bright enough."""

    def __init__(self, row: int, column: int, level: float) -> None:
        super().__init__()
        self.row, self.column, self.level = row, column, level

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = x[:, 0, self.row, self.column] - self.level
        return torch.stack([-logit_difference, logit_difference], 1)


@pytest.mark.parametrize("place", [0, 1, 20, 41, 42, 43])
def test_a_single_move_that_fells_an_image_is_found_wherever_it_stands(tmp_path: Path, place: int) -> None:
    data = blurred(4)
    data.test.labels.zero_()
    settings = Spatial(**SMALL, mapped=0)
    moves = settings.threat(16).moves()
    order = likely_first(moves, None)
    only = int(order[order != 22][place])
    noise = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)).mul(255).byte()
    data.test.pixels.pixels[2] = noise[0]  # type: ignore[attr-defined]
    seen = moved(data.test.images(torch.tensor([2])).expand(45, -1, -1, -1), moves)[:, 0]
    others = seen[torch.arange(45) != only].amax(0)
    gap = seen[only] - others  # where this move makes a pixel brighter than any other does
    row, column = divmod(int(gap.argmax()), 16)
    assert float(gap.max()) > 0.01
    level = float(others[row, column] + gap.max() / 2)
    survey(Pixel(row, column, level), data, settings, claim(tmp_path / "run"))
    rows = rows_of(tmp_path / "run", "spatial")
    assert rows["correct"][2] == 0
    assert [rows[what][2] for what in ("down", "to_the_right", "degrees")] == moves[only].tolist()


def habits(data: DataSet) -> int:
    """How often a model is asked about its habits."""
    from vitadel.evaluate import sanity_flags

    model = Corner()
    sanity_flags(model, data.test.images(torch.arange(16)))
    return model.seen


def test_the_map_counts_every_move_of_the_first_images(tmp_path: Path) -> None:
    data, settings = blurred(12), Spatial(**SMALL, mapped=5)
    summary = survey(Corner(), data, settings, claim(tmp_path / "run"))
    moves = settings.threat(16).moves()
    right = []
    for row in range(5):
        x = data.test.images(torch.tensor([row])).expand(len(moves), -1, -1, -1)
        right.append((Corner()(moved(x, moves)).argmax(1) == data.test.labels[row]).double())
    share = torch.stack(right).mean(0).view(5, 3, 3)
    heat, lines = summary["exhibits"][:2]  # type: ignore[index]
    for matrix, expected in zip(heat["matrices"], (share.mean(0), share[2], (share[0] + share[4]) / 2), strict=True):
        assert torch.allclose(torch.tensor(matrix["values"], dtype=torch.float64), expected)
    assert torch.allclose(torch.tensor(lines["lines"][1]["y"], dtype=torch.float64), share[:, 1, 1])
    assert lines["lines"][0]["x"] == [-30, -15, 0, 15, 30]
    assert values(summary)["mean over moves, mapped images"] == pytest.approx(float(share.mean()))


def test_spatial_rows_depend_neither_on_batch_nor_processes_nor_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = blurred(20), Spatial(**SMALL, mapped=4)
    whole = survey(Corner(), data, settings, claim(tmp_path / "whole"), batch=64)
    monkeypatch.setattr(base, "_SECONDS", -1.0)
    monkeypatch.setattr(base, "_VALUES", 6 * 3 * 16 * 16)
    model, add, written = Corner(), Rows.add, 0

    def interrupted(self: Rows, columns: Mapping[str, Sequence[object]]) -> None:
        nonlocal written
        add(self, columns)
        written += 1
        if written % 4 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Rows, "add", interrupted)
    stops = 0
    while True:
        try:
            cut = survey(model, data, settings, claim(tmp_path / "cut"), batch=3 + stops % 5)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops > 5
    assert without_time(cut) == without_time(whole)
    assert rows_of(tmp_path / "cut", "spatial") == rows_of(tmp_path / "whole", "spatial")
    monkeypatch.setattr(Rows, "add", add)

    # the second process has to wait for the map of the first: here it goes first and finds half a map
    monkeypatch.setattr(Ranks, "wait", lambda self: None)
    run = claim(tmp_path / "two")
    with pytest.raises(KeyError):
        survey(Corner(), data, settings, run, ranks=Ranks(1, 2))
    with pytest.raises(KeyError):  # the first process goes on, and misses what the second did not say
        survey(Corner(), data, settings, run, ranks=Ranks(0, 2))
    with pytest.raises(UsageError, match="summary.json does not exist"):
        survey(Corner(), data, settings, run, ranks=Ranks(1, 2))
    shared = survey(Corner(), data, settings, run, ranks=Ranks(0, 2))
    assert without_time(shared) == without_time(whole)


def test_likely_moves_come_first() -> None:
    moves = RotateTranslate(2, 30, 3, 3).moves()
    fell = torch.zeros(4, 27, dtype=torch.bool)
    fell[:3, 5] = True  # three images fall to move 5,
    fell[:2, 20] = True  # two of them to move 20,
    fell[3, 11] = True  # and the fourth only to move 11
    order = likely_first(moves, fell).tolist()
    assert order[:3] == [5, 11, 20]
    assert sorted(order) == list(range(27))
    far_first = likely_first(moves, None).tolist()
    assert far_first[-1] == 13
    assert moves[far_first[0]].abs().tolist() == [2, 2, 30]


def test_blocks_of_moves_double_up_to_64() -> None:
    assert list(_blocks(300)) == [
        *((0, 1), (1, 3), (3, 7), (7, 15), (15, 31), (31, 63), (63, 127)),
        *((127, 191), (191, 255), (255, 300)),
    ]
    assert list(_blocks(3)) == [(0, 1), (1, 3)]
    assert list(_blocks(0)) == []


def test_the_reach_follows_the_size_of_the_images() -> None:
    assert [Spatial().threat(side).reach for side in (384, 224, 128, 32, 8)] == [16, 16, 16, 3, 0.75]
    assert Spatial(reach=2.0).threat(224).reach == 2
    assert len(Spatial().threat(32).moves()) == 2511
    with pytest.raises(UsageError, match="are odd"):
        Spatial(shifts=8)
    with pytest.raises(UsageError, match="more moves than none"):
        Spatial(shifts=1, turns=1)


# ------------------------------------------------------------------- transfer


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Small models of two input sizes."""
    folder, options = tmp_path_factory.mktemp("models"), {"depth": 1, "embed_dim": 32, "num_heads": 2}
    for seed, size in ((0, 8), (1, 8), (2, 16)):
        shape = {"num_classes": 10, "image_size": size, "patch_size": size // 4}
        model = models.load("timm:test_vit", **shape, options=options, seed=seed)  # type: ignore[arg-type]
        models.save(model, folder / f"m{seed}.safetensors")
    return sorted(folder.glob("*.safetensors"))


def test_transfer_crafts_once_per_source_and_asks_all(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    first, second = (models.load(path) for path in three[:2])
    labels = first(pixels / 255).argmax(1).detach()
    split = Split("test", tuple(map(str, range(12))), labels, InMemory(pixels))
    data = DataSet("noise", tuple(map(str, range(10))), Squash(8), None, None, split)
    settings = Transfer(sources=(str(three[1]),), steps=3)
    threat = Linf(0.06)
    summary = survey(first, data, settings, claim(tmp_path / "run"), threat=threat, batch=5)
    rows = rows_of(tmp_path / "run", "transfer")

    x0, members = pixels / 255, (first, second)
    for place, source in enumerate(members):  # the attack, step by step
        x = x0.clone()
        for _ in range(3):
            x.requires_grad_()
            loss = nn.functional.cross_entropy(source(x), labels, reduction="sum")
            (grad,) = torch.autograd.grad(loss, x)
            x = (x.detach() + 0.02 * grad.sign()).clamp(0, 1)
        asked = torch.stack([target(x).argmax(1) for target in members], 1)
        assert [row[place] for row in rows["predictions"]] == asked.tolist()  # type: ignore[index]
    told = [row[1][0] == label for row, label in zip(rows["predictions"], labels.tolist(), strict=True)]  # type: ignore[index]
    assert rows["correct"] == list(map(float, told))
    assert summary["clean"]["accuracy"] == 1  # type: ignore[index]
    table = summary["exhibits"][0]  # type: ignore[index]
    assert table["columns"] == ["crafted on", "this model", "m1"]
    own = values(summary)["under its own attack"]
    assert table["rows"][1][1] == f"{100 * own:.1f} ({100 * own - 100:+.1f})"
    assert set(summary["conventions"]["sources"]) == {"m1"}  # type: ignore[index]
    assert Transfer(sources=("timm:a@x/w.pth", "runs/b")).names == ["this model", "timm:a", "b"]
    assert Transfer(sources=("timm:a@v.pth", "timm:a@w.pth")).names == ["this model", "timm:a@v.pth", "timm:a@w.pth"]


def test_a_model_of_another_size_sees_the_images_resized(tmp_path: Path, three: list[Path]) -> None:
    data = grays([10, 60, 110, 160, 210], size=8)
    settings = Transfer(sources=tuple(map(str, three[1:])))
    summary = survey(models.load(three[0]), data, settings, claim(tmp_path / "run"), threat=Linf(0.1))
    heat = summary["exhibits"][1]  # type: ignore[index]
    assert heat["rows"] == ["this model", "m1", "m2"]
    assert len(values(summary)) == 4
    again = survey(models.load(three[0]), data, settings, claim(tmp_path / "again"), threat=Linf(0.1), batch=2)
    assert without_time(again) == without_time(summary)


class Masked(nn.Module):
    """A model whose gradient is zero everywhere, with the answers of another."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z_BK: Tensor = self.model(x)
        return z_BK.detach() + 0 * x.sum()


def test_images_that_fool_a_model_more_often_than_its_own_attack_are_flagged(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    first = models.load(three[0])
    labels = first(pixels / 255).argmax(1).detach()
    split = Split("test", tuple(map(str, range(12))), labels, InMemory(pixels))
    data = DataSet("noise", tuple(map(str, range(10))), Squash(8), None, None, split)
    settings, threat = Transfer(sources=tuple(map(str, three[:2]))), Linf(0.1)
    summary = survey(Masked(first), data, settings, claim(tmp_path / "masked"), threat=threat)
    rows = rows_of(tmp_path / "masked", "transfer")
    from_others = [
        [row[source][0] == label for source in (1, 2)]  # type: ignore[index]
        for row, label in zip(rows["predictions"], labels.tolist(), strict=True)
    ]
    assert rows["correct"] == [float(all(both)) for both in from_others]  # whichever of them it was crafted on
    assert 1 in {sum(both) for both in from_others}
    assert values(summary)["under its own attack"] == 1
    assert values(summary)["crafted on m0"] < 1
    flags = {flag["code"]: flag for flag in summary["flags"]}  # type: ignore[attr-defined]
    assert flags["transfer-stronger"]["evidence"] == {"own": 12, "of": 12}
    assert "images crafted on m0, m1 fool the model more often" in flags["transfer-stronger"]["sentence"]
    other = survey(first, data, replace(settings, sources=(str(three[1]),)), claim(tmp_path / "open"), threat=threat)
    assert values(other)["under its own attack"] < values(other)["crafted on m1"]
    assert "transfer-stronger" not in [flag["code"] for flag in other["flags"]]  # type: ignore[attr-defined]


class Stripes(nn.Module):
    """Striped or not: what a resizing to half the size takes away."""

    def forward(self, x: Tensor) -> Tensor:
        striped_B = (x[..., ::2] - x[..., 1::2]).mean((1, 2, 3)) - 0.25
        return nn.functional.pad(torch.stack([-striped_B, striped_B], 1), (0, 8), value=-10.0)


def test_a_source_of_smaller_images_costs_no_detail(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.zeros(6, 3, 16, 16, dtype=torch.uint8)
    pixels[:, :, :, ::2] = 255
    split = Split("test", tuple(map(str, range(6))), torch.ones(6, dtype=torch.int64), InMemory(pixels))
    data = DataSet("stripes", tuple(map(str, range(10))), Squash(16), None, None, split)
    settings = Transfer(sources=(str(three[0]),))
    summary = survey(Stripes(), data, settings, claim(tmp_path / "run"), threat=Linf(1e-3))
    assert summary["clean"]["accuracy"] == 1  # type: ignore[index]
    assert values(summary)["crafted on m0"] == values(summary)["under its own attack"] == 1
    assert summary["flags"] == []
    # the attack sees through the resizing: with a wide radius it fools the source that it was crafted on
    answers = [row[1] for row in rows_of(tmp_path / "run", "transfer")["clean_predictions"]]  # type: ignore[index]
    known = replace(data, test=replace(split, labels=torch.tensor(answers)))
    survey(Stripes(), known, settings, claim(tmp_path / "wide"), threat=Linf(0.2))
    found = rows_of(tmp_path / "wide", "transfer")["predictions"]
    assert all(row[1][1] != answer for row, answer in zip(found, answers, strict=True))  # type: ignore[index]


def test_networks_of_any_size_see_the_images_as_they_are(tmp_path: Path) -> None:
    first, second = (models.load("timm:test_resnet", num_classes=10, seed=seed) for seed in (0, 1))
    models.save(second, tmp_path / "second.safetensors")
    assert (first.fixed_size, models.load("timm:test_vit", image_size=32).fixed_size) == (None, 32)
    shapes = set()
    first.register_forward_pre_hook(lambda module, args: shapes.add(tuple(args[0].shape[2:])))
    data = grays([10, 60, 110, 160], size=24)
    survey(
        first,
        data,
        Transfer(sources=(str(tmp_path / "second.safetensors"),)),
        claim(tmp_path / "run"),
        threat=Linf(0.1),
    )
    assert shapes == {(24, 24)}
    asked = torch.stack([model(data.test.images(torch.arange(4))).argmax(1) for model in (first, second)], 1)
    assert rows_of(tmp_path / "run", "transfer")["clean_predictions"] == asked.tolist()


def test_transfer_says_what_it_needs(tmp_path: Path, three: list[Path]) -> None:
    data, model = grays([10, 200], size=8), models.load(three[0])
    with pytest.raises(UsageError, match="needs a threat"):
        survey(model, data, Transfer(sources=(str(three[1]),)), claim(tmp_path / "run"))
    with pytest.raises(UsageError, match="needs other models to craft on"):
        Transfer().refuse(model, data, "test")
    with pytest.raises(UsageError, match="no such file or folder"):
        Transfer(sources=("nowhere",)).refuse(model, data, "test")
    with pytest.raises(UsageError, match="has 10 classes and the model 3"):
        Transfer(sources=(str(three[1]),)).refuse(models.load(three[0], num_classes=3), data, "test")
    with pytest.raises(UsageError, match="names a model twice"):
        Transfer(sources=("a", "a"))
    with pytest.raises(UsageError, match="Transfer.pace must be positive, got 0"):
        Transfer(pace=0)
