"""Restricted attention: masks with known entries, accuracies against slow attention, refusals, resuming.

Shape letters: N tokens, P patches.
"""

import copy
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import study_models  # type: ignore[import-not-found]
import torch
from study_models import noisy_weights, studied_in
from torch import Tensor, nn

from vitadel.analyze import RestrictedAttention, study
from vitadel.analyze.restricted_attention import Shuffle, near_mask, random_order, shuffle_mask
from vitadel.api.analyze import as_study
from vitadel.core.errors import UsageError
from vitadel.core.rng import fold_seed
from vitadel.models import Model, Option, load, set_attention_scales, tora, wrap
from vitadel.runs import ResultFolder

DEPTH, SIDE = 3, 4
CLASSES = 300  # so many that a small change of the logits changes the prediction
PREFIX = {"vit": 1, "registers": 3, "pooled": 0, "distilled": 2, "cait": 0}


def tiny(family: str) -> Model:
    """A float64 model whose attention matters."""
    depth = {} if family in ("xcit", "swin", "levit", "resnet") else {"depth": DEPTH}
    return unbiased(study_models.tiny(family, num_classes=CLASSES, **depth).double())


def unbiased(model: Model) -> Model:
    """Without a bias toward one class, which would hide changes."""
    for weight in noisy_weights(model, 0.3).parameters():
        if weight.shape == (CLASSES,):
            nn.init.zeros_(weight)
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def studied(
    model: nn.Module, x: Tensor, y: Tensor, settings: RestrictedAttention | None = None, **more: Any
) -> dict[str, Any]:
    return study(model, x, y, settings or RestrictedAttention(), **more)


def apart(one: int, other: int) -> int:
    (row, column), (row_, column_) = divmod(one, SIDE), divmod(other, SIDE)
    return max(abs(row - row_), abs(column - column_))


def slowly(model: Model, x: Tensor, allowed: Callable[[int, int, int], bool], prefix: int) -> Tensor:
    """Predictions when block b lets patch i attend to patch j if `allowed(b, i, j)`: other scores get minus infinity.

    CaiT mixes its heads after the softmax, [B, N, N, H]; there they get zero once more.
    """

    def forbid(block: int) -> Callable[[Tensor], Tensor]:
        def edit(scores: Tensor) -> Tensor:
            scores = scores.clone()
            for i in range(SIDE * SIDE):
                for j in range(SIDE * SIDE):
                    if not allowed(block, i, j):
                        scores[:, :, prefix + i, prefix + j] = -torch.inf
            return scores

        return edit

    def unmix(block: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], mixed: Tensor) -> Tensor:
            mixed = mixed.clone()
            for i in range(SIDE * SIDE):
                for j in range(SIDE * SIDE):
                    if not allowed(block, i, j):
                        mixed[:, prefix + i, prefix + j] = 0
            return mixed

        return hook

    modules = dict(model.net.named_modules())
    with torch.no_grad(), ExitStack() as stack:
        for block in range(DEPTH):
            stack.enter_context(model.taps.edit(f"blocks.{block}.attn.logits", forbid(block)))
            if (mixing := modules.get(f"blocks.{block}.attn.proj_w")) is not None:
                stack.callback(mixing.register_forward_hook(unmix(block)).remove)
        return model(x).argmax(1)


