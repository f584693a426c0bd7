"""Two processes share the images of one run and give the verdicts of one."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from vitadel.runs import ResultFolder

Start = Callable[..., ForkServerProcess]

DEADLINE = 200.0
# three more than a multiple of both ranks times the batch
WORDS = ("--data", "digits[:131]", "--threat", "linf:12/255", "--attack", "pgd:steps=4")
NAME = "attack-linf-12_255"
SECOND_PART = ("tables/pgd_steps=4-", 2)  # where a process is killed: at the second part of the attack's rows
VERDICT = ("index", "id", "label", "clean_prediction", "prediction", "broken_by", "distance", "forwards", "backwards")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--", "vitadel")


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def rank(number: int, port: str) -> dict[str, str]:
    """The environment that a launcher gives a process."""
    place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    return {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}


def ended(*processes: ForkServerProcess) -> list[int | None]:
    for process in processes:
        process.join(DEADLINE)
    return [process.exitcode for process in processes]


def same_verdicts(one: Path, other: Path) -> None:
    expected, result = (ResultFolder(folder / "eval" / NAME).rows() for folder in (one, other))
    assert expected["index"] == list(range(131))
    assert set(expected["broken_by"]) == {"", "clean", "pgd:steps=4"}
    for column in VERDICT:
        assert result[column] == expected[column], column
    summaries = [ResultFolder(folder / "eval" / NAME).read_verified()[0] for folder in (one, other)]
    for summary in summaries:
        summary.pop("seconds")
        for attack in summary["attacks"]:
            attack.pop("seconds")
    assert summaries[0] == summaries[1]


def test_two_ranks_match_one_rank_also_after_an_interruption(start: Start, trained: Path, tmp_path: Path) -> None:
    words = ("attack", trained, *WORDS, "--batch", "32", "--run")
    one = start(*words, tmp_path / "one")
    port = free_port()
    two = [start(*words, tmp_path / "two", environment=rank(number, port)) for number in (0, 1)]
    assert ended(one, *two) == [0, 0, 0]
    same_verdicts(tmp_path / "one", tmp_path / "two")

    # one process is killed half-way, two resume
    assert ended(start(*words, tmp_path / "more", killed_at=SECOND_PART, lines=4)) == [-signal.SIGKILL]
    left = ResultFolder(tmp_path / "more" / "eval" / NAME).read("pgd:steps=4")["index"]
    assert len(left) == 4
    port = free_port()
    assert ended(*(start(*words, tmp_path / "more", environment=rank(number, port)) for number in (0, 1))) == [0, 0]
    same_verdicts(tmp_path / "one", tmp_path / "more")

    # a folder that is another run's is refused by both, and neither waits for the other
    port, other = free_port(), ("--seed", "1", "--run", tmp_path / "one")
    refused = [start(*words[:-1], *other, environment=rank(number, port)) for number in (0, 1)]
    assert ended(*refused) == [2, 2]

    # two processes are killed half-way, one resumes
    port = free_port()
    dying = [
        start(*words, tmp_path / "less", killed_at=SECOND_PART, lines=3, environment=rank(number, port))
        for number in (0, 1)
    ]
    assert ended(*dying) == [-signal.SIGKILL, -signal.SIGKILL]
    left = ResultFolder(tmp_path / "less" / "eval" / NAME).read("pgd:steps=4")["index"]
    assert len(left) == 6
    assert {row % 2 for row in left} == {0, 1}
    assert ended(start(*words, tmp_path / "less")) == [0]
    same_verdicts(tmp_path / "one", tmp_path / "less")


@pytest.mark.slow
def test_a_launch_by_torchrun_prints_once(start: Start, trained: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    words = ("attack", str(trained), *WORDS)
    assert ended(start(*words, "--run", tmp_path / "one")) == [0]
    command = [sys.executable, *TORCHRUN, *words, "--json", "--run", str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads(done.stdout)["evaluations"]
    assert summary == ResultFolder(tmp_path / "two" / "eval" / NAME).read_verified()[0]
    same_verdicts(tmp_path / "one", tmp_path / "two")
    shown = [sys.executable, *TORCHRUN, *words, "--run", str(tmp_path / "two")]
    done = subprocess.run(shown, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.count("linf:12/255") == 1
