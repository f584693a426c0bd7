"""Suites of perturbations on the page and as files."""

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.core.flags import Flag
from vitadel.report import write_figures, write_report
from vitadel.runs import Run
from vitadel.runs.exhibits import Bar, Bars, Exhibit, Heatmap, Matrix, Table
from vitadel.runs.schema import Measure
from vitadel.runs.typed_json import to_json

MARKUP = "<script>alert(1)</script>"
MEASURES = [
    Measure("mean over 75 cells", 0.6125, 0.58, 0.645, 40, main=True),
    Measure("noise", 0.5),
    Measure("mCE", 76.375, 70.0, 80.0, 40, "mCE", higher_is_better=False),
    Measure("relative mCE", None, kind="mCE", higher_is_better=False),
]


def exhibits(height: float) -> list[Exhibit]:
    return [
        Heatmap("Per cell", "Rows are corruptions.", [Matrix("", [[0.0, height]])], "accuracy", rows=["fog"]),
        Bars("Per group", "Means.", ["noise"], [Bar("accuracy", [height])], "accuracy"),
        Table("In numbers", "As counted.", ["corruption", "accuracy"], [[MARKUP, height]]),
    ]


def words(text: str) -> str:
    bare = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def evaluated(make: Any, name: str, height: float, **more: Any) -> Path:
    run = make.claim(name, name, 5_000_000)
    fields = {
        "sentence": f"{name} is right in most cells.",
        "exhibits": exhibits(height),
        "title": "Corruptions",
        **more,
    }
    make.perturb(run, "corruptions", [1.0] * 40, clean=[1] * 36 + [0] * 4, **{"measures": MEASURES, **fields})
    return run.folder


def page(runs: list[Path]) -> str:
    return write_report(runs, runs[0].parent / "out" / "report.html").read_text(encoding="utf-8")


def test_a_suite_is_a_section_with_all_its_measures(make: Any) -> None:
    flag = Flag("unread", f"3 files {MARKUP} were left out", {"files": 3})
    text = page([evaluated(make, "vit", 0.5, flags=[flag], conventions={"jpeg": 85, "table": "cifar"})])
    shown = words(text.split('<section id="suite-0">')[1])
    assert '<a href="#suite-0">Corruptions</a>' in text
    assert shown.startswith(
        "Corruptions \u25cf vit vit is right in most cells. Measure \u25cf vit corruptions, 40 images"
    )
    assert "clean accuracy, % on the images as they are 90.0 76.9\N{EN DASH}96.0" in shown
    assert "mean over 75 cells, % accuracy, higher is better 61.3 58.0\N{EN DASH}64.5" in shown
    assert "noise, % accuracy, higher is better 50.0 mCE mCE, lower is better 76.4 70.0\N{EN DASH}80.0" in shown
    assert "relative mCE mCE, lower is better \N{EN DASH}" in shown
    assert "Per cell Rows are corruptions. Per group Means. In numbers corruption accuracy" in shown
    assert "Conventions: jpeg: 85; table: cifar." in shown
    assert (
        f"\N{BLACK FLAG} \u25cf vit 3 files {MARKUP} were left out unread files = 3".replace("\N{BLACK FLAG}", "⚑")
        in shown
    )
    assert MARKUP not in text
    assert text.count('<tr class="main">') == 1
    assert "measured on digits" in words(text)
    # one model is no comparison, and there are no attacks
    assert re.findall(r'<section id="([\w-]+)">', text) == ["suite-0", "provenance"]


def test_several_models_are_side_by_side_with_one_range(make: Any) -> None:
    runs = [evaluated(make, "vit", 0.5), evaluated(make, "cnn", 0.75, conventions={"jpeg": None})]
    text = page(runs)
    shown = words(text)
    assert "Corruptions \u25cf vit vit is right in most cells. \u25a0 cnn cnn is right in most cells." in shown
    assert "Measure \u25cf vit corruptions, 40 images \u25a0 cnn corruptions, 40 images" in shown
    assert "Per cell \u25cf vit \u25a0 cnn Rows are corruptions." in shown
    assert "Conventions of \u25cf vit : jpeg: 85. Conventions of \u25a0 cnn : jpeg: None." in shown
    # of each heat map and bars of both, and clean against each of the two columns has one model only
    assert text.count("<svg") == 4
    assert text.count('role="img"') == text.count("<svg")


def test_measures_of_one_model_are_dashes_for_others(make: Any) -> None:
    fog = Measure("fog", 0.25)
    runs = [evaluated(make, "vit", 0.5), evaluated(make, "cnn", 0.75, measures=[*MEASURES, fog])]
    assert "fog, % accuracy, higher is better \N{EN DASH} 25.0" in words(page(runs))


