"""Robustness of commands: interruptions, random arguments, failing file operations, damaged and forged files.

Not part of `make test`: `make test-hostile` runs it for VITADEL_HOSTILE_MINUTES (30) with VITADEL_HOSTILE_SEED (0). The
four parts share the time. What failed is printed with the environment that repeats it.
"""

from pathlib import Path

import pytest
from cases import Part
from commands import References, make_shared
from server import Server

_DONE: list[Part] = []


@pytest.fixture(scope="session")
def server() -> Server:
    return Server()


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """The folder of all cases; in it `shared`, the models that commands need."""
    folder = tmp_path_factory.mktemp("hostile")
    make_shared(server, folder)
    return folder


@pytest.fixture(scope="session")
def references(server: Server, work: Path) -> References:
    return References(server, work)


@pytest.fixture(scope="session")
def parts() -> list[Part]:
    """What has been run; printed at the end."""
    return _DONE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Cases, outcomes and bugs of every part."""
    for part in _DONE:
        terminalreporter.section(part.name)
        terminalreporter.write_line(part.report())
