"""Models compared from the command line: evaluated, compared, and exported as tables."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def evaluated(vitadel: Command, trained: Path, tmp_path: Path) -> list[Path]:
    """The trained model and a fresh one of the same shape, on the same images."""
    models = {"one": str(trained), "two": "timm:test_vit"}
    for run, model in models.items():
        words = ("evaluate", model, "--data", "digits[:24]", "--suite", "quick", "--run", tmp_path / run)
        size = () if run == "one" else ("--classes", "10")
        assert vitadel(*words, *size, "--threat", "linf:16/255", "--json")[0] == 0
    return [tmp_path / run for run in models]


def test_models_are_compared_with_a_baseline_and_written_as_tables(
    vitadel: Command, evaluated: list[Path], tmp_path: Path
) -> None:
    out, tables = tmp_path / "page.html", tmp_path / "tables"
    words = ("report", *evaluated, "--out", out, "--tables", tables)
    code, printed, _ = vitadel(*words, "--baseline", "digits-standard")
    assert code == 0
    assert printed.splitlines()[0] == str(out)
    written = sorted(path.name for path in tables.iterdir())
    assert written == ["comparison.csv", "comparison.json", "comparison.md", "comparison.tex", "figures"]
    exported = json.loads((tables / "comparison.json").read_text())
    assert [column["key"] for column in exported["columns"]] == ["clean", "best-known linf:16/255"]
    by_name = {model["model"]: model for model in exported["models"]}
    manifest = json.loads((evaluated[1] / "manifest.json").read_text())
    assert by_name["timm:test_vit"]["parameters"] == manifest["parts"]["model"]["parameters"] > 100_000
    summary = json.loads((evaluated[0] / "eval" / "quick-linf-16_255" / "summary.json").read_text())
    score = by_name["digits-standard"]["scores"]["best-known linf:16/255"]
    assert (score["value"], score["low"]) == (summary["robust"]["accuracy"], summary["robust"]["low"])
    clean = by_name["timm:test_vit"]["scores"]["clean"]
    assert clean["paired"]["n"] == 24
    assert (clean["paired"]["better"] - clean["paired"]["worse"]) / 24 == pytest.approx(clean["delta"])
    with (tables / "comparison.csv").open() as handle:
        assert {row["model"] for row in csv.DictReader(handle)} == set(by_name)
    page = out.read_text()
    assert '<section id="comparison">' in page
    assert "baseline" in page


def test_errors_of_a_comparison_are_one_line(vitadel: Command, evaluated: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    code, _, err = vitadel("report", *evaluated, "--out", out, "--baseline", "digits-standart")
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown baseline 'digits-standart'. Did you mean 'digits-standard'?" in err
    assert not out.exists()
    (tmp_path / "file").write_text("mine")
    code, _, err = vitadel("report", *evaluated, "--out", out, "--tables", tmp_path / "file")
    assert code == 2
    assert ") needs a folder, got a file." in err
    assert not out.exists()
