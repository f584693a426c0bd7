"""The gates of TORA models: shares with known values, a slow recomputation, and no side effects.

Shape letters: A adapters, B images, H heads, N tokens, D numbers per token, L blocks.
"""

import base64
import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_models import studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import TORAGates, run_study, study, tensor_context
from vitadel.analyze.tora_gates import shares
from vitadel.core.errors import UsageError
from vitadel.models import AdaptedViT, AdapterConfig, Model, Option, load, tora, wrap
from vitadel.runs import ResultFolder

DEPTH, HEADS, DIM = 3, 4, 32
WAYS = [
    AdapterConfig(),
    AdapterConfig(softmax="token"),
    AdapterConfig(softmax="joint"),
    AdapterConfig(gate="per-token"),
]


def gated(tuning: AdapterConfig | None = None, **more: Option) -> Model:
    options: dict[str, Option] = {"depth": DEPTH, "embed_dim": DIM, "num_heads": HEADS, **more}
    base = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=16, patch_size=4, options=options, seed=1)
    return tora(base, tuning).double().eval()


def noisy_weights(model: Model) -> Model:
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=rng, dtype=weight.dtype))
    return model


def net_of(model: Model) -> AdaptedViT:
    assert isinstance(model.net, AdaptedViT)
    return model.net


@pytest.fixture
def x() -> Tensor:
    return torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def studied(
    model: nn.Module, x: Tensor, settings: TORAGates | None = None, batch_size: int | None = None
) -> dict[str, Any]:
    return study(model, x, torch.arange(len(x)), settings or TORAGates(), batch_size=batch_size)


def maps(result: dict[str, Any], exhibit: int) -> Tensor:
    """[B, L, h, w]: the maps that an exhibit shows."""
    rows = [[_unpacked(cell["overlay"]) for cell in row[1:]] for row in result["exhibits"][exhibit]["cells"]]
    return torch.stack([torch.stack(row) for row in rows])


def _unpacked(array: dict[str, Any]) -> Tensor:
    flat = np.frombuffer(base64.b64decode(array["base64"]), dtype=array["dtype"])
    return torch.from_numpy(flat.reshape(array["shape"]).copy())


@pytest.mark.parametrize("tuning", WAYS, ids=str)
def test_equal_adapters_have_equal_shares(x: Tensor, tuning: AdapterConfig) -> None:
    result = studied(gated(tuning), x)
    for name in ("acc", "rob"):
        assert result["shares"][name]["mean"] == [0.5] * DEPTH
        assert result["shares"][name]["over_patches"] == [0.0] * DEPTH
    assert bool((maps(result, 0) == 0.5).all())
    assert bool((maps(result, 1) == 0.5).all())
    assert "0.500 of the weight" in result["summary"]


