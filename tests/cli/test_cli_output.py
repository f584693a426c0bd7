"""Output is printed unchanged to any stream; if that fails, the error is one line."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vitadel.cli import main, show

Command = Callable[..., tuple[int, str, str]]

COMMANDS = (("recipes",), ("recipes", "digits-standard"), ("suites", "quick", "--json"), ("--help",))


@pytest.fixture
def closed_pipe() -> Iterator[io.TextIOWrapper]:
    """Where the other end has gone, as after `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    yield stream
    with suppress(BrokenPipeError):
        stream.close()


def ended(monkeypatch: pytest.MonkeyPatch, stdout: object, *words: str) -> object:
    """The exit code of a command that prints to `stdout`."""
    monkeypatch.setattr(sys, "argv", ["vitadel", *words])
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as exit_:
            main()
    return exit_.value.code


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_under_the_output_is_a_one_line_error(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(monkeypatch, full, *words) == 2
    assert capsys.readouterr().err == "vitadel: cannot write the output: No space left on device.\n"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_pipe_ends_a_command_silently(
    words: tuple[str, ...],
    closed_pipe: io.TextIOWrapper,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(monkeypatch, closed_pipe, *words) == 1
    assert capsys.readouterr().err == ""


def test_closed_output_streams_are_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, None, "recipes") == 0
    assert capsys.readouterr().err == ""


def test_unprintable_progress_interrupts_nothing(
    closed_pipe: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)
    with show.progress() as notify:
        notify("training", 8, 8, {"loss": 1.0})
        notify("a flag", 0, 0, {})
    show.note("a word")
    monkeypatch.setattr(sys, "stderr", io.StringIO())


def test_characters_missing_from_an_encoding_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("vitadel.cli.show.items", lambda result: show.line("caf\u00e9 \udce9"))
    assert ended(monkeypatch, io.TextIOWrapper(raw, encoding="ascii"), "recipes") == 0
    assert raw.getvalue() == b"caf\\xe9 \\udce9\n"


@pytest.mark.parametrize("text", ["[/b]", "[red]", ":cat:", "C:\\", "\\[b]", "[link=x]y"])
def test_names_in_tables_are_not_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show.table(f"folder:/{text}/x", ["split", text], [["test", f"{text}{text}"]])
    title, _, heads, _, row, _ = capsys.readouterr().out.splitlines()
    assert title.strip() == f"folder:/{text}/x"
    assert heads.split()[-2] == text
    assert row.split()[-2] == f"{text}{text}"


@pytest.mark.parametrize("text", ["[/b] of [red]", ":cat:"])
def test_names_in_progress_bars_are_not_markup(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show.progress() as notify:
        notify(f"alarm {text}", 0, 0, {})
        notify(f"bar {text}", 1, 1, {})
    assert f"alarm {text}" in terminal.getvalue()
    assert f"bar {text}" in terminal.getvalue()


def test_overlong_names_are_a_one_line_error(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    evaluate = ("evaluate", trained, "--data", "digits[:8]", "--suite", "clean")
    for words in (
        (*evaluate, "--run", long),
        ("evaluate", long, "--data", "digits[:8]", "--run", tmp_path / "run"),
        ("evaluate", trained, "--data", f"folder:{long}", "--run", tmp_path / "run"),
        ("evaluate", trained, "--data", f"cifar10:{long}", "--run", tmp_path / "run"),
        ("train", "digits-standard", "--data", "digits[:64]", "--run", long),
        ("report", long, "--out", tmp_path / "page.html"),
        ("report", trained, "--out", long),
        ("report", trained, "--tables", long, "--out", tmp_path / "page.html"),
    ):
        code, out, err = vitadel(*words)
        assert (code, out) == (2, ""), words
        assert err.count("\n") == 1
        assert "File name too long" in err or "there is no folder" in err
    assert not (tmp_path / "run").exists()


def test_a_damaged_log_is_reported_and_not_read(vitadel: Command, tmp_path: Path) -> None:
    short = ("--set", "plan.epochs=1", "--set", "plan.warmup_epochs=0", "--json")
    words = ("train", "digits-standard", "--data", "digits[:64]", "--run", tmp_path / "run", *short)
    assert vitadel(*words)[0] == 0
    log = tmp_path / "run" / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"event": "holdout", "step": null, "clean": "\xff"}\n')
    code, out, err = vitadel(*words)
    assert code == 0
    assert f"1 lines of {log} are damaged and were left out" in err
    assert [score["step"] for score in json.loads(out)["holdout"]] == [2]
    code, _, err = vitadel("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert code == 0
    assert "1 lines of log.jsonl are damaged and left out" in (tmp_path / "page.html").read_text(encoding="utf-8")
