"""Running the command in this process, as a user would in another."""

import multiprocessing
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from vitadel.cli import main

Command = Callable[..., tuple[int, str, str]]
Start = Callable[..., ForkServerProcess]

# The code of a separate process: the command, which kills itself just before the n-th write of a file whose path has
# the given ending, when a part of that file is already there.
CHILD = """
import os, signal, sys
os.environ.update({environment!r})
sys.stdout = open(os.devnull, "w")
import torch
torch.set_num_threads(1)
import vitadel.core.files, vitadel.runs.tables
import vitadel.evaluate.store, vitadel.evaluate.adversarial_images
vitadel.evaluate.store.ROWS_AT_ONCE = {lines}
original, met = vitadel.core.files.write_atomically, 0
def dying(path, write):
    global met
    met += {ending!r} in str(path)
    if met == {call}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("." + path.name + "." + str(os.getpid()) + ".part").write_bytes(b"0" * 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    original(path, write)
if {ending!r}:
    for module in (vitadel.core.files, vitadel.runs.tables, vitadel.runs.schema, vitadel.evaluate.adversarial_images):
        module.write_atomically = dying
sys.argv = ["vitadel", *{words!r}]
from vitadel.cli import main
main()
"""


@pytest.fixture
def vitadel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`vitadel("models", "--json")` gives exit code, standard output and standard error."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vitadel", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        code = exit_.value.code
        assert isinstance(code, int)
        return code, out, err

    return run


@pytest.fixture(scope="session")
def start() -> Start:
    """`start("evaluate", ...)` runs the command in a real process; they share one import of everything."""
    context = multiprocessing.get_context("forkserver")
    heavy = ["torch", "timm", "pyarrow.parquet", "rich.table", "safetensors.torch", "sklearn.datasets"]
    context.set_forkserver_preload(["__main__", *heavy, "vitadel.cli", "vitadel.evaluate", "vitadel.models"])

    def begin(
        *words: str | Path, killed_at: tuple[str, int] = ("", 0), lines: int = 256, environment: Mapping[str, str] = {}
    ) -> ForkServerProcess:
        ending, call = killed_at
        code = CHILD.format(
            environment=dict(environment), lines=lines, ending=ending, call=call, words=[*map(str, words)]
        )
        process = context.Process(target=exec, args=(code, {"__name__": "child"}))
        process.start()
        return process

    return begin


@pytest.fixture(scope="session")
def start_two_ranks(start: Start) -> Callable[..., list[int | None]]:
    """As `start`, for two processes as a launcher starts them; their exit codes once both have ended."""

    def begin(*words: str | Path, **options: Any) -> list[int | None]:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(one.getsockname()[1]), "WORLD_SIZE": "2"}
        environments = ({**meeting, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"} for rank in "01")
        processes = [start(*words, environment=environment, **options) for environment in environments]
        for process in processes:
            process.join(200)
        return [process.exitcode for process in processes]

    return begin


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the digits recipe, trained briefly."""
    from vitadel.recipes import RECIPES, override, train_recipe

    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = ["plan.epochs=2", "plan.warmup_epochs=1", "plan.log_every_steps=5"]
    train_recipe(override(RECIPES["digits-standard"](), settings), folder, data_spec="digits[:256]")
    return folder
