"""The study of lesions: known results, random draws, statistics, every family, resuming, refusals."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import study_models  # type: ignore[import-not-found]
import torch
from study_models import noisy_weights, studied_in
from torch import Tensor, nn

from vitadel.analyze import Lesion, study
from vitadel.analyze.lesion import LesionKind
from vitadel.api.analyze import as_study
from vitadel.core.errors import UsageError
from vitadel.models import Model, wrap
from vitadel.runs import ResultFolder

DEPTHS: dict[str, dict[str, Any]] = {"vit": {"depth": 5}, "cait": {"depth": 4}, "xcit": {"depth": 4}}


def tiny(family: str) -> Model:
    """A float64 model whose every weight matters."""
    model = study_models.tiny(family, **DEPTHS.get(family, {}))
    return noisy_weights(model.double(), 0.1)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def predictions(model: Model, x: Tensor, *skipped: str) -> Tensor:
    with torch.no_grad():
        if not skipped:
            return model(x).argmax(1)
        with model.taps.skip(*skipped):
            return model(x).argmax(1)


def studied(model: nn.Module, x: Tensor, y: Tensor, settings: Lesion | None = None, **more: Any) -> dict[str, Any]:
    return study(model, x, y, settings or Lesion(draws=3), **more)


def single(result: dict[str, Any], kind: str) -> dict[str, float]:
    return {one["layer"]: one["accuracy"] for one in result["single"] if one["kind"] == kind}


def test_accuracies_match_models_with_skipped_parts(x: Tensor) -> None:
    model = tiny("vit")
    y = predictions(model, x)
    result = studied(model, x, y, Lesion(draws=4), batch_size=3)
    assert result["clean"]["accuracy"] == 1
    for kind, ending in (("block", ""), ("attention", ".attn"), ("mlp", ".mlp")):
        known = {
            f"blocks.{i}": float((predictions(model, x, f"blocks.{i}{ending}") == y).double().mean()) for i in range(5)
        }
        assert single(result, kind) == known
    assert min(single(result, "block").values()) < 1
    for one in result["random"]:
        ending = {"block": "", "attention": ".attn", "mlp": ".mlp"}[one["kind"]]
        for layers, actual in zip(one["layers"], one["accuracies"], strict=True):
            skipped = [f"{name}{ending}" for name in layers]
            assert actual == float((predictions(model, x, *skipped) == y).double().mean())


def test_removing_an_identity_block_changes_nothing(x: Tensor) -> None:
    model = tiny("vit")
    with torch.no_grad():
        for layer in (model.net.blocks[2].attn.proj, model.net.blocks[3].mlp.fc2):  # type: ignore[index, union-attr]
            layer.weight.zero_()
            layer.bias.zero_()
    y = predictions(model, x)
    result = studied(model, x, y)
    assert single(result, "attention")["blocks.2"] == 1
    assert single(result, "mlp")["blocks.3"] == 1
    assert single(result, "mlp")["blocks.2"] < 1


def test_draws_keep_the_first_block_and_are_the_same_for_all_kinds(x: Tensor) -> None:
    y = torch.arange(10) % 5
    result = studied(tiny("vit"), x, y, Lesion(draws=25))
    by_kind = {kind: [one for one in result["random"] if one["kind"] == kind] for kind in ("block", "attention", "mlp")}
    assert [one["removed"] for one in by_kind["block"]] == [2, 3, 4]
    for one in by_kind["block"]:
        assert len(one["layers"]) == 25
        for layers in one["layers"]:
            assert len(set(layers)) == one["removed"]
            assert "blocks.0" not in layers
    assert [one["layers"] for one in by_kind["mlp"]] == [one["layers"] for one in by_kind["block"]]
    # all but the first are taken in one way alone
    assert by_kind["block"][-1]["standard_error"] == 0
    assert len({tuple(layers) for layers in by_kind["block"][0]["layers"]}) > 3
    again, other = (studied(tiny("vit"), x, y, Lesion(draws=25), seed=seed) for seed in (0, 1))
    assert again["random"] == result["random"]
    assert other["random"][0]["layers"] != result["random"][0]["layers"]


def test_every_block_is_drawn_as_often_as_any_other(x: Tensor) -> None:
    settings = Lesion(kinds=(LesionKind.BLOCK,), draws=4000)
    for one in studied(tiny("vit"), x[:1], torch.zeros(1).long(), settings, seed=5)["random"]:
        share = one["removed"] / 4
        for block in range(1, 5):
            often = sum(f"blocks.{block}" in draw for draw in one["layers"]) / 4000
            assert abs(often - share) <= 5 * math.sqrt(share * (1 - share) / 4000)


def test_means_and_standard_errors(x: Tensor) -> None:
    result = studied(tiny("vit"), x, torch.arange(10) % 5, Lesion(draws=7))
    for one in result["random"]:
        actual = one["accuracies"]
        assert one["mean"] == pytest.approx(statistics.mean(actual))
        assert one["standard_error"] == pytest.approx(statistics.stdev(actual) / math.sqrt(7))
        assert (one["least"], one["greatest"]) == (min(actual), max(actual))
    curve = result["exhibits"][2]["lines"][0]
    blocks = [one for one in result["random"] if one["kind"] == "block"]
    assert curve["y"] == [one["mean"] for one in blocks]
    assert curve["low"] == [one["least"] for one in blocks]
    assert curve["high"] == [one["greatest"] for one in blocks]
    table = result["exhibits"][3]["rows"]
    assert table[0][1:] == [2, *(blocks[0][key] for key in ("mean", "standard_error", "least", "greatest"))]
    alone = studied(tiny("vit"), x, torch.arange(10) % 5, Lesion(draws=1))
    assert alone["random"][0]["standard_error"] is None
    one = studied(tiny("vit"), x, torch.arange(10) % 5, Lesion(draws=2, removed=(3,)))
    assert [shown["kind"] for shown in one["exhibits"]] == ["lines", "table", "table"]


def test_the_caption_gives_the_widest_interval_of_the_lesions(x: Tensor) -> None:
    model = tiny("vit")
    result = studied(model, x, predictions(model, x), Lesion(draws=0))
    widths = [(one["high"] - one["low"]) / 2 for one in (result["clean"], *result["single"])]
    assert max(widths) > widths[0] + 0.05  # all are right with nothing removed, and Wilson's interval is narrow there
    assert f"an interval of at most {max(widths):.3f} either way" in result["exhibits"][0]["caption"]


def test_the_cost_of_removing_single_blocks(x: Tensor) -> None:
    result = studied(tiny("vit"), x, torch.arange(10) % 5, Lesion(kinds=(LesionKind.BLOCK,), draws=0))
    assert result["cost"] == {
        "layers": 5,
        "lesions": 5,
        "layers_run": 15,
        "forwards": 3.0,
        "forwards_one_by_one": 6,
    }
    assert result["random"] == []
    assert [one["kind"] for one in result["exhibits"]] == ["lines", "table"]


@pytest.mark.parametrize(
    ("family", "blocks", "attentions", "most"),
    [
        ("vit", 5, 5, 4),
        ("cait", 6, 6, 3),
        ("xcit", 6, 6, 3),
        ("swin", 12, 12, 11),
        ("levit", 9, 9, 8),
        ("resnet", 5, 0, 4),
    ],
)
def test_every_family_can_be_studied(family: str, blocks: int, attentions: int, most: int, x: Tensor) -> None:
    model = tiny(family)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    result = studied(model.train(), x, torch.arange(10) % 5, Lesion(draws=1))
    assert len(single(result, "block")) == blocks
    assert len(single(result, "attention")) == attentions
    assert max(one["removed"] for one in result["random"]) == most
    removed = {name for one in result["random"] for layers in one["layers"] for name in layers}
    assert len(removed) == most
    assert not any(name.startswith("class_") for name in removed)
    assert model.training
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    if family in ("cait", "xcit"):
        assert "and so do class 0, class 1" in result["exhibits"][2]["caption"]


def test_blocks_counts_and_kinds_can_be_chosen(x: Tensor) -> None:
    y = torch.arange(10) % 5
    every = studied(tiny("vit"), x, y)
    chosen = studied(tiny("vit"), x, y, Lesion(kinds=(LesionKind.MLP,), blocks=(3, 1), removed=(1, 3), draws=2))
    assert single(chosen, "mlp") == {name: single(every, "mlp")[name] for name in ("blocks.3", "blocks.1")}
    assert single(chosen, "block") == {}
    assert [one["removed"] for one in chosen["random"]] == [1, 3]
    assert as_study("lesion:kinds=mlp,blocks=3+1,removed=1+3,draws=2") == Lesion(
        kinds=(LesionKind.MLP,), blocks=(3, 1), removed=(1, 3), draws=2
    )


def test_results_do_not_depend_on_the_batch(x: Tensor) -> None:
    model, y = tiny("vit"), torch.arange(10) % 5
    whole = studied(model, x, y)
    for batch in (1, 7):
        other = studied(model, x, y, batch_size=batch)
        assert all(other[key] == whole[key] for key in ("clean", "single", "random", "cost", "summary"))


def test_an_interrupted_study_resumes(x: Tensor, tmp_path: Path) -> None:
    model, y, settings = tiny("vit"), torch.arange(10) % 5, Lesion(draws=3)
    known = studied(model, x, y, settings)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, settings, batch_size=2, stop_after=0.5)
    assert ResultFolder(tmp_path).read("lesions")["index"] == [0, 1, 2, 3]
    images: list[int] = []
    model.register_forward_hook(lambda module, args, out: images.append(len(out)))
    result = studied_in(tmp_path, model, x, y, settings)
    assert set(images) == {6}
    assert all(result[key] == known[key] for key in ("clean", "single", "random", "cost", "summary"))
    assert (tmp_path / "result.json").exists()


def test_progress_ends_at_its_total(x: Tensor) -> None:
    reports: list[tuple[str, int, int]] = []
    study(
        tiny("vit"),
        x,
        torch.arange(10) % 5,
        Lesion(draws=0),
        batch_size=4,
        progress=lambda what, done, total, numbers: reports.append((what, done, total)),
    )
    assert reports[-1] == ("lesions", 160, 160)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_unsupported_models_and_data_are_refused(x: Tensor) -> None:
    y = torch.arange(10) % 5
    for model, settings, message in (
        (tiny("vit"), Lesion(blocks=(1, 5)), r"has 5 blocks, counted from 0; Lesion\.blocks asks for 5"),
        (tiny("vit"), Lesion(removed=(5,)), "4 blocks can be removed with the first one kept"),
        (
            tiny("levit"),
            Lesion(kinds=(LesionKind.BLOCK,), blocks=(2,)),
            r"blocks\.2 cannot be removed: it changes",
        ),
        (tiny("resnet"), Lesion(blocks=(2,)), r"layer2\.0 cannot be removed"),
        (tiny("resnet"), Lesion(kinds=(LesionKind.MLP,)), "ResNet has neither attention nor MLPs to remove"),
        (tiny("convnext"), Lesion(), "nothing in ConvNeXt can be removed"),
        (wrap(nn.Flatten(), mean=(0.0,) * 3, std=(1.0,) * 3), Lesion(), "Flatten has no layers Vitadel supports"),
    ):
        with pytest.raises(UsageError, match=message):
            studied(model, x, y, settings)
    with pytest.raises(UsageError, match="labels from 0 to 9. Is it the model"):
        studied(tiny("vit"), x, torch.arange(10))
    for values, message in (
        ({"kinds": ()}, r"Lesion\.kinds is empty"),
        ({"draws": -1}, r"Lesion\.draws must not be negative"),
        ({"removed": (0,)}, r"Lesion\.removed\[0\] must be at least 1, got 0"),
        ({"blocks": (-1,)}, r"Lesion\.blocks\[0\] must not be negative, got -1"),
    ):
        with pytest.raises(UsageError, match=message):
            Lesion(**values)
    broken = tiny("vit")
    with torch.no_grad():
        broken.net.head.bias.fill_(float("nan"))  # type: ignore[union-attr, operator]
    with pytest.raises(UsageError, match="NaN or infinite logits for 10 of 10"):
        studied(broken, x, y)
