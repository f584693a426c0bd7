"""The comparison in other forms: safe to paste, and the same numbers."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.report import write_tables
from vitadel.report.comparison.export import as_csv, as_json, as_latex, as_markdown
from vitadel.report.comparison.models import Comparison, compare_models
from vitadel.report.reader import read_runs
from vitadel.report.text import latex_text, markdown_text
from vitadel.runs import Run
from vitadel.runs.schema import Measure

EVIL = "a_b & 50% #1 {x} $y$ ~z^2 \\w <i> | \"q\", 'r'"


@pytest.fixture
def runs(make: Any) -> list[Path]:
    """Two models on ten images: AutoAttack leaves 5 of the first and 2 of the second, which are among those 5."""
    result = []
    for name, size, left in ((EVIL, 5_717_416, 5), ("vit", None, 2)):
        run = make.claim(f"run-{left}", name, size)
        make.attack(run, "aa", [""] * left + ["square"] * (9 - left) + ["clean"], 8 / 255, suite="autoattack")
        result.append(run.folder)
    make.perturb(run, "corruptions", [1.0, 0.5], flags=[Flag("c", "s", {})])
    return result


def table(runs: list[Path], baseline: str | None = None) -> Comparison:
    result = compare_models(read_runs(runs), baseline)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a_b & 50% #1", r"a\_b \& 50\% \#1"),
        ("{x} $y$", r"\{x\} \$y\$"),
        ("~z^2 \\w", r"\textasciitilde{}z\textasciicircum{}2 \textbackslash{}w"),
        ("<i>|", r"\textless{}i\textgreater{}\textbar{}"),
        ("1\N{EN DASH}2 \N{MINUS SIGN}3\n4", "1--2 $-$3 4"),
    ],
)
def test_latex_escapes_every_text(text: str, safe: str) -> None:
    assert latex_text(text) == safe


def test_markdown_escapes_every_text() -> None:
    assert markdown_text("a|b\\|c *d* `e` <f> &amp;\ng") == r"a\|b\\\|c \*d\* \`e\` &lt;f> &amp;amp; g"


def test_latex_has_two_header_lines_and_bold_best_values(runs: list[Path]) -> None:
    lines = as_latex(table(runs, "vit")).splitlines()
    assert lines[1] == r"\begin{tabular}{rlrrrrrl}"
    assert lines[3] == r" & Model & Parameters & Clean \% & AutoAttack \% & Best known \% & Corruptions \% & Flags \\"
    assert lines[4] == r" &  &  &  & linf:8/255 & linf:8/255 & mean over all cells &  \\"
    assert lines[6].startswith(f"1 & {latex_text(EVIL)} & 5.72M & ")
    assert r"\textbf{50.0} [23.7--76.3] (+30.0 [$-$8.7, +58.7], p = 0.250)" in lines[6]
    assert lines[7].startswith("2 & vit & -- & 90.0 [59.6--98.2] & 20.0 [5.7--51.0]")
    assert lines[7].endswith(r"& 75.0 [70.0--80.0] & 1 \\")
    # every line has one cell for every column
    assert {len(re.split(r"(?<!\\)&", line)) for line in (*lines[3:5], *lines[6:8])} == {8}


def test_markdown_has_one_cell_for_every_column(runs: list[Path]) -> None:
    lines = as_markdown(table(runs, "vit")).splitlines()
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {10}
    assert "**50.0** [23.7\N{EN DASH}76.3] (+30.0 [\N{MINUS SIGN}8.7, +58.7], p = 0.250)" in lines[2]
    assert lines[3].startswith("| 2 | vit | \N{EN DASH} | 90.0")


def test_csv_has_plain_numbers(runs: list[Path]) -> None:
    first, second = csv.DictReader(io.StringIO(as_csv(table(runs, "vit"))))
    assert first["model"] == EVIL
    assert (first["rank"], first["parameters"], second["parameters"]) == ("1", "5717416", "")
    assert float(first["best-known linf:8/255"]) == 0.5
    assert float(first["best-known linf:8/255 delta"]) == pytest.approx(0.3)
    assert float(first["best-known linf:8/255 p"]) == 0.25
    assert (first["corruptions"], second["corruptions"], second["corruptions n"]) == ("", "0.75", "2")
    assert (second["flags"], second["potentially unreliable"]) == ("1", "0")
    assert "clean delta" not in next(csv.reader(io.StringIO(as_csv(table(runs)))))


@pytest.mark.parametrize("name", ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\uff1d1"])
def test_csv_has_no_formulas(make: Any, name: str) -> None:
    run = make.claim("run", "=1+1")
    make.perturb(run, name, [-1.0, -2.0], measures=[Measure(name, -1.5, -2.0, -1.0, 2, "mCE", main=True)])
    heads, row = csv.reader(io.StringIO(as_csv(table([run.folder]))))
    assert (heads[3], row[1], row[3]) == (f"'{name}", "'=1+1", "-1.5")


def test_json_has_everything(runs: list[Path]) -> None:
    content = json.loads(as_json(table(runs, "vit")))
    assert (content["baseline"], content["ranked_by"]) == ("vit", "best-known linf:8/255")
    assert [column["key"] for column in content["columns"]] == [
        "clean",
        "autoattack linf:8/255",
        "best-known linf:8/255",
        "corruptions",
    ]
    first, second = content["models"]
    score = first["scores"]["best-known linf:8/255"]
    assert score["paired"] == {"n": 10, "better": 3, "worse": 0, "p": 0.25, "test": "McNemar, exact"}
    assert score["found_by"] == "autoattack"
    assert second["flags"] == [{"evaluation": "corruptions", "code": "c", "sentence": "s"}]
    assert content["trends"] == []
    assert content["scalings"] == []


def test_json_has_the_fits_if_any(make: Any) -> None:
    runs = []
    for place, right in enumerate((10, 20, 30)):
        run = make.claim(f"run-{place}", f"model-{place}", 10**6 * (place + 1))
        make.perturb(
            run, "corruptions", [1.0] * right + [0.0] * (40 - right), clean=[1] * (right + 2) + [0] * (38 - right)
        )
        runs.append(run.folder)
    content = json.loads(as_json(table(runs)))
    (trend,) = content["trends"]
    assert trend["models"] == 3
    assert set(trend["effective_robustness"]) == {"model-0", "model-1", "model-2"}
    assert [(fit["column"], fit["family"], fit["models"]) for fit in content["scalings"]] == [
        ("clean", "vit", 3),
        ("corruptions", "vit", 3),
    ]


def test_all_formats_are_written_reproducibly(make: Any, runs: list[Path], tmp_path: Path) -> None:
    make.perturb(Run.open(runs[0]), "corruptions", [1.0, 0.25])
    paths = write_tables(runs, tmp_path / "tables", baseline="vit")
    names = [str(path.relative_to(tmp_path / "tables")) for path in paths]
    assert names[:4] == [f"comparison.{ending}" for ending in ("tex", "md", "csv", "json")]
    assert names[4:] == [
        f"figures/{name}.{ending}"
        for name in (
            "01-best-known-against-clean-accuracy-linf-8-255",
            "02-corruptions-against-clean-accuracy-mean-over-all",
        )
        for ending in ("png", "pdf")
    ]
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_tables(runs, tmp_path / "tables", baseline="vit")] == before


def test_tables_need_a_folder_and_a_comparison(make: Any, runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"\(--tables .*file\) needs a folder, got a file\."):
        write_tables(runs, tmp_path / "file")
    with pytest.raises(UsageError, match="nothing to compare: no model was evaluated"):
        write_tables([make.train("trained", "vit")], tmp_path / "tables")
    assert not (tmp_path / "tables").exists()
