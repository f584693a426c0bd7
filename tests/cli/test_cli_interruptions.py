"""SIGKILL at the worst points, the same command again, the same result."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch

from vitadel import data
from vitadel.data import Squash
from vitadel.evaluate import read_adversarial_images
from vitadel.models import read_tensors
from vitadel.runs import ResultFolder

Start = Callable[..., ForkServerProcess]

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

# Each of these makes the process kill itself at the given call of one function.
KILL = """
import os, signal, sys
from pathlib import Path
import vitadel.{module} as module
original, calls = module.{function}, 0
def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == {call}:
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


def run_until_killed(module: str, function: str, call: int, *words: str | Path, before: str = "pass") -> None:
    code = KILL.format(module=module, function=function, call=call, before=before)
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=DEADLINE, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "checkpoints" / f"{name}.safetensors")[0]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_sigterm_leaves_a_checkpoint_and_prints_how_to_resume(tmp_path: Path) -> None:
    run(*TRAIN, "--run", tmp_path / "whole")
    words = (*TRAIN, "--run", str(tmp_path / "stopped"))
    code = KILL.format(module="train.loop", function="learning_rate", call=5, before="pass")
    command = [sys.executable, "-c", code.replace("SIGKILL", "SIGTERM"), *words]
    done = subprocess.run(command, env=ENVIRONMENT, timeout=DEADLINE, capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    *_, last = done.stderr.strip().splitlines()
    assert re.fullmatch(r"vitadel: stopped at step \d+, which is saved: the same command resumes\.", last)
    run(*words)
    assert same(weights(tmp_path / "stopped", "final"), weights(tmp_path / "whole", "final"))


def test_training_killed_while_it_writes_a_checkpoint(tmp_path: Path) -> None:
    run(*TRAIN, "--run", tmp_path / "whole")
    words = (*TRAIN, "--run", str(tmp_path / "killed"))
    run_until_killed("train.checkpoint", "write_tensors", 5, *words, before=HALF_A_FILE)
    left = sorted(path.name for path in (tmp_path / "killed" / "checkpoints").glob("step-*"))
    assert left == ["step-000000004.safetensors", "step-000000006.safetensors"]
    run(*words)
    for name in ("final", "best"):
        assert same(weights(tmp_path / "killed", name), weights(tmp_path / "whole", name))


@pytest.mark.slow
def test_training_killed_repeatedly(tmp_path: Path) -> None:
    run(*TRAIN, "--run", tmp_path / "whole")
    words = (*TRAIN, "--run", str(tmp_path / "killed"))
    run_until_killed("runs.run", "write_json", 1, *words)  # before there is a manifest
    run_until_killed("train.loop", "learning_rate", 4, *words)  # in the middle of the first steps
    run_until_killed("train.loop", "save", 1, *words)  # before the best weights are written
    run_until_killed("train.loop", "save", 2, *words)  # after the best weights, before the next
    run_until_killed("train.checkpoint", "write_whole", 1, *words)  # at the first checkpoint of this start
    run_until_killed("train.checkpoint", "_states", 2, *words)  # between writing a checkpoint and dropping old ones
    run(*words)
    for name in ("final", "best"):
        assert same(weights(tmp_path / "killed", name), weights(tmp_path / "whole", name))


# where it is killed, the --batch of the killed process, and how many rows of which tables it leaves
CALLS = {
    "tables/clean/": (3, 70, {"clean": 140}),
    "tables/fgsm/": (1, 64, {"clean": 300, "fgsm": 0}),
    "/found/": (3, 20, {"clean": 300, "fgsm": 16}),
    "tables/pgd-ce/": (3, 9, {"clean": 300, "fgsm": -1, "pgd-ce": 16}),
    "tables/pgd-margin/": (2, 10, {"clean": 300, "fgsm": -1, "pgd-ce": -1, "pgd-margin": 8}),
    "linf-12_255/parts/": (1, 11, {"clean": 300}),
    "rows.parquet": (1, 12, {"clean": 300}),
    "summary.json": (1, 13, {"clean": 300}),
    "gallery.npz": (1, 17, {}),
}
VERDICT = ("index", "id", "label", "clean_prediction", "prediction", "broken_by", "distance", "forwards", "backwards")


def test_evaluation_killed_at_any_point_resumes_with_another_batch_size(
    start: Start, trained: Path, tmp_path: Path
) -> None:
    words = ("evaluate", trained, "--data", "digits[:300]", "--threat", "linf:12/255", "--keep-images", "--run")
    whole = start(*words, tmp_path / "whole", "--batch", "96")
    name, known = "quick-linf-12_255", dict[str, dict[str, list[object]]]()
    rows = ResultFolder(tmp_path / "killed" / "eval" / name)
    for ending, (call, batch, left) in CALLS.items():
        killed = start(*words, tmp_path / "killed", "--batch", str(batch), killed_at=(ending, call), lines=8)
        killed.join(DEADLINE)
        assert killed.exitcode == -signal.SIGKILL, ending
        assert rows.finished == (ending == "gallery.npz")
        for table, count in left.items():
            lines = rows.read(table)
            if count >= 0:
                assert len(lines.get("index", [])) == count, (ending, table)
            # nothing that was written is computed again: every earlier line is there, with its time
            before = known.get(table, {})
            kept = [lines["index"].index(row) for row in before.get("index", [])]
            for column, values in before.items():
                assert [lines[column][at] for at in kept] == values, (ending, table, column)
            known[table] = lines
    resumed = start(*words, tmp_path / "killed", "--batch", "14")
    for process in (whole, resumed):
        process.join(DEADLINE)
        assert process.exitcode == 0
    expected, result = ResultFolder(tmp_path / "whole" / "eval" / name).rows(), rows.rows()
    assert expected["index"] == list(range(300))
    assert set(expected["broken_by"]) == {"clean", "fgsm", "pgd-ce", "pgd-margin", ""}
    for column in VERDICT:
        assert result[column] == expected[column], column
    split = data.load("digits[:300]", preprocess=Squash(8)).test
    images_whole, images_killed = (
        read_adversarial_images(tmp_path / run / "eval" / name / "found", split) for run in ("whole", "killed")
    )
    assert sorted(images_killed) == [row for row, to in enumerate(expected["broken_by"]) if to not in ("", "clean")]
    assert images_killed.keys() == images_whole.keys()
    assert all(torch.equal(x, images_whole[row]) for row, x in images_killed.items())
    # results of the first killed processes are in the rows with their times
    assert not (rows.folder / "tables").exists()
    place = {row: at for at, row in enumerate(known["pgd-ce"]["index"])}
    for row, seconds in zip(result["index"], result["seconds"], strict=True):
        assert isinstance(seconds, list)
        if row in place:
            assert seconds[1] == known["pgd-ce"]["seconds"][place[row]]
    assert (
        ResultFolder(tmp_path / "whole" / "eval" / name).read_verified()[0]["robust"]
        == rows.read_verified()[0]["robust"]
    )
