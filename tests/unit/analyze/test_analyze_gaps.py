"""Gaps between scores: against float64 and numpy, at the lines, under factors."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitadel.analyze.attention_gaps import EDGES, LINES, binned_median, count_gaps, measure_gaps
from vitadel.attacks import Engine
from vitadel.evaluate.context import Context
from vitadel.evaluate.images import TensorImages
from vitadel.models import Model, load

OPTIONS = {"depth": 2, "embed_dim": 24, "num_heads": 3}


@pytest.fixture(scope="module")
def model() -> Model:
    result = load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=OPTIONS, seed=0).eval()
    with torch.no_grad():  # initial weights have gaps of nearly zero
        for name, weight in result.named_parameters():
            weight.mul_(40 if "qkv.weight" in name else 1)
    return result


@pytest.fixture(scope="module")
def images() -> TensorImages:
    x = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    return TensorImages(x, torch.zeros(10, dtype=torch.int64))


def measured(model: Model, images: TensorImages, factors: list[float] | None = None, batch_size: int = 4) -> list[dict]:  # type: ignore[type-arg]
    return measure_gaps(Context(model, images, engine=Engine(batch_size=batch_size)), "gaps", factors)


@torch.no_grad()
def exact(model: Model, images: TensorImages, factors: list[float] | None = None) -> dict[str, np.ndarray]:
    """[heads, rows] gaps, from scores recomputed in float64."""
    double = load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=OPTIONS).double().eval()
    double.load_state_dict({name: weight.double() for name, weight in model.state_dict().items()})
    with double.taps.scale(factors or 1.0), double.taps.read("blocks.*.attn.logits") as seen:
        double(images.images(torch.arange(len(images))).double())
    result = {}
    for name, scores in seen.items():
        ordered = np.sort(scores.numpy(), -1)
        result[name.removesuffix(".logits")] = (ordered[..., -1] - ordered[..., -2]).swapaxes(0, 1).reshape(3, -1)
    return result


@pytest.mark.parametrize("factors", [None, [0.01, 3.0]])
def test_counts_match_float64(model: Model, images: TensorImages, factors: list[float] | None) -> None:
    known = exact(model, images, factors)
    assert max(gap.max() for gap in known.values()) > 9.7  # else the reference lines are not tested
    for one in measured(model, images, factors):
        gap = known[one["name"]]
        for head, counted in enumerate(one["heads"]):
            counts = np.histogram(gap[head], [0, *EDGES, np.inf])[0]
            # float32 may put a gap at an edge into the next bin
            assert np.abs(np.cumsum(counts) - np.cumsum(counted["counts"])).max() <= 1
            assert counted["rows"] == sum(counted["counts"]) == gap.shape[1]
            assert counted["max"] == pytest.approx(gap[head].max(), rel=1e-4)
            assert counted["beyond"] == [int((gap[head] > line).sum()) for line in LINES.values()]
            assert counted["median"] == pytest.approx(np.median(gap[head]), rel=0.2)
        assert one["all"]["rows"] == gap.size
        assert one["all"]["counts"] == np.sum([head["counts"] for head in one["heads"]], axis=0).tolist()


def test_results_do_not_depend_on_the_batch(model: Model, images: TensorImages) -> None:
    one, other = measured(model, images, batch_size=3), measured(model, images, batch_size=10)
    for a, b in zip(one, other, strict=True):
        assert a["all"]["beyond"] == b["all"]["beyond"]
        assert a["all"]["max"] == pytest.approx(b["all"]["max"], rel=1e-5)
        moved = np.abs(np.cumsum(a["all"]["counts"]) - np.cumsum(b["all"]["counts"])).max()
        assert moved <= 1


def test_the_model_is_left_unchanged(model: Model, images: TensorImages) -> None:
    x = images.images(torch.arange(10))
    before = model(x)
    measured(model, images, [0.1, 0.1])
    assert torch.equal(model(x), before)


def planted(values: list[float]) -> Tensor:
    """[1, 1, rows, 3] scores with these gaps between the first two."""
    return torch.tensor([[[[value, 0.0, -1.0] for value in values]]], dtype=torch.float64)


def test_reference_lines_are_the_limits_of_the_formats() -> None:
    normal, subnormal = torch.finfo(torch.float16).tiny, torch.finfo(torch.float16).smallest_normal * 2**-10
    assert LINES["float16, normal"] == pytest.approx(-math.log(normal))
    assert LINES["float16, subnormal"] == pytest.approx(-math.log(subnormal))
    assert LINES["float32 and bfloat16, normal"] == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert LINES["float32 and bfloat16, normal"] == pytest.approx(-math.log(torch.finfo(torch.bfloat16).tiny))
    assert LINES["float32, subnormal"] == pytest.approx(149 * math.log(2))
    assert [round(line, 1) for line in LINES.values()] == [9.7, 16.6, 87.3, 103.3]


def test_shares_beyond_the_reference_lines() -> None:
    values = [line * side for line in LINES.values() for side in (1 - 1e-9, 1 + 1e-9)]
    result = count_gaps(planted(values))
    assert result.beyond_HL.tolist() == [[7, 5, 3, 1]]


def test_ties_masks_and_single_scores() -> None:
    tied = count_gaps(planted([0.0, 0.0]))
    assert tied.bins_HC[0, 0] == 2
    assert tied.largest_H.tolist() == [0.0]
    masked = count_gaps(torch.tensor([[[[1.0, -torch.inf, -torch.inf]]]]))
    assert masked.beyond_HL.tolist() == [[1, 1, 1, 1]]
    assert math.isfinite(masked.largest_H.item())
    lone = count_gaps(torch.ones(5, 2, 7, 1))
    assert lone.bins_HC.sum() == 0
    assert binned_median(lone.bins_HC[0].tolist(), 0.0) == 0.0


def test_the_outer_bins_hold_values_outside_the_range() -> None:
    result = count_gaps(planted([1e-9, 1e9]))
    assert result.bins_HC[0, [0, -1]].tolist() == [1, 1]
    assert binned_median([0] * (len(EDGES)) + [3], 4e9) == 4e9
