"""Real kills: SIGKILL at an arbitrary moment, the same command again, the same result."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitadel.models import read_tensors
from vitadel.runs import Rows

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
DEADLINE = 200.0

TRAIN = (
    "train",
    "digits-adversarial",
    "--data",
    "digits[:160]",
    "--set",
    "plan.epochs=4",
    "--set",
    "plan.warmup_epochs=1",
)
OFTEN = ("--set", "plan.checkpoint_every_steps=2", "--set", "plan.log_every_steps=1", "--set", "plan.ema=0.9")


def start(*words: str | Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "vitadel", *map(str, words)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_when(process: "subprocess.Popen[bytes]", ready: Callable[[], bool]) -> None:
    """SIGKILL as soon as `ready`; it is an error if the process ends before."""
    begun = time.monotonic()
    while not ready():
        assert process.poll() is None, "the process ended before it could be killed"
        assert time.monotonic() - begun < DEADLINE
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*.safetensors"))


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "checkpoints" / f"{name}.safetensors")[0]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def train_with_kills(tmp_path: Path, after: list[str]) -> None:
    words = (*TRAIN, "--run")
    assert start(*words, tmp_path / "whole").wait(DEADLINE) == 0
    for name in after:
        kill_when(
            start(*words, tmp_path / "killed"),
            lambda name=name: any(have >= name for have in checkpoints(tmp_path / "killed")),  # type: ignore[misc]
        )
        assert not (tmp_path / "killed" / "checkpoints" / "final.safetensors").exists()
    assert start(*words, tmp_path / "killed").wait(DEADLINE) == 0
    for name in ("final", "best"):
        assert same(weights(tmp_path / "killed", name), weights(tmp_path / "whole", name))


def test_training_killed_once(tmp_path: Path) -> None:
    train_with_kills(tmp_path, ["step-000000008.safetensors"])


@pytest.mark.slow
def test_training_killed_again_and_again(tmp_path: Path) -> None:
    train_with_kills(tmp_path, [f"step-{step:09d}.safetensors" for step in (2, 10, 24, 26, 50)])


def test_evaluation_killed_and_resumed_with_another_batch(trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--data", "digits[:96]", "--threat", "linf:12/255", "--run")
    assert start(*words, tmp_path / "whole", "--batch", "96").wait(DEADLINE) == 0
    killed = Rows(tmp_path / "killed" / "eval" / "quick-linf-12_255")
    kill_when(start(*words, tmp_path / "killed", "--batch", "4"), lambda: any((killed.folder / "parts").glob("[0-9]*")))
    finished = killed.read()
    assert 0 < len(finished["row"]) < 96
    assert start(*words, tmp_path / "killed", "--batch", "17").wait(DEADLINE) == 0
    whole = Rows(tmp_path / "whole" / "eval" / "quick-linf-12_255").read()
    resumed = killed.read()
    for column in ("row", "id", "label", "clean_prediction", "prediction", "fell_to", "forwards", "backwards"):
        assert resumed[column] == whole[column], column
    # what had its row before the kill was not done again: its time is the first run's
    assert resumed["seconds"][: len(finished["row"])] == finished["seconds"]
