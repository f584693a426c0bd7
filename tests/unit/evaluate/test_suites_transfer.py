"""Images crafted on one model and evaluated on others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from suite_parts import claim, codes, gray_images, rows_of, values, without_time  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import models
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate.suites import Transfer
from vitadel.threats import Linf


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Small models of two input sizes."""
    folder, options = tmp_path_factory.mktemp("models"), {"depth": 1, "embed_dim": 32, "num_heads": 2}
    for seed, size in ((0, 8), (1, 8), (2, 16)):
        shape = {"num_classes": 10, "image_size": size, "patch_size": size // 4}
        model = models.load("timm:test_vit", **shape, options=options, seed=seed)  # type: ignore[arg-type]
        models.save(model, folder / f"m{seed}.safetensors")
    return sorted(folder.glob("*.safetensors"))


def test_transfer_crafts_once_per_source_and_evaluates_all(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    first, second = (models.load(path) for path in three[:2])
    labels = first(pixels / 255).argmax(1).detach()
    split = Split("test", tuple(map(str, range(12))), labels, InMemory(pixels))
    data = DataSet("noise", tuple(map(str, range(10))), Squash(8), None, None, split)
    settings = Transfer(sources=(str(three[1]),), steps=3)
    threat = Linf(0.06)
    summary = evaluate_one(first, data, settings, claim(tmp_path / "run"), threat=threat, batch=5)
    rows = rows_of(tmp_path / "run", "transfer")

    x0, members = pixels / 255, (first, second)
    for place, source in enumerate(members):  # the attack, step by step
        x = x0.clone()
        for _ in range(3):
            x.requires_grad_()
            loss = nn.functional.cross_entropy(source(x), labels, reduction="sum")
            (grad,) = torch.autograd.grad(loss, x)
            x = (x.detach() + 0.02 * grad.sign()).clamp(0, 1)
        predictions = torch.stack([target(x).argmax(1) for target in members], 1)
        assert [row[place] for row in rows["predictions"]] == predictions.tolist()
    correct = [row[1][0] == label for row, label in zip(rows["predictions"], labels.tolist(), strict=True)]
    assert rows["correct"] == list(map(float, correct))
    assert summary["clean"]["accuracy"] == 1
    table = summary["exhibits"][0]
    assert table["columns"] == ["crafted on", "this model", "m1"]
    own = values(summary)["under its own attack"]
    assert table["rows"][1][1] == f"{100 * own:.1f} ({100 * own - 100:+.1f})"
    assert set(summary["conventions"]["sources"]) == {"m1"}
    assert Transfer(sources=("timm:a@x/w.pth", "runs/b")).names == ["this model", "timm:a", "b"]
    assert Transfer(sources=("timm:a@v.pth", "timm:a@w.pth")).names == ["this model", "timm:a@v.pth", "timm:a@w.pth"]


def test_models_of_another_size_get_resized_images(tmp_path: Path, three: list[Path]) -> None:
    data = gray_images([10, 60, 110, 160, 210], size=8)
    settings = Transfer(sources=tuple(map(str, three[1:])))
    summary = evaluate_one(models.load(three[0]), data, settings, claim(tmp_path / "run"), threat=Linf(0.1))
    heat = summary["exhibits"][1]
    assert heat["rows"] == ["this model", "m1", "m2"]
    assert len(values(summary)) == 4
    again = evaluate_one(models.load(three[0]), data, settings, claim(tmp_path / "again"), threat=Linf(0.1), batch=2)
    assert without_time(again) == without_time(summary)


class Masked(nn.Module):
    """A model whose gradient is zero everywhere, with the predictions of another."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z_BK: Tensor = self.model(x)
        return z_BK.detach() + 0 * x.sum()


def test_transfer_stronger_than_the_own_attack_is_flagged(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    first = models.load(three[0])
    labels = first(pixels / 255).argmax(1).detach()
    split = Split("test", tuple(map(str, range(12))), labels, InMemory(pixels))
    data = DataSet("noise", tuple(map(str, range(10))), Squash(8), None, None, split)
    settings, threat = Transfer(sources=tuple(map(str, three[:2]))), Linf(0.1)
    summary = evaluate_one(Masked(first), data, settings, claim(tmp_path / "masked"), threat=threat)
    rows = rows_of(tmp_path / "masked", "transfer")
    from_others = [
        [row[source][0] == label for source in (1, 2)]
        for row, label in zip(rows["predictions"], labels.tolist(), strict=True)
    ]
    assert rows["correct"] == [float(all(both)) for both in from_others]  # whichever of them it was crafted on
    assert 1 in {sum(both) for both in from_others}
    assert values(summary)["under its own attack"] == 1
    assert values(summary)["crafted on m0"] < 1
    flags = {flag["code"]: flag for flag in summary["flags"]}
    assert flags["transfer-stronger"]["evidence"] == {"own": 12, "of": 12}
    assert "images crafted on m0, m1 fool the model more often" in flags["transfer-stronger"]["sentence"]
    other = evaluate_one(
        first, data, replace(settings, sources=(str(three[1]),)), claim(tmp_path / "open"), threat=threat
    )
    assert values(other)["under its own attack"] < values(other)["crafted on m1"]
    assert "transfer-stronger" not in codes(other)


class Stripes(nn.Module):
    """Striped or not: what a resizing to half the size takes away."""

    def forward(self, x: Tensor) -> Tensor:
        striped_B = (x[..., ::2] - x[..., 1::2]).mean((1, 2, 3)) - 0.25
        return nn.functional.pad(torch.stack([-striped_B, striped_B], 1), (0, 8), value=-10.0)


def test_a_source_of_smaller_images_keeps_details(tmp_path: Path, three: list[Path]) -> None:
    pixels = torch.zeros(6, 3, 16, 16, dtype=torch.uint8)
    pixels[:, :, :, ::2] = 255
    split = Split("test", tuple(map(str, range(6))), torch.ones(6, dtype=torch.int64), InMemory(pixels))
    data = DataSet("stripes", tuple(map(str, range(10))), Squash(16), None, None, split)
    settings = Transfer(sources=(str(three[0]),))
    summary = evaluate_one(Stripes(), data, settings, claim(tmp_path / "run"), threat=Linf(1e-3))
    assert summary["clean"]["accuracy"] == 1
    assert values(summary)["crafted on m0"] == values(summary)["under its own attack"] == 1
    assert summary["flags"] == []
    # the attack sees through the resizing: with a wide radius it fools the source that it was crafted on
    predictions = [row[1] for row in rows_of(tmp_path / "run", "transfer")["clean_predictions"]]
    known = replace(data, test=replace(split, labels=torch.tensor(predictions)))
    evaluate_one(Stripes(), known, settings, claim(tmp_path / "wide"), threat=Linf(0.2))
    result = rows_of(tmp_path / "wide", "transfer")["predictions"]
    assert all(row[1][1] != prediction for row, prediction in zip(result, predictions, strict=True))


def test_networks_of_any_size_get_the_images_unresized(tmp_path: Path) -> None:
    first, second = (models.load("timm:test_resnet", num_classes=10, seed=seed) for seed in (0, 1))
    models.save(second, tmp_path / "second.safetensors")
    assert (first.fixed_size, models.load("timm:test_vit", image_size=32).fixed_size) == (None, 32)
    shapes = set()
    first.register_forward_pre_hook(lambda module, args: shapes.add(tuple(args[0].shape[2:])))
    data = gray_images([10, 60, 110, 160], size=24)
    evaluate_one(
        first,
        data,
        Transfer(sources=(str(tmp_path / "second.safetensors"),)),
        claim(tmp_path / "run"),
        threat=Linf(0.1),
    )
    assert shapes == {(24, 24)}
    predictions = torch.stack([model(data.test.images(torch.arange(4))).argmax(1) for model in (first, second)], 1)
    assert rows_of(tmp_path / "run", "transfer")["clean_predictions"] == predictions.tolist()


def test_missing_requirements_are_named(tmp_path: Path, three: list[Path]) -> None:
    data, model = gray_images([10, 200], size=8), models.load(three[0])
    with pytest.raises(UsageError, match="needs a threat"):
        evaluate_one(model, data, Transfer(sources=(str(three[1]),)), claim(tmp_path / "run"))
    with pytest.raises(UsageError, match="needs other models to craft on"):
        Transfer().check(model, data, "test")
    with pytest.raises(UsageError, match="no such file or folder"):
        Transfer(sources=("nowhere",)).check(model, data, "test")
    with pytest.raises(UsageError, match="has 10 classes and the model 3"):
        Transfer(sources=(str(three[1]),)).check(models.load(three[0], num_classes=3), data, "test")
    with pytest.raises(UsageError, match="names a model twice"):
        Transfer(sources=("a", "a"))
    with pytest.raises(UsageError, match="Transfer.pace must be positive, got 0"):
        Transfer(pace=0)