def test_the_page_compares_and_figures_have_descriptions(make: Any) -> None:
    runs = [evaluated(make, name, 0.5) for name in ("vit", "cnn", "mlp")]
    for left, run in zip((20, 10, 5), runs, strict=True):
        make.attack(
            Run.open(run), "aa", [""] * left + ["square"] * (36 - left) + ["clean"] * 4, 8 / 255, suite="autoattack"
        )
    text = write_report(runs, make.root / "page.html", baseline="cnn").read_text()
    assert text == write_report(runs, make.root / "page.html", baseline="cnn").read_text()
    table = words(text.split('<table class="comparison">')[1].split("</table>")[0])
    assert (
        "# Model Parameters Clean % AutoAttack % linf:8/255 Best known % linf:8/255 Corruptions % mean over 75" in table
    )
    assert (
        "1 \u25cf vit 5M 90.0 76.9\N{EN DASH}96.0 0.0 [\N{MINUS SIGN}6.6, +6.6], p = 1.000 50.0 35.2\N{EN DASH}64.8 "
        "+25.0 [+9.3, +38.3], p = 0.002" in table
    )
    assert "2 \u25a0 cnn baseline 5M" in table
    assert "3 \u25b2 mlp 5M" in table
    assert "\N{MINUS SIGN}12.5 [\N{MINUS SIGN}23.7, \N{MINUS SIGN}0.1], p = 0.062" in table
    assert 'title="better on 10, worse on 0 of 40 images; McNemar, exact"' in text
    figures = re.findall(r'<figure role="img" aria-label="([^"]+)"', text)
    assert len(figures) == text.count("<svg") > 6
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("<script>") == 1
    assert text.count('<div class="copy">') == 4
    # rows can be put in order by a number that every cell of a column has, or by nothing
    rows = re.findall(r"<tr.*?</tr>", text.split('<table class="comparison">')[1].split("</table>")[0], re.S)
    assert {row.count("data-sort") for row in rows[:1]} == {row.count("data-value") for row in rows[1:]} == {8}


def test_models_whose_images_were_prepared_differently_are_named(make: Any) -> None:
    runs = [evaluated(make, "vit", 0.5), evaluated(make, "cnn", 0.75)]
    assert "in its own way" not in page(runs)
    make.change(runs[1], "crop384", "data", "preprocess")
    assert "Images were prepared for each model in its own way: vit (size=8) ; cnn crop384 ." in words(page(runs))


def test_the_title_counts_models_and_not_runs(make: Any) -> None:
    runs = [evaluated(make, name, 0.5) for name in ("vit", "cnn")]
    again = make.claim("again", "vit", 5_000_000)
    make.perturb(again, "corruptions", [1.0] * 40, clean=[1] * 36 + [0] * 4, measures=MEASURES)
    text = page([*runs, again.folder])
    assert "<title>Robustness of vit and cnn</title>" in text
    assert "vit (again)" in text


def test_without_a_baseline_the_page_explains_how_to_choose_one(make: Any) -> None:
    text = page([evaluated(make, "vit", 0.5), evaluated(make, "cnn", 0.75)])
    assert "--baseline MODEL" in text
    assert 'class="delta"' not in text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            {"measures": [to_json(replace(MEASURES[0], main=False))]},
            "got 0 in '.*'. Pass main=True to exactly one Measure",
        ),
        ({"measures": to_json([MEASURES[0], MEASURES[0]])}, "one main measure with a value, got 2"),
        ({"measures": [to_json(replace(MEASURES[0], value=None))]}, "one main measure with a value, got 0"),
        (
            {"measures": [{**to_json(MEASURES[0]), "value": "high"}]},
            r"measures\[0\]\.value should be a number, got 'high'\. Delete the file and run the same command again",
        ),
        ({"title": None}, "title should be text, got None"),
        ({"exhibits": [{"kind": "pie", "version": 1}]}, "unknown kind of exhibit 'pie'"),
        ({"exhibits": [{"kind": [], "version": 1}]}, r"unknown kind of exhibit '\[\]'"),
        ({"conventions": [1]}, r"conventions should be an object, got \[1\]"),
        ({"schema": "suite/2"}, "has version 2, and this Vitadel reads up to 1. Update it"),
    ],
)
def test_damaged_summaries_are_refused_by_name(make: Any, damage: dict[str, object], message: str) -> None:
    run = evaluated(make, "vit", 0.5)
    path = run / "eval" / "corruptions" / "summary.json"
    write_json(path, {**read_json(path), **damage})
    with pytest.raises(UsageError, match=message) as raised:
        page([run])
    assert "summary.json" in str(raised.value)


def test_figures_of_suites_are_written_beside_the_run(make: Any) -> None:
    run = evaluated(make, "vit", 0.5)
    written = write_figures(run)
    names = [str(path.relative_to(run / "figures")) for path in written]
    assert names == [f"corruptions/{name}.{end}" for name in ("01-per-cell", "02-per-group") for end in ("png", "pdf")]
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in write_figures(run)] == before
    path = run / "eval" / "corruptions" / "summary.json"
    write_json(path, {**read_json(path), "exhibits": [{}]})
    with pytest.raises(UsageError, match=r"summary\.json: unknown kind of exhibit 'None'"):
        write_figures(run)
