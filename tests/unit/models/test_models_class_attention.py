"""The kernels, run number by number by Triton's interpreter, against attention as it is written down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

# in a process of its own: whether kernels are interpreted is settled when triton is first imported
_SCRIPT = """
import sys, torch
from vitadel.models.class_attention import class_attention
answers = []
for qkv, slope in torch.load(sys.argv[1]):
    out = class_attention(qkv.requires_grad_(), 0.4)
    answers.append((out.detach(), *torch.autograd.grad(out, qkv, slope)))
torch.save(answers, sys.argv[2])
"""


def test_interpreted_kernels_are_attention_and_its_gradient(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    cases = [
        (
            torch.randn(2, patches + 1, 3, 2, channels, generator=generator),
            torch.randn(2, patches + 1, 2, channels, generator=generator),
        )
        for patches, channels in [(16, 16), (32, 64), (64, 32)]
    ]
    torch.save(cases, tmp_path / "in.pt")
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})

    for (qkv, slope), (got, back) in zip(cases, torch.load(tmp_path / "out.pt"), strict=True):
        exact = qkv.double().requires_grad_()
        q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
        wanted = ((q @ k.mT * 0.4).softmax(-1) @ v).transpose(1, 2)
        (wanted_back,) = torch.autograd.grad(wanted, exact, slope.double())
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(back.double(), wanted_back, rtol=1e-4, atol=1e-5)