def planted(model: Model, push: float) -> list[float]:
    """Let the gate select a direction that only the robustness adapter adds; the logit difference in each head."""
    direction_D = torch.linspace(0.1, 1, DIM, dtype=torch.float64)
    net = net_of(model)
    with torch.no_grad():
        for fusion, adapter in zip(net.fusions, net.adapters["rob"], strict=True):  # type: ignore[call-overload]
            fusion.q.weight.zero_()
            fusion.q.bias.copy_(direction_D)
            fusion.k.weight.copy_(torch.eye(DIM))
            fusion.k.bias.zero_()
            adapter.up.bias.copy_(push * direction_D)
    per_head = direction_D.square().view(HEADS, -1).sum(1)
    return (push * per_head / math.sqrt(DIM // HEADS)).tolist()


@pytest.mark.parametrize("push", [0.3, -0.7, 40.0])
@pytest.mark.parametrize(
    "tuning", [AdapterConfig(), AdapterConfig(softmax="joint"), AdapterConfig(gate="per-token")], ids=str
)
def test_an_adapter_with_the_preferred_output_wins_by_the_known_share(
    x: Tensor, tuning: AdapterConfig, push: float
) -> None:
    model = gated(tuning)
    logit_difference = planted(model, push)
    known = sum(1 / (1 + math.exp(-one)) for one in logit_difference) / HEADS
    result = studied(model, x)
    assert result["shares"]["rob"]["mean"] == pytest.approx([known] * DEPTH, abs=1e-9)
    assert result["shares"]["acc"]["mean"] == pytest.approx([1 - known] * DEPTH, abs=1e-9)
    assert known > 0.99 or push < 1
    torch.testing.assert_close(maps(result, 1), torch.full((5, DEPTH, 4, 4), known), atol=1e-6, rtol=0)


def test_softmax_over_tokens_depends_on_differences_between_tokens(x: Tensor) -> None:
    model = gated(AdapterConfig(softmax="token"))
    planted(model, 0.7)
    result = studied(model, x)
    assert result["shares"]["rob"]["mean"][0] == pytest.approx(0.5, abs=1e-9)
    # from the second block on, the robust token has twice the sum of the patches, whose shares shrink
    assert result["shares"]["rob"]["mean"][1] < 0.49


def recomputed(model: Model, x: Tensor, prefix: int) -> Tensor:
    """[B, L, h, w]: the share of the robustness adapter, from the weights and what enters each fusion."""
    net, entered = net_of(model), list[tuple[Tensor, ...]]()
    handles = [f.register_forward_pre_hook(lambda module, args: entered.append(args)) for f in net.fusions]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    width, result = DIM // HEADS, torch.zeros(len(x), DEPTH, 4, 4, dtype=torch.float64)
    for block, (z_BND, found_ABND) in enumerate(entered):
        weights = {key: value.numpy() for key, value in net.fusions[block].state_dict().items()}
        for image in range(len(x)):
            q_ND = z_BND[image].numpy() @ weights["q.weight"].T + weights["q.bias"]
            keys = [one[image].numpy() @ weights["k.weight"].T + weights["k.bias"] for one in found_ABND]
            for head in range(HEADS):
                at = slice(head * width, (head + 1) * width)
                s_ANN = np.stack([q_ND[:, at] @ k_ND[:, at].T / math.sqrt(width) for k_ND in keys])
                g_ANN = _weights(s_ANN, net.tuning)
                tokens = np.diagonal(g_ANN, axis1=1, axis2=2)[:, None] if net.tuning.gate == "per-token" else g_ANN
                share_N = (tokens[1] / tokens.sum(0)).mean(0)
                for row in range(4):
                    for column in range(4):
                        result[image, block, row, column] += share_N[prefix + 4 * row + column] / HEADS
    return result


def _weights(s_ANN: np.ndarray, tuning: AdapterConfig) -> np.ndarray:
    e_ANN = np.exp(s_ANN)
    if tuning.softmax == "adapter":
        return e_ANN / e_ANN.sum(0)
    return e_ANN / e_ANN.sum(2, keepdims=True) if tuning.softmax == "token" else e_ANN / e_ANN.sum((0, 2))[:, None]


@pytest.mark.parametrize("tuning", WAYS, ids=str)
@pytest.mark.parametrize("registers", [0, 2])
def test_shares_match_the_weights(x: Tensor, tuning: AdapterConfig, registers: int) -> None:
    model = noisy_weights(gated(tuning, reg_tokens=registers) if registers else gated(tuning))
    slow = recomputed(model, x[:2], 1 + registers)
    result = studied(model, x[:2])
    assert slow.std() > 0.01  # so that a wrong order of patches is seen
    torch.testing.assert_close(maps(result, 1).double(), slow, atol=1e-6, rtol=0)
    torch.testing.assert_close(maps(result, 0).double(), 1 - slow, atol=1e-6, rtol=0)
    actual, image_means = result["shares"]["rob"], slow.mean((2, 3))
    assert actual["mean"] == pytest.approx(image_means.mean(0).tolist(), abs=1e-12)
    assert actual["deviation"] == pytest.approx(image_means.std(0, correction=0).tolist(), abs=1e-12)
    assert actual["least"] == pytest.approx(image_means.amin(0).tolist(), abs=1e-12)
    assert actual["greatest"] == pytest.approx(image_means.amax(0).tolist(), abs=1e-12)
    spread = slow.flatten(2).std(-1, correction=0).mean(0)
    assert actual["over_patches"] == pytest.approx(spread.tolist(), abs=1e-12)


def test_results_do_not_depend_on_the_batch(x: Tensor) -> None:
    model = noisy_weights(gated())
    whole, single = studied(model, x), studied(model, x, batch_size=2)
    for key, value in whole["shares"]["rob"].items():
        assert single["shares"]["rob"][key] == pytest.approx(value, abs=1e-12)
    torch.testing.assert_close(maps(single, 1), maps(whole, 1), atol=1e-6, rtol=0)


def test_only_the_chosen_images_are_shown(x: Tensor) -> None:
    model = noisy_weights(gated())
    every = studied(model, x)
    chosen = studied(model, x, TORAGates(images=2, blocks=(2, 0)))
    torch.testing.assert_close(maps(chosen, 1), maps(every, 1)[:2, [2, 0]])
    shown = chosen["exhibits"][1]
    assert shown["columns"] == ["image", "block 2", "block 0"]
    assert shown["rows"] == ["label 0", "label 1"]
    # the scale is centered at a half and holds every value
    assert shown["low"] + shown["high"] == pytest.approx(1)
    assert shown["low"] <= float(maps(chosen, 1).min()) <= float(maps(chosen, 1).max()) <= shown["high"]
    assert chosen["shares"] == every["shares"]
    assert [one["kind"] for one in every["exhibits"]] == ["pictures", "pictures", "lines", "table"]
    rows = every["exhibits"][3]["rows"]
    assert [row[2] for row in rows] == every["shares"]["rob"]["mean"]


@pytest.mark.parametrize(
    ("depth", "blocks"), [(12, range(12)), (24, (0, 2, 4, 6, 8, 10, 13, 15, 17, 19, 21, 23))], ids=["12", "24"]
)
def test_deep_networks_show_twelve_blocks(depth: int, blocks: Sequence[int], x: Tensor) -> None:
    result = studied(gated(depth=depth), x[:1])
    assert result["exhibits"][0]["columns"] == ["image", *(f"block {block}" for block in blocks)]


def test_an_interrupted_study_resumes(x: Tensor, tmp_path: Path) -> None:
    model, settings, y = noisy_weights(gated()), TORAGates(images=3), torch.arange(5)
    known = studied(model, x, settings)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, settings, batch_size=2, stop_after=0.6)
    assert ResultFolder(tmp_path).read("gates")["index"] == [0, 1, 2, 3]
    resumed = studied_in(tmp_path, model, x, y, settings)
    assert resumed["shares"]["rob"]["mean"] == pytest.approx(known["shares"]["rob"]["mean"], abs=1e-12)
    torch.testing.assert_close(maps(resumed, 1), maps(known, 1), atol=1e-6, rtol=0)


def test_an_entry_of_zero_is_shared_equally() -> None:
    g_ABHN = torch.tensor([[[[0.0, 0.0, 3.0]]], [[[0.0, 1.0, 1.0]]]])
    assert shares(g_ABHN, 3)[0].tolist() == [[0.5, 0.0, 0.75]]
    assert shares(g_ABHN, 2)[1].tolist() == [[1.0, 0.25]]


def test_the_model_is_left_unchanged_also_after_an_error(x: Tensor) -> None:
    model = noisy_weights(gated()).train()
    before, twin = {key: value.clone() for key, value in model.state_dict().items()}, copy.deepcopy(model)
    studied(model, x)
    with pytest.raises(UsageError, match="takes images of shape"):
        run_study(TORAGates(), tensor_context(model, x[:, :1], torch.arange(5)))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_models_without_gates_are_refused(x: Tensor) -> None:
    base = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=16, patch_size=4, options={"depth": 1})
    with pytest.raises(UsageError, match=r"VisionTransformer has none\. Train one with a TORA recipe"):
        studied(base, x)
    with pytest.raises(UsageError, match="Flatten has none"):
        studied(wrap(nn.Flatten(), mean=(0.0,) * 3, std=(1.0,) * 3), x)
    with pytest.raises(UsageError, match="made with tuning='single'"):
        studied(gated(AdapterConfig(tuning="single")), x)
    with pytest.raises(UsageError, match="made with tuning='head'"):
        studied(gated(AdapterConfig(tuning="head")), x)
    with pytest.raises(UsageError, match=r"has 3 blocks, counted from 0; TORAGates\.blocks asks for 3"):
        studied(gated(), x, TORAGates(blocks=(0, 3)))
    with pytest.raises(UsageError, match=r"TORAGates.images must be at least 1, got 0"):
        TORAGates(images=0)