def test_masks_allow_the_pairs_within_the_distance() -> None:
    for grid, distance in (((4, 4), 0), ((4, 4), 1), ((3, 5), 2), ((3, 5), 4), ((1, 6), 3)):
        height, width = grid
        mask = near_mask(grid, distance)
        for i in range(height * width):
            for j in range(height * width):
                rows, columns = abs(i // width - j // width), abs(i % width - j % width)
                assert bool(mask[i, j]) == (rows <= distance and columns <= distance)


@pytest.mark.parametrize("distance", [0, 1, 3, 5, 8, 12, 23])
def test_the_share_of_pairs_is_exact(distance: int) -> None:
    g, d = 24, distance
    known = ((g * (2 * d + 1) - d * (d + 1)) / g**2) ** 2
    assert float(near_mask((g, g), d).double().mean()) == pytest.approx(known, rel=1e-12)
    assert known == pytest.approx({0: 0.0017, 1: 0.015, 3: 0.073, 5: 0.165, 8: 0.340, 12: 0.594, 23: 1}[d], abs=5e-4)


@pytest.mark.parametrize("shuffle", Shuffle)
def test_random_masks_have_as_many_pairs_and_are_nested(shuffle: Shuffle) -> None:
    order = random_order(36, shuffle, 5)
    masks = [near_mask((6, 6), d) for d in range(6)]
    shuffled = [shuffle_mask(mask, order) for mask in masks]
    for mask, other in zip(masks, shuffled, strict=True):
        assert int(other.sum()) == int(mask.sum())
        if shuffle is Shuffle.ROWS:
            assert torch.equal(other.sum(1), mask.sum(1))
    for smaller, larger in itertools.pairwise(shuffled):
        assert bool((larger | ~smaller).all())  # what may be seen at one distance may be at the next
    assert not torch.equal(shuffled[1], masks[1])
    assert shuffle is Shuffle.ROWS or not torch.equal(shuffled[1].sum(1), masks[1].sum(1))
    assert torch.equal(random_order(36, shuffle, 5), order)
    assert not torch.equal(random_order(36, shuffle, 6), order)
    # near and far pairs have the same chance
    often = torch.stack([shuffle_mask(masks[1], random_order(36, shuffle, seed)) for seed in range(1000)])
    share = often[:, 14].double().mean(0)
    chance = float(masks[1][14].double().mean()) if shuffle is Shuffle.ROWS else float(masks[1].double().mean())
    assert bool(((share - chance).abs() < 5 * (chance * (1 - chance) / 1000) ** 0.5).all())


@pytest.mark.parametrize("family", PREFIX)
@pytest.mark.parametrize("distance", [0, 1, 2])
def test_accuracy_matches_slow_attention_within_the_distance(family: str, distance: int, x: Tensor) -> None:
    model = tiny(family)
    y = slowly(model, x, lambda block, i, j: apart(i, j) <= distance, PREFIX[family])
    result = studied(model, x, y, batch_size=5)
    near = {one["distance"]: one["accuracy"] for one in result["near"]}
    assert sorted(near) == [0, 1, 2, 3]
    assert near[distance] == 1  # the labels are the predictions of the slow computation
    assert result["clean"]["accuracy"] < 1
    # at the largest distance nothing is forbidden
    assert result["near"][-1]["correct"] == result["clean"]["correct"]
    assert result["near"][-1]["density"] == 1
    assert result["random"][-1]["correct"] == result["clean"]["correct"]


@pytest.mark.parametrize("shuffle", Shuffle)
def test_accuracy_matches_slow_attention_to_random_patches(shuffle: Shuffle, x: Tensor) -> None:
    model = tiny("vit")
    order = random_order(16, shuffle, fold_seed(4, 1))
    mask = shuffle_mask(near_mask((4, 4), 1), order)
    y = slowly(model, x, lambda block, i, j: bool(mask[i, j]), 1)
    result = studied(model, x, y, RestrictedAttention(distances=(1,), shuffle=shuffle, draws=2), seed=4)
    assert [one["accuracy"] for one in result["random"] if one["draw"] == 1] == [1]
    assert result["near"][0]["accuracy"] < 1
    assert result["random"][0]["accuracy"] < 1
    line = result["exhibits"][0]["lines"][1]
    actual = [one["accuracy"] for one in result["random"]]
    assert line["y"] == [pytest.approx(sum(actual) / 2)]
    assert (line["low"], line["high"]) == ([min(actual)], [max(actual)])


@pytest.mark.parametrize("family", ["vit", "registers", "distilled"])
@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize(("end", "count"), [("first", 1), ("first", 2), ("last", 1), ("last", 2), ("last", 3)])
def test_accuracy_matches_slow_attention_to_the_class_token(
    family: str, itself: bool, end: str, count: int, x: Tensor
) -> None:
    model = tiny(family)
    blocks = range(count) if end == "first" else range(DEPTH - count, DEPTH)
    y = slowly(model, x, lambda block, i, j: block not in blocks or (itself and i == j), PREFIX[family])
    result = studied(model, x, y, RestrictedAttention(itself=itself, draws=0, distances=(3,)))
    actual = {(one["end"], one["blocks"]): one["accuracy"] for one in result["class_only"]}
    assert actual[end, count] == 1
    assert sorted(actual) == [(where, k) for where in ("first", "last") for k in (1, 2, 3)]
    assert actual["first", 3] == actual["last", 3]
    assert result["random"] == []


def test_a_query_without_allowed_keys_attends_to_itself(x: Tensor) -> None:
    model = tiny("pooled")
    order = random_order(16, Shuffle.ENTRIES, fold_seed(0, 0))
    mask = shuffle_mask(near_mask((4, 4), 0), order)
    lonely = [i for i in range(16) if not bool(mask[i].any())]
    assert lonely
    y = slowly(model, x, lambda block, i, j: bool(mask[i, j]) or (i in lonely and i == j), 0)
    result = studied(model, x, y)
    assert result["random"][0]["accuracy"] == 1
    assert result["random"][0]["opened"] == len(lonely)
    assert f"Up to {len(lonely)} patches to which a random mask left nothing" in result["exhibits"][1]["caption"]
    absent = "This model has no class token in these blocks"
    assert result["absent"].startswith(absent)
    assert absent in result["summary"]
    assert absent in result["exhibits"][0]["caption"]
    assert result["class_only"] == []
    assert [one["kind"] for one in result["exhibits"]] == ["lines", "table"]
    rows = studied(model, x, y, RestrictedAttention(shuffle=Shuffle.ROWS))
    assert all(one["opened"] == 0 for one in rows["random"])
    # with a class token there is always a key
    assert all(one["opened"] == 0 for one in studied(tiny("vit"), x, y)["random"])


def test_blocks_before_a_restriction_run_once(x: Tensor) -> None:
    result = studied(tiny("vit"), x, torch.arange(12) % 7)
    # unrestricted, four near, four random, and the first and the last one to three blocks
    shared = {plan[: at + 1] for plan in _plans() for at in range(3)}
    assert result["cost"]["layers_run"] == len(shared)
    assert result["cost"]["forwards_one_by_one"] == len(_plans())
    assert result["cost"]["forwards"] < len(_plans())


def _plans() -> set[tuple[int, ...]]:
    everywhere = {(mask,) * 3 for mask in range(1, 9)}
    return {(0, 0, 0), *everywhere, (9, 0, 0), (9, 9, 0), (9, 9, 9), (0, 9, 9), (0, 0, 9)}


def test_results_depend_on_the_seed_and_not_on_the_batch(x: Tensor) -> None:
    model, y = tiny("vit"), torch.arange(12) % 7
    whole = studied(model, x, y, RestrictedAttention(draws=2))
    for batch in (1, 7):
        other = studied(model, x, y, RestrictedAttention(draws=2), batch_size=batch)
        assert all(other[key] == whole[key] for key in ("clean", "near", "random", "class_only", "summary"))
    elsewhere = studied(model, x, y, RestrictedAttention(draws=2), seed=9)
    assert elsewhere["near"] == whole["near"]
    assert elsewhere["random"] != whole["random"]


def test_an_interrupted_study_resumes(x: Tensor, tmp_path: Path) -> None:
    model, y = tiny("vit"), torch.arange(12) % 7
    known = studied(model, x, y)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, RestrictedAttention(), batch_size=5, stop_after=0.5)
    assert ResultFolder(tmp_path).read("restrictions")["index"] == [0, 1, 2, 3, 4]
    images: list[int] = []
    model.register_forward_hook(lambda module, args, out: images.append(len(out)))
    result = studied_in(tmp_path, model, x, y, RestrictedAttention())
    assert set(images) == {7}
    assert all(result[key] == known[key] for key in ("clean", "near", "random", "class_only", "summary"))


