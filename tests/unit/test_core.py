"""Batches that halve, progress in lines, errors cut short, shares of processes: known answers."""

import sys

import pytest
import torch
from torch import Tensor

from vitadel.core import progress
from vitadel.core.distributed import Ranks, is_first_process
from vitadel.core.errors import UsageError, quoted, reason, unknown
from vitadel.core.oom import halving, in_batches
from vitadel.core.rng import RandomStreams


class Memory:
    """Work that runs out of memory for more than `most` images, and records the sizes that were tried."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tried: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.tried.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("full")
        return 2 * x


def test_out_of_memory_halves_the_following_batches() -> None:
    memory = Memory(2)
    parts = list(in_batches(torch.arange(10, 21), 7, memory))
    assert memory.tried == [7, 3, 1] + [1] * 10
    assert [int(index) for index, _ in parts] == list(range(10, 21))
    assert [int(value) for _, value in parts] == list(range(20, 42, 2))
    memory = Memory(1)
    assert [index.tolist() for index, _ in in_batches([3, 4], 2, memory)] == [[3], [4]]
    assert memory.tried == [2, 1, 1]
    memory = Memory(4)
    assert [len(index) for index, _ in in_batches([5, 6, 7, 8, 9, 10, 11], 4, memory)] == [4, 3]
    assert memory.tried == [4, 3]


def test_a_batch_in_parts_equals_the_whole() -> None:
    x = torch.arange(12.0).view(6, 2)
    for most, tried in ((6, [6]), (5, [6, 3, 3]), (2, [6, 3, 1, 1, 1, 1, 1, 1])):
        memory = Memory(most)
        assert torch.equal(halving(memory, x), 2 * x)
        assert memory.tried == tried


def test_a_single_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(UsageError, match="out of memory with a single image"):
        halving(Memory(0), torch.ones(4, 1))


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
    deferred = progress.Deferred(progress.prefixed(lambda what, *_: heard.append(what), "first, "))
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


def test_neighbors_go_to_different_processes() -> None:
    assert [Ranks(rank, 3).share([0, 1, 2, 4, 5, 6]) for rank in range(3)] == [[0, 6], [1, 4], [2, 5]]
    assert Ranks().share([3, 1]) == [3, 1]


def test_long_errors_are_truncated() -> None:
    assert quoted("x" * 58) == repr("x" * 58)
    assert quoted("x" * 59) == "'" + "x" * 56 + "..."
    assert len(quoted("x" * 59)) == 60
    assert quoted(10**5000) == "a number of thousands of digits" or sys.get_int_max_str_digits() == 0
    assert reason(ValueError("y" * 200)) == "y" * 200
    assert reason(ValueError("y" * 201)) == "y" * 200 + "..."
    assert reason(ValueError("set weights_only=False")) == "ValueError"
    assert reason(ValueError("GLOBAL os.system was not allowed")) == "it asks for os.system"
    assert str(unknown("suite", "quik", ["quick", "clean"])) == (
        "unknown suite 'quik'. Did you mean 'quick'? Known: clean, quick."
    )
    assert str(unknown("suite", "zzz", ["b", "a"])) == "unknown suite 'zzz'. Known: a, b."


def test_random_numbers_of_an_image_are_pinned() -> None:
    """Recorded: results depend on them, on every machine and in every version."""
    rng = RandomStreams.of(3, torch.tensor([5, 6]))
    normal = torch.tensor([[-0.037048, -1.945699], [1.212173, -0.41305]], dtype=torch.float64)
    assert torch.allclose(rng.normal(2, dtype=torch.float64), normal, atol=1e-5)
    assert rng.below(1000, 2).tolist() == [[190, 855], [308, 36]]
    assert rng.signs(3).tolist() == [[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]]
