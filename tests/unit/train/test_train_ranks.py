"""Two processes train as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitadel.models import read_tensors

SETTINGS = ("plan.epochs=3", "plan.warmup_epochs=1", "plan.ema=0.9", "plan.clip_norm=null")
WORDS = ("train", "digits-adversarial", "--data", "digits[:96]", *(f"--set={setting}" for setting in SETTINGS))


def train(folder: Path, *launcher: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *launcher, "vitadel", *WORDS, "--run", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_ranks_end_where_one_does(tmp_path: Path) -> None:
    train(tmp_path / "one")
    out = train(tmp_path / "two", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--")
    assert out.count("is trained") == 1
    one, two = (read_tensors(tmp_path / name / "checkpoints" / "final.safetensors")[0] for name in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        # the same images and the same draws; only the order of sums differs
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-4)
