"""Progress as lines and bars, printed by the first process alone."""

import sys

import pytest

from vitadel.core import progress
from vitadel.core.distributed import is_first_process


def test_lines_of_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One every ten seconds and one at the end, with the rate since the first report and the time that is left."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with progress.progress_bars() as notify:
        for seconds, done in ((0, 10), (5, 15), (9.9, 19), (10, 20), (19.9, 50), (20, 50), (21, 100)):
            now = 100.0 + seconds
            notify("attack", done, 100, {"robust": 0.25} if done == 100 else {})
        notify("a message", 0, 0, {})
    assert capsys.readouterr().err.splitlines() == [
        "attack: 20/100 1.0/s, 80 s left",
        "attack: 50/100 2.0/s, 25 s left",
        "attack: 100/100 4.3/s robust=0.25",
        "a message",
    ]
    with progress.progress_bars(lines=False) as notify:
        notify("attack", 100, 100, {})
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    with progress.progress_bars() as notify:
        notify("[b]a message[/b]", 0, 0, {})
        notify("[i]single[/i]", 1, 1, {})
        notify("attack", 30, 100, {})
        notify("attack", 100, 100, {"robust": 0.25})
    out, shown = capsys.readouterr()
    assert out == ""
    assert "[b]a message[/b]" in shown  # a path is not markup
    assert "100/100" in shown
    assert "1/1" in shown
    assert "[i]single[/i]" in shown
    assert "robust=0.25" in shown


def test_reports_are_kept_until_the_bar_starts() -> None:
    heard: list[str] = []
    deferred = progress.DeferredProgress(progress.prefixed(lambda what, *_: heard.append(what), "first, "))
    deferred("a", 0, 0, {})
    deferred("b", 1, 2, {})
    assert heard == []
    deferred.release()
    deferred.release()
    assert heard == ["first, a", "first, b"]


def test_only_the_first_process_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert is_first_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_first_process()
    with progress.progress_bars() as notify:
        notify("attack", 100, 100, {})
    assert capsys.readouterr().err == ""
