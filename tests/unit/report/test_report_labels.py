"""Which runs are of one model, and that no two models share a color while there are enough."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitadel.report import write_report
from vitadel.report.figures.curves import strokes
from vitadel.report.figures.style import glyph
from vitadel.report.labels import color_numbers, identities, model_names
from vitadel.report.reader import RunRecord, read_runs
from vitadel.runs import ManifestRecord

COLORS = 7


def of(label: str, name: str, weights: str) -> RunRecord:
    return RunRecord(label, label, ManifestRecord("evaluate", {"model": {"sha256": weights}}), name=name)


def evaluated(make: Any, folder: str, name: str, right: int) -> Path:
    run = make.claim(folder, name, 5_000_000)
    make.perturb(run, "corruptions", [1.0] * right + [0.0] * (40 - right), clean=[1] * 36 + [0] * 4)
    return run.folder


def studied(make: Any, folder: str, name: str) -> Path:
    return make.study(folder, name, weights=make.claim(f"{folder}-claimed", name).manifest.text("model", "sha256"))


def test_runs_of_one_model_share_a_color_and_are_numbered() -> None:
    records = [of("vit (a)", "vit", "1"), of("cnn", "cnn", "3"), of("vit (b)", "vit", "1"), of("vit (c)", "vit", "2")]
    models = identities(records)
    assert color_numbers(models, COLORS) == {"vit (a)": 0, "cnn": 1, "vit (b)": 7, "vit (c)": 2}
    assert glyph(7) == glyph(0)
    assert model_names(models) == ["vit (a)", "cnn", "vit (c)"]


def test_curves_of_one_model_have_different_line_styles(make: Any) -> None:
    runs = [make.evaluate(folder, "vit", {1: 30, 8: 20}) for folder in ("one", "two")]
    runs.append(make.evaluate("three", "cnn", {1: 25, 8: 10}))
    records = read_runs(runs)
    result = [curve for record in records for curve in record.curves]
    drawn = strokes(result, color_numbers(identities(records), COLORS))
    assert drawn == {"vit (one)": "solid", "vit (two)": "dashed", "cnn": "solid"}
    text = write_report(runs, make.root / "page.html").read_text(encoding="utf-8")
    legend = text.split('<section id="curve">')[1].split("</ul>")[0]
    assert re.findall(r"</i>([^<]+)</span>([^<]*)", legend) == [
        ("vit (one)", ""),
        ("vit (two)", " (dashed)"),
        ("cnn", ""),
    ]


def test_training_belongs_to_the_evaluated_model() -> None:
    models = identities([of("vit", "vit", ""), of("vit (one)", "vit", "1"), of("vit (two)", "vit", "1")])
    assert set(models.values()) == {("vit", "1")}
    # with two of one name it is ambiguous
    models = identities([of("vit", "vit", ""), of("vit (one)", "vit", "1"), of("vit (two)", "vit", "2")])
    assert models["vit"] == ("vit", "")


def test_training_belongs_to_the_model_of_its_label() -> None:
    trained, twin = (of(label, "vit", "") for label in ("vit", "vit (twin)"))
    models = identities([trained, twin, of("vit", "vit", "1")])
    assert models == {"vit": ("vit", "1"), "vit (twin)": ("vit (twin)", "")}
    assert color_numbers(models, COLORS) == {"vit": 0, "vit (twin)": 1}


def test_measured_models_come_first(make: Any) -> None:
    (record,) = read_runs([evaluated(make, "cnn", "cnn", 20)])
    only_studied = [of(f"vit {place}", f"vit {place}", str(place)) for place in range(8)]
    assert color_numbers(identities([*only_studied, record]), COLORS)["cnn"] == 0
    assert color_numbers(identities([*only_studied, replace(record, perturbations=())]), COLORS)["cnn"] == 8


def test_compared_models_have_different_markers_despite_many_runs(make: Any) -> None:
    runs = [studied(make, f"study-{place}", "vit") for place in range(7)]
    runs += [evaluated(make, "vit", "vit", 30), evaluated(make, "cnn", "cnn", 20)]
    text = write_report(runs, make.root / "page.html").read_text(encoding="utf-8")
    assert "<title>Robustness of vit and cnn</title>" in text
    table = text.split('<table class="comparison">')[1].split("</table>")[0]
    assert re.findall(r'<i style="color:var\(--line-(\d)[^>]*>(.)</i>(\w+)', table) == [
        ("0", "●", "vit"),
        ("1", "■", "cnn"),
    ]
