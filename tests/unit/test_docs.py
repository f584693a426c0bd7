"""Every command and every example in the documentation runs."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from vitadel.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# these take a minute or more; the slow suite runs them
LONG = ("vitadel demo", "vitadel train")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ vitadel")]


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0, f"{command}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_short_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = commands(page)
    if any(command.startswith(LONG) for command in result):
        pytest.skip("the page trains first; the slow suite runs it whole")
    for command in result:
        run(command, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)  # pages train several models
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(c.startswith(LONG) for c in commands(page))], ids=lambda page: page.stem
)
def test_whole_pages_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        run(command, monkeypatch, capsys)


def test_pages_link_only_to_what_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_documented() -> None:
    from typer.main import get_command

    from vitadel.cli import app

    written = "\n".join(page.read_text() for page in PAGES)
    assert not [name for name in get_command(app).commands if f"vitadel {name}" not in written]  # type: ignore[attr-defined]
