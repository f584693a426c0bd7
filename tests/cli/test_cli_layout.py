"""How lists, pages, tables and errors are laid out in a terminal."""

from pathlib import Path
from typing import Any

import pytest

from vitadel.api.catalog import Item, Page, Setting
from vitadel.cli import show

WORDS = "word " * 60


@pytest.mark.parametrize(("columns", "widest"), [(200, 110), (110, 110), (80, 80)])
def test_text_is_at_most_110_columns_wide(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show.page(Page(WORDS, WORDS, WORDS, (Setting("name", "1", WORDS),), WORDS))
    lines = capsys.readouterr().out.splitlines()
    assert widest - 5 < max(map(len, lines)) <= widest


def test_descriptions_are_a_column_after_the_longest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    entries = [Item("a", "one"), Item("n" * 28, "two"), Item("m" * 29, "three"), Item("b", "four", "Group")]
    show.items(entries)
    assert capsys.readouterr().out.splitlines() == [
        f"  {'a':<28}  one",
        f"  {'n' * 28}  two",
        f"  {'m' * 29}",
        f"{' ' * 32}three",
        "",
        "Group",
        "  b  four",
    ]


def test_a_group_begins_after_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    show.items([Item("a", "one", "First"), Item("b", "", "Second"), Item("c", "three", "First")])
    assert capsys.readouterr().out.splitlines() == ["First", "  a  one", "  c  three", "", "Second", "  b"]


def test_numbers_are_aligned_at_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("title", ["name", "count", "text"], [["1", "5", "a"], ["22", "100", "bb"], ["3", "-", "c"]])
    title, *lines = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert title == "title"
    rows = [line.strip("│┃").replace("┃", "│").split("│") for line in lines if "│" in line]
    assert [row[1] for row in rows] == ["     5 ", "   100 ", "     - "]
    assert [row[0] for row in rows] == [" 1    ", " 22   ", " 3    "]
    assert [row[2] for row in rows] == [" a    ", " bb   ", " c    "]


def test_twenty_missing_entries_are_listed_and_the_others_counted(vitadel: Any, tmp_path: Path) -> None:
    code, out, err = vitadel("data", "check", f"imagenet-c:{tmp_path}")
    assert code == 2
    assert "is not complete: 95 entries are missing" in err
    *listed, more = out.splitlines()
    assert len(listed) == 20
    assert all(line.startswith("missing: ") for line in listed)
    assert more == "missing: 75 more; use --json to list all"


@pytest.mark.parametrize(("length", "shortened"), [(100, False), (3000, True)])
def test_the_middle_of_a_long_error_is_left_out(length: int, shortened: bool, vitadel: Any) -> None:
    name = "/".join(["d" * 99] * (length // 100))
    _, _, err = vitadel("report", name)
    message = err.removeprefix("vitadel: ").rstrip("\n")
    assert ("[...]" in message) == shortened
    if shortened:
        first, last = message.split(" [...] ")
        assert (len(first), len(last)) == (1000, 500)
