"""Real kills: SIGKILL at the worst moments, the same command again, the same result."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitadel.models import read_tensors
from vitadel.runs import Rows

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
DEADLINE = 200.0

SETTINGS = ("epochs=4", "warmup_epochs=1", "checkpoint_every_steps=2", "log_every_steps=1", "ema=0.9")
TRAIN: tuple[str, ...] = (
    "train",
    "digits-adversarial",
    "--data",
    "digits[:160]",
    *(f"--set=plan.{value}" for value in SETTINGS),
)

# Each of these makes the process kill itself at the given moment: `moment` counts the calls of one function.
KILL = """
import os, signal, sys
from pathlib import Path
import vitadel.{module} as module
original, calls = module.{function}, 0
def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == {moment}:
        {before}
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
module.{function} = dying
from vitadel.cli import main
sys.argv = ["vitadel", *sys.argv[1:]]
main()
"""
HALF_A_FILE = "args[0].write_bytes(b'0' * 1000)"


def run(*words: str | Path) -> None:
    command = [sys.executable, "-m", "vitadel", *map(str, words)]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=DEADLINE, capture_output=True)


def run_and_die(module: str, function: str, moment: int, *words: str | Path, before: str = "pass") -> None:
    code = KILL.format(module=module, function=function, moment=moment, before=before)
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=DEADLINE, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "checkpoints" / f"{name}.safetensors")[0]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_training_killed_while_it_writes_a_checkpoint(tmp_path: Path) -> None:
    run(*TRAIN, "--run", tmp_path / "whole")
    words = (*TRAIN, "--run", str(tmp_path / "killed"))
    run_and_die("train.checkpoint", "write_tensors", 4, *words, before=HALF_A_FILE)
    left = sorted(path.name for path in (tmp_path / "killed" / "checkpoints").glob("step-*"))
    assert left == ["step-000000004.safetensors", "step-000000006.safetensors"]
    run(*words)
    for name in ("final", "best"):
        assert same(weights(tmp_path / "killed", name), weights(tmp_path / "whole", name))


@pytest.mark.slow
def test_training_killed_again_and_again(tmp_path: Path) -> None:
    run(*TRAIN, "--run", tmp_path / "whole")
    words = (*TRAIN, "--run", str(tmp_path / "killed"))
    run_and_die("runs.folder", "write_json", 1, *words)  # before there is a manifest
    run_and_die("train.loop", "learning_rate", 4, *words)  # in the middle of the first steps
    run_and_die("train.loop", "save", 1, *words)  # before the best weights are written
    run_and_die("train.loop", "save", 2, *words)  # after the best weights, before the next
    run_and_die("train.checkpoint", "write_whole", 1, *words)  # at the first checkpoint of this start
    run_and_die("train.checkpoint", "_states", 2, *words)  # between writing a checkpoint and dropping old ones
    run(*words)
    for name in ("final", "best"):
        assert same(weights(tmp_path / "killed", name), weights(tmp_path / "whole", name))


def test_evaluation_killed_and_resumed_with_another_batch(trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", str(trained), "--data", "digits[:96]", "--threat", "linf:12/255", "--run")
    run(*words, tmp_path / "whole", "--batch", "96")
    run_and_die("runs.rows", "write_whole", 4, *words, tmp_path / "killed", "--batch", "8")
    killed = Rows(tmp_path / "killed" / "eval" / "quick-linf-12_255")
    finished = killed.read()
    assert finished["row"] == list(range(24))
    run(*words, tmp_path / "killed", "--batch", "17")
    whole, resumed = Rows(tmp_path / "whole" / "eval" / "quick-linf-12_255").read(), killed.read()
    for column in ("row", "id", "label", "clean_prediction", "prediction", "fell_to", "forwards", "backwards"):
        assert resumed[column] == whole[column], column
    # what had its row before the kill was not done again: its time is the first run's
    assert resumed["seconds"][:24] == finished["seconds"]