def test_the_model_is_left_unchanged(x: Tensor) -> None:
    model = tiny("cait").train()
    before, twin = {key: value.clone() for key, value in model.state_dict().items()}, copy.deepcopy(model)
    studied(model, x, torch.arange(12) % 7)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_models_with_adapters_or_attention_scales(x: Tensor) -> None:
    scaled = tiny("vit")
    set_attention_scales(scaled, [0.5, 1.0, 2.0])
    base = load("timm:vit_tiny_patch16_224", num_classes=CLASSES, image_size=32, patch_size=8, options={"depth": DEPTH})
    for model in (scaled, unbiased(tora(base)).double()):
        y = slowly(model, x, lambda block, i, j: apart(i, j) <= 1, 1)
        result = studied(model, x, y, RestrictedAttention(distances=(1,)))
        assert result["near"][0]["accuracy"] == 1


def test_settings_and_exhibits(x: Tensor) -> None:
    settings = RestrictedAttention(distances=(1, 0), shuffle=Shuffle.ROWS, draws=3, ends=(2,), itself=False)
    assert as_study("restricted-attention:distances=1+0,shuffle=rows,draws=3,ends=2,itself=false") == settings
    result = studied(tiny("vit"), x, torch.arange(12) % 7, settings)
    lines, table, ends, end_table = result["exhibits"]
    assert lines["lines"][0]["x"] == [1, 0]
    assert lines["lines"][1]["dashed"] is True
    assert "every row of it on its own in a random order; mean and range over 3 orders" in lines["caption"]
    assert [row[:2] for row in table["rows"]] == [[1, result["near"][0]["density"]], [0, 1 / 16]]
    assert "not even themselves" in ends["caption"]
    assert end_table["rows"] == [[2, *(one["accuracy"] for one in result["class_only"])]]
    assert result["grid"] == [4, 4]


