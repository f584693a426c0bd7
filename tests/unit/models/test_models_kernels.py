"""The kernels, run by Triton's interpreter, against plain PyTorch implementations."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.attention import Attention
from timm.models.xcit import XCA
from torch import nn

from vitadel.models import kernels

pytest.importorskip("triton")

_ATTENTION = """
from vitadel.models.kernels.class_attention import class_attention
for qkv, grad_out in cases:
    out = class_attention(qkv.requires_grad_(), 0.4)
    results.append((out.detach(), *torch.autograd.grad(out, qkv, grad_out)))
"""
_CHANNELS = """
from timm.models.xcit import XCA
from vitadel.models.kernels import PackedChannelAttention
for tokens, grad_out, heads, state in cases:
    attention = XCA(tokens.shape[2], heads)
    attention.load_state_dict(state)
    out = PackedChannelAttention(attention)(tokens.requires_grad_())
    results.append((out.detach(), *torch.autograd.grad(out, tokens, grad_out)))
"""


def interpreted(script: str, cases: list[Any], folder: Path) -> list[Any]:
    """In a process of its own: whether kernels are interpreted is settled when triton is first imported."""
    torch.save(cases, folder / "in.pt")
    begin, end = "import sys, torch; results, cases = [], torch.load(sys.argv[1])", "torch.save(results, sys.argv[2])"
    command = [sys.executable, "-c", f"{begin}\n{script}\n{end}", str(folder / "in.pt"), str(folder / "out.pt")]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    results: list[Any] = torch.load(folder / "out.pt")
    return results


def test_class_attention_and_its_gradient(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    cases = [
        (
            torch.randn(2, patches + 1, 3, 2, channels, generator=generator),
            torch.randn(2, patches + 1, 2, channels, generator=generator),
        )
        for patches, channels in [(16, 16), (32, 64), (64, 32)]
    ]
    for (qkv, grad_out), (got, back) in zip(cases, interpreted(_ATTENTION, cases, tmp_path), strict=True):
        exact = qkv.double().requires_grad_()
        q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
        wanted = ((q @ k.mT * 0.4).softmax(-1) @ v).transpose(1, 2)
        (wanted_back,) = torch.autograd.grad(wanted, exact, grad_out.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(back.double(), wanted_back, rtol=1e-4, atol=1e-5)


def test_channel_attention_and_its_gradient(tmp_path: Path) -> None:
    """timm's own module in float64; tokens that fill no tile, few and many, and channels that fill none among them."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for tokens, heads, channels in [(5, 2, 16), (64, 1, 12), (70, 2, 48), (131, 3, 64)]:
        attention = XCA(heads * channels, heads)
        state = {name: torch.randn(one.shape, generator=generator) for name, one in attention.state_dict().items()}
        shape = (2, tokens, heads * channels)
        x, grad_out = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
        x[0, :, :] *= 1e-3  # lengths are divided out
        cases.append((x, grad_out, heads, state))
    cases.append((*cases[0][:3], {name: torch.zeros_like(one) for name, one in cases[0][3].items()}))  # of no length
    results = interpreted(_CHANNELS, cases, tmp_path)
    for (x, grad_out, heads, state), (got, back) in zip(cases, results, strict=True):
        attention = XCA(x.shape[2], heads).double()
        attention.load_state_dict(state)
        exact = x.double().requires_grad_()
        wanted = attention(exact)
        (wanted_back,) = torch.autograd.grad(wanted, exact, grad_out.double())
        for ours, theirs in ((got, wanted), (back, wanted_back)):
            for one, other in zip(ours.double(), theirs.detach(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize(
    ("change", "patches", "suits"),
    [
        (lambda attention: None, 64, True),
        (lambda attention: None, 65, False),
        (lambda attention: setattr(attention, "q_norm", nn.LayerNorm(16)), 64, False),
        (lambda attention: setattr(attention, "k_norm", nn.LayerNorm(16)), 64, False),
        (lambda attention: setattr(attention, "gate", nn.Linear(32, 32)), 64, False),
        (lambda attention: setattr(attention, "head_dim", 24), 64, False),
    ],
    ids=["plain", "tokens", "q_norm", "k_norm", "gate", "channels"],
)
def test_unsupported_attention_keeps_its_own_kernel(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[nn.Module], None], patches: int, suits: bool
) -> None:
    attention = Attention(32, num_heads=2)
    change(attention)
    assert not kernels.has_kernel(attention, patches)  # not on a CPU
    monkeypatch.setattr(kernels, "on_gpu_in_half", lambda module: True)
    assert kernels.has_kernel(attention, patches) == suits
    assert not kernels.has_kernel(XCA(32, 2), patches)
