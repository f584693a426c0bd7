"""Two processes train as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel.models import read_tensors

SETTINGS = ("plan.epochs=3", "plan.warmup_epochs=1", "plan.ema=0.9", "plan.clip_grad=null")
WORDS = ("train", "digits-adversarial", "--data", "digits[:96]", *(f"--set={setting}" for setting in SETTINGS))


def train(folder: Path, *launcher: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *launcher, "vitadel", *WORDS, "--run", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_ranks_match_one_rank(tmp_path: Path) -> None:
    train(tmp_path / "one")
    out = train(tmp_path / "two", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--")
    assert out.count("is trained") == 1
    one, two = (read_tensors(tmp_path / name / "checkpoints" / "final.safetensors")[0] for name in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        # the same images and random numbers; only the order of sums differs
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-4)


SCRIPT = Path(__file__).with_name("training_on_ranks.py")


def course(folder: Path, kind: str, ranks: int, last: int | None = None) -> dict[str, Tensor]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = [str(folder), kind, *([] if last is None else [str(last)])]
    command = [sys.executable, *launcher, str(SCRIPT), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode == 0) == (last is None), done.stderr
    return {} if last is not None else read_tensors(folder / "checkpoints" / "final.safetensors")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["trades", "awp", "scaling", "scaling-literal", "shard", "tradeoff", "tradeoff-awp", "tora-standard", "broken"],
)
def test_every_objective_is_the_same_on_two_ranks(tmp_path: Path, kind: str) -> None:
    one, two = course(tmp_path / "one", kind, 1), course(tmp_path / "two", kind, 2)
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "then"),
    [("trades", 2, 1), ("trades", 1, 2), ("scaling", 2, 1), ("shard", 2, 1), ("tradeoff", 2, 1)],
)
def test_a_run_resumes_with_another_number_of_ranks(tmp_path: Path, kind: str, first: int, then: int) -> None:
    """Killed in the middle of an epoch, no image is lost or seen twice: the weights are those of the whole run."""
    whole = course(tmp_path / "whole", kind, 1)
    course(tmp_path / "cut", kind, first, last=7)
    assert sorted(path.name for path in (tmp_path / "cut" / "checkpoints").glob("step-*"))[-1].startswith(
        "step-000000006"
    )
    resumed = course(tmp_path / "cut", kind, then)
    for key in whole:
        torch.testing.assert_close(whole[key], resumed[key], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_gradients_are_reduced_once_per_update(tmp_path: Path) -> None:
    counts = {}
    for kind in ("steps-1", "steps-4", "parts-2"):
        (tmp_path / kind).mkdir()
        course(tmp_path / kind / "run", kind, 2)
        counts[kind] = {int((tmp_path / kind / f"exchanges-{rank}").read_text()) for rank in (0, 1)}
    # all gradients fit into one bucket, and there are five updates
    assert counts == {"steps-1": {5}, "steps-4": {5}, "parts-2": {5}}
