"""The kernels, run number by number by Triton's interpreter, against what they stand for as it is written down."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.xcit import LPI

pytest.importorskip("triton")

_ATTENTION = """
from vitadel.models.class_attention import class_attention
for qkv, slope in cases:
    out = class_attention(qkv.requires_grad_(), 0.4)
    answers.append((out.detach(), *torch.autograd.grad(out, qkv, slope)))
"""
_NEIGHBOURS = """
from torch import nn
from timm.models.xcit import LPI
from vitadel.models.families.packed import PackedInteraction
for tokens, slope, state, rows in cases:
    local = LPI(tokens.shape[2]).eval()
    local.load_state_dict(state)
    out = PackedInteraction(local)(tokens.requires_grad_(), rows, tokens.shape[1] // rows)
    answers.append((out.detach(), *torch.autograd.grad(out, tokens, slope)))
"""


def interpreted(script: str, cases: list[Any], folder: Path) -> list[Any]:
    """In a process of its own: whether kernels are interpreted is settled when triton is first imported."""
    torch.save(cases, folder / "in.pt")
    begin, end = "import sys, torch; answers, cases = [], torch.load(sys.argv[1])", "torch.save(answers, sys.argv[2])"
    command = [sys.executable, "-c", f"{begin}\n{script}\n{end}", str(folder / "in.pt"), str(folder / "out.pt")]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    answers: list[Any] = torch.load(folder / "out.pt")
    return answers


def test_attention_with_a_class_token_and_its_gradient(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    cases = [
        (
            torch.randn(2, patches + 1, 3, 2, channels, generator=generator),
            torch.randn(2, patches + 1, 2, channels, generator=generator),
        )
        for patches, channels in [(16, 16), (32, 64), (64, 32)]
    ]
    for (qkv, slope), (got, back) in zip(cases, interpreted(_ATTENTION, cases, tmp_path), strict=True):
        exact = qkv.double().requires_grad_()
        q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
        wanted = ((q @ k.mT * 0.4).softmax(-1) @ v).transpose(1, 2)
        (wanted_back,) = torch.autograd.grad(wanted, exact, slope.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(back.double(), wanted_back, rtol=1e-4, atol=1e-5)


def test_exchange_between_neighbours_and_its_gradient(tmp_path: Path) -> None:
    """timm's own module in float64; grids that are not square and channels that fill no tile among them."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for rows, columns, channels in [(3, 5, 7), (7, 7, 130), (1, 40, 16)]:
        local = LPI(channels)
        state = {
            name: value if name.endswith("tracked") else torch.rand(value.shape, generator=generator) + 0.1
            for name, value in local.state_dict().items()
        }
        shape = (2, rows * columns, channels)
        tokens, slope = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
        cases.append((tokens, slope, state, rows))
    answers = interpreted(_NEIGHBOURS, cases, tmp_path)
    for (tokens, slope, state, rows), (got, back) in zip(cases, answers, strict=True):
        local = LPI(tokens.shape[2]).eval()
        local.load_state_dict(state)
        exact = tokens.double().requires_grad_()
        wanted = local.double()(exact, rows, tokens.shape[1] // rows)
        (wanted_back,) = torch.autograd.grad(wanted, exact, slope.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(back.double(), wanted_back, rtol=1e-4, atol=1e-4)