@pytest.mark.parametrize(
    ("patch", "usual"),
    [(1, (0, 1, 2, 3, 4, 6, 8, 12, 15)), (8, (0, 1)), (16, (0,))],
)
def test_default_distances_cover_the_grid(patch: int, usual: tuple[int, ...]) -> None:
    options: dict[str, Option] = {"depth": 1, "embed_dim": 24, "num_heads": 2}
    model = load("timm:vit_tiny_patch16_224", num_classes=3, image_size=16, patch_size=patch, options=options)
    result = studied(model, torch.rand(1, 3, 16, 16), torch.zeros(1).long(), RestrictedAttention(draws=0))
    assert tuple(one["distance"] for one in result["near"]) == usual


def test_unsupported_models_and_data_are_refused(x: Tensor) -> None:
    y = torch.arange(12) % 7
    for family, settings, message in (
        ("xcit", RestrictedAttention(), "Xcit cannot be restricted by distance: attention relates channels"),
        (
            "swin",
            RestrictedAttention(),
            "SwinTransformer cannot be restricted by distance: attention stays in windows already",
        ),
        ("levit", RestrictedAttention(), "patches become fewer from stage to stage"),
        (
            "resnet",
            RestrictedAttention(),
            "ResNet cannot be restricted by distance: there is no attention between patches",
        ),
        (
            "vit",
            RestrictedAttention(distances=(1, 4)),
            r"has 4 x 4 patches, so that none are farther apart than 3; .* asks for 4",
        ),
        ("vit", RestrictedAttention(ends=(4,)), r"has 3 such blocks; RestrictedAttention\.ends asks for 4"),
        ("cait", RestrictedAttention(ends=(1,)), "has no class token in these blocks"),
        ("pooled", RestrictedAttention(ends=(1,)), "has no class token in these blocks"),
    ):
        with pytest.raises(UsageError, match=message):
            settings.check(tiny(family))
        with pytest.raises(UsageError, match=message):
            studied(tiny(family), x, y, settings)
    with pytest.raises(UsageError, match="Flatten has no layers Vitadel supports"):
        studied(wrap(nn.Flatten(), mean=(0.0,) * 3, std=(1.0,) * 3), x, y)
    for values, message in (
        ({"distances": (-1,)}, r"RestrictedAttention\.distances\[0\] must not be negative, got -1"),
        ({"draws": -1}, r"RestrictedAttention\.draws must not be negative"),
        ({"ends": (0,)}, r"RestrictedAttention\.ends\[0\] must be at least 1, got 0"),
    ):
        with pytest.raises(UsageError, match=message):
            RestrictedAttention(**values)
