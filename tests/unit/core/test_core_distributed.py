"""Processes of any launcher find each other, and one claims a folder for all."""

import importlib
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from vitadel.core.distributed import Ranks, set_launch_environment
from vitadel.core.errors import UsageError

SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMI", "MPI"))}
    monkeypatch.setattr(os, "environ", {name: value for name, value in kept.items() if name not in NAMES})
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (None, None, None)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, ("1", "2", "1")),
        (SRUN, ("1", "2", "1")),
        (MPIRUN, ("1", "2", "1")),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, ("1", "3", "0")),
        # a batch script that does not use srun is one process, whatever its job may start
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, (None, None, None)),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, (None, None, None)),
        # torchrun inside srun
        ({**SRUN, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, ("5", "8", "1")),
    ],
)
def test_launchers_are_understood(
    launched: pytest.MonkeyPatch, variables: dict[str, str], place: tuple[str | None, ...]
) -> None:
    os.environ.update(variables)
    set_launch_environment()
    assert tuple(os.environ.get(name) for name in NAMES[:3]) == place


@pytest.mark.parametrize(
    ("nodes", "address"),
    [
        ("gpu07", "127.0.0.1"),
        ("gpu[03-05,7],login", "gpu03"),
        ("a12,b[1-2]", "a12"),
        ("n[1,4]-ib", "n1-ib"),
    ],
)
def test_the_first_node_is_the_rendezvous(launched: pytest.MonkeyPatch, nodes: str, address: str) -> None:
    os.environ.update({**SRUN, "SLURM_STEP_NODELIST": nodes, "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"})
    set_launch_environment()
    assert os.environ["MASTER_ADDR"] == address
    assert 20000 <= int(os.environ["MASTER_PORT"]) < 40000


def test_environment_variables_are_not_overwritten(launched: pytest.MonkeyPatch) -> None:
    os.environ.update({**MPIRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    set_launch_environment()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("head", "1234")


def test_an_unknown_node_and_a_damaged_variable_are_refused(launched: pytest.MonkeyPatch) -> None:
    os.environ.update({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    with pytest.raises(UsageError, match="Export MASTER_ADDR"):
        set_launch_environment()
    os.environ["OMPI_COMM_WORLD_SIZE"] = "two"
    with pytest.raises(UsageError, match="OMPI_COMM_WORLD_SIZE should be a number, got 'two'"):
        set_launch_environment()


CLAIM = """
import sys
from datetime import timedelta
from pathlib import Path
from vitadel.core.distributed import Ranks
from vitadel.runs import Run
ranks = Ranks.of_launch()
run = Run.claim(Path(sys.argv[1]), "evaluate", {"seed": 0}, device="cpu", ranks=ranks)
ranks.barrier()
print(ranks.rank, ranks.world_size, run.manifest.kind)
"""


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "mpich"])
def test_two_processes_claim_a_folder_once(launcher: str, tmp_path: Path) -> None:
    def variables(rank: int) -> dict[str, str]:
        if launcher == "srun":
            job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "here"}
            return {**job, **SRUN, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        if launcher == "mpirun":
            return {**MPIRUN, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        return {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank)}

    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path / "run")],
            env={**kept, **variables(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ended = [process.communicate(timeout=120) for process in processes]
    assert [out.strip() for out, _ in ended] == ["0 2 evaluate", "1 2 evaluate"], [error for _, error in ended]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_meets_no_other_ends_with_advice(rank: int) -> None:
    code = (
        "from datetime import timedelta\nfrom vitadel.core.distributed import Ranks\n"
        "Ranks.of_launch(patience=timedelta(seconds=2))"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **place}, capture_output=True, text=True, timeout=120
    )
    assert f"UsageError: process {rank} of 2 did not meet the others at 127.0.0.1:{port} within 2 s" in ended.stderr
    assert "Export MASTER_ADDR and MASTER_PORT (a free port), the same for all processes." in ended.stderr


def test_images_are_partitioned() -> None:
    shares = [Ranks(rank, 3).local_part(list(range(8))) for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_neighbors_go_to_different_processes() -> None:
    assert [Ranks(rank, 3).local_part([0, 1, 2, 4, 5, 6]) for rank in range(3)] == [[0, 6], [1, 4], [2, 5]]
    assert Ranks().local_part([3, 1]) == [3, 1]


def test_a_single_process_gathers_its_own_tensor() -> None:
    value = torch.rand(3, 2)
    assert Ranks.current() == Ranks()
    assert torch.equal(Ranks().gather(value), value[None])
    assert torch.equal(Ranks().mean(value), value)


def test_processes_that_have_met_wait_for_each_other_for_a_month(launched: pytest.MonkeyPatch) -> None:
    """By default torch gives up after half an hour, by which a share of ImageNet can be late."""
    calls: list[tuple[str, int, timedelta]] = []
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
    module = importlib.import_module("torch.distributed.rendezvous")
    launched.setattr(module, "rendezvous", lambda *args, **settings: iter([(store, 1, 2)]))
    launched.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend, *, rank, timeout, **others: calls.append((backend, rank, timeout)),
    )
    os.environ.update(RANK="1", WORLD_SIZE="2")
    assert Ranks.of_launch() == Ranks(1, 2)
    assert calls == [("gloo", 1, timedelta(days=30))]
    assert store.timeout == timedelta(days=30)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    assert Ranks.of_launch() == Ranks()
    assert len(calls) == 1
