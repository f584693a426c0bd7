"""Running the command in this process, as a user would in another."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vitadel.cli import main

Command = Callable[..., tuple[int, str, str]]


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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the digits recipe, trained for a moment."""
    from vitadel.recipes import RECIPES, carry_out, override

    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = ["plan.epochs=2", "plan.warmup_epochs=1", "plan.log_every_steps=5"]
    carry_out(override(RECIPES["digits-standard"](), settings), folder, data_spec="digits[:256]")
    return folder
