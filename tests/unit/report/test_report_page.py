import base64
import html
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.core.stats import expected_accuracy
from vitadel.report import summarize, write_report, write_tables
from vitadel.report.reader import _gallery
from vitadel.runs import Run

SECTIONS = ("comparison", "summary", "trust", "curve", "survivors", "training", "gallery", "provenance", "copy")


class Elements(HTMLParser):
    """Every opening tag with its attributes, and whether each one was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(runs: list[Path]) -> str:
    return write_report(runs, runs[0].parent / "out" / "report.html").read_text(encoding="utf-8")


def elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="(\w+)">', text)


def words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_summary_table_says_what_the_summaries_say(two_runs: list[Path], known_interval: Any) -> None:
    table = words(page(two_runs).split('<table class="summary">')[1].split("</table>")[0])
    for standing in (20, 6, 0, 33, 28, 19):
        told = [{k: f"{100 * v:.1f}" for k, v in known_interval(right, 40).items()} for right in (36, standing)]
        assert "40 " + " ".join(f"{t['accuracy']} {t['low']}\N{EN DASH}{t['high']}" for t in told) in table
    assert "clean none \N{EN DASH} 40 90.0" in table
    assert "linf:8/255 apgd-ce, square" in table


def test_the_legend_of_curves_names_models_that_were_attacked_at_several_radii(make: Any) -> None:
    run = make.claim("a", "swept")
    for name, eps in (("linf-1_255", 1), ("linf-4_255", 4)):
        make.write(run, name, ["", "apgd-ce", "clean"], eps / 255)
    make.write(run, "adversarial-linf-8_255", ["apgd-ce", "apgd-ce", "clean"], 8 / 255, suite="adversarial")
    text = page([run.folder, make.evaluate("b", "single", {8: 20})])
    curve = text.split('<section id="curve">')[1].split("</section>")[0]
    legend = words(curve.split('<ul class="legend">')[1].split("</ul>")[0])
    assert "swept" in legend
    assert "single" not in legend


def test_best_of_each_threat_is_bold_and_only_that(two_runs: list[Path]) -> None:
    assert re.findall(r'class="value best">([\d.]+)<', page(two_runs)) == ["82.5", "70.0", "47.5"]


def test_a_file_is_called_by_its_name_alone(make: Any) -> None:
    names = {
        "/data/of/mine/vit.safetensors": "vit",
        "/data/of/mine/vit.safetensors#rob": "vit#rob",
        "runs/vit+adapters.safetensors": "runs/vit+adapters.safetensors",
        "zoo:small": "zoo:small",
        "timm:vit_tiny@/data/weights.safetensors": "timm:vit_tiny",
        "timm:vit_small@/data/one.safetensors": "timm:vit_small@one.safetensors",
        "timm:vit_small@/data/other.safetensors": "timm:vit_small@other.safetensors",
    }
    runs = [make.evaluate(f"run{at}", name, {8: 10}) for at, name in enumerate(names)]
    assert [row.model for row in summarize(runs)] == list(names.values())


def test_no_bold_between_different_images(make: Any) -> None:
    runs = [make.evaluate("a", "a", {8: 10}), make.evaluate("b", "b", {8: 20})]
    make.change(runs[1], "cifar10", "data", "spec")
    assert [row.best for row in summarize(runs)] == [False, False]


def test_page_asks_the_network_for_nothing(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    text = page([*two_runs, make.train("plain", "plain")])
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace("url(#", "")
    for tag, attributes in elements(text).found:
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)


def test_every_element_is_closed_and_every_id_is_one_element_s(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    parsed = elements(page([*two_runs, make.train("plain", "plain")]))
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(a.get("href") or "")[1:] for _, a in parsed.found if (a.get("href") or "").startswith("#")}
    assert links <= set(ids)


def test_hostile_names_are_text(make: Any) -> None:
    evil = "<script>alert('model')</script>$x^"
    run = make.evaluate("run", evil, {4: 20, 8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    text = page([run])
    assert text.count("<script>") == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "said &lt;script&gt;" in text


def test_same_runs_same_bytes(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    runs = [*two_runs, make.train("plain", "plain")]
    assert page(runs) == page(runs)


def test_training_alone_has_no_empty_sections(make: Any) -> None:
    text = page([make.train("plain", "plain")])
    assert sections(text) == ["training", "provenance"]
    assert text.count("<svg") == 4
    assert "trained on digits (seed 3) with Standard" in text


def test_everything_together_has_every_section_in_order(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    text = page([*two_runs, make.train("plain", "plain")])
    assert sections(text) == list(SECTIONS)
    assert "plain (plain" not in text  # one trained it, one measured it: no need to tell them apart


def test_one_eps_alone_draws_no_curve(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {8: 3})])
    assert sections(text) == ["summary", "trust", "survivors", "provenance", "copy"]
    assert "only one eps was attacked" in text


def test_clean_evaluation_alone_has_no_survivors(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {}, clean_only=True)])
    assert sections(text) == ["summary", "trust", "provenance", "copy"]


def test_bars_count_the_rows(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {8: 6})])
    bar = text.split('<div class="bar">')[1]
    assert re.findall(r'title="(\d+ [^"]*)"', bar) == [
        "6 standing",
        "20 fell to apgd-ce",
        "10 fell to square",
        "4 wrong before any attack",
    ]
    assert "width:15.000%" in bar


def attack_lines(text: str) -> list[str]:
    table = text.split("Attack by attack")[1].split("<tbody>")[1].split("</tbody>")[0]
    return [words(line) for line in table.split("</tr>")[:-1]]


def write_costs(run: Path, rows: dict[str, Any], summary: dict[str, Any]) -> Path:
    """An evaluation at 8/255 with rows and a summary of its own."""
    n = len(rows["fell_to"])
    kept = Run.open(run).rows("linf-8_255")
    kept.add({"row": list(range(n)), "id": [str(i) for i in range(n)], "label": [0] * n, "size": [0.01] * n, **rows})
    threat = {"norm": "linf", "eps": 8 / 255, "text": "linf:8/255"}
    kept.close({"name": "linf-8_255", "suite": "curve", "threat": threat, "n": n, "flags": [], **summary})
    return run


def test_every_attack_says_what_it_left_and_what_was_rejected(make: Any, known_interval: Any) -> None:
    # of ten images one was wrong, two fell inside a smaller radius, three to pgd, one to square; three stand
    fell_to = ["clean", "pgd", "square", "pgd", "pgd", "pgd", "square", "", "", ""]
    forwards = [[0, 0]] * 3 + [[5, 0]] * 3 + [[5, 9]] * 4
    attacks = [
        {"name": "pgd", "tried": 7, "fell": 4, "forwards": 35, "backwards": 28, "seconds": 1.25, "rejected": 6},
        {"name": "square", "tried": 4, "fell": 2, "forwards": 3600, "backwards": 0, "seconds": 2, "rejected": 0},
    ]
    summary = {"clean": known_interval(9, 10), "robust": known_interval(3, 10), "attacks": attacks}
    summary["search_precision"] = "fp16"
    text = page([write_costs(make.evaluate("run", "vit", {}), {"fell_to": fell_to, "forwards": forwards}, summary)])
    first, second = attack_lines(text)
    assert first.endswith("pgd 7 3 40.0 35 28 1.2 fp16 6")
    assert second.endswith("square 4 1 30.0 3,600 0 2.0 fp16 0")


def test_alarms_of_a_training_are_shown_once(make: Any) -> None:
    folder = make.train("run", "vit")
    run = Run.open(folder)
    for _ in range(2):  # raised again after a restart
        run.log("alarm", at=4, code="overfitting", sentence="one step leaves 80% right <b>now</b>", evidence={})
    run.log("alarm", at=4, code="label-leaking", sentence="attacked images are easier", evidence={})
    text = page([folder])
    assert text.count("one step leaves 80% right") == 1
    assert "step 4: attacked images are easier" in text
    assert "<b>now</b>" not in text


def test_a_random_model_is_shown_by_its_expected_accuracy(make: Any) -> None:
    before, after = [1.0, 0.9, 0.5, 1.0], [0.8, 0.2, 0.5, 1.0]
    told = [asdict(expected_accuracy(shares)) for shares in (before, after)]
    costs = {"tried": 4, "forwards": 80, "backwards": 80, "seconds": 1, "rejected": 0}
    attacks = [{"name": "apgd-ce", "fell": 1, **costs}, {"name": "apgd-dlr", "fell": 0, **costs}]
    rows: dict[str, Any] = {
        "fell_to": ["", "apgd-ce", "", ""],
        "clean_right": before,
        "right": after,
        "forwards": [[20.0, 20.0]] * 4,
    }
    summary = {"clean": told[0], "robust": told[1], "attacks": attacks}
    text = page([write_costs(make.evaluate("run", "noisy", {}), rows, summary)])
    # mean +- 1.96 deviations of the mean: of 1, 0.9, 0.5, 1 the deviation is 0.238, of 0.8, 0.2, 0.5, 1 it is 0.35
    assert "4 85.0 61.7\N{EN DASH}100.0 62.5 28.2\N{EN DASH}96.8" in words(text)
    assert "4 rows: 85.0 \N{RIGHTWARDS ARROW} 62.5% right" in words(text)
    assert "mean share of right answers" in text
    assert [line.split("apgd-")[1] for line in attack_lines(text)] == [
        "ce 4 1 \N{EN DASH} 80 80 1.0 \N{EN DASH} 0",
        "dlr 4 0 62.5 80 80 1.0 \N{EN DASH} 0",
    ]
    told[1]["accuracy"] = 0.7
    spoilt = make.evaluate("spoilt", "noisy", {})
    with pytest.raises(UsageError, match=r"says robust = 70\.0% \(28.*, its rows say 62\.5% \(28"):
        page([write_costs(spoilt, rows, summary)])


def test_flags_are_counted_told_and_linked(make: Any) -> None:
    run = Run.open(make.evaluate("run", "plain", {}))
    flag = {"code": "zero_gradients", "sentence": "Gradients are zero.", "evidence": {"share": 0.25}}
    make.write(run, "linf-8_255", [""] * 9 + ["square"] * 400, 8 / 255, [flag])
    text = page([run.folder])
    assert '<a href="#trust-r0e0" class="fail">⚑&nbsp;1&nbsp;flag</a>' in text
    assert "Gradients are zero." in text
    assert "share = 0.25" in text
    assert summarize([run.folder])[0].flags == 1


def test_provenance_names_hashes_seed_and_versions(two_runs: list[Path]) -> None:
    shown = words(page(two_runs).split('<section id="provenance">')[1])
    for fact in ("data.splits.test.sha256 feedc0de", "seed 0", "device cpu", "model.sha256 a116", "numpy"):
        assert fact in shown


def decode(address: str) -> np.ndarray:
    """The pixels of a PNG with the filters our writer uses, read by the format's own rules."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", data[16:24])
    place, body = 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length]) == (zlib.crc32(kind + content),)
        body += content if kind == b"IDAT" else b""
        place += 12 + length
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 2).all()
    return np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 3)


def test_perturbation_is_black_gray_white_at_minus_eps_none_and_eps(make: Any) -> None:
    run = make.evaluate("run", "plain", {8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    text = page([run])
    clean, adversarial, difference = (decode(a) for a in re.findall(r'<img src="([^"]*)"', text)[:3])
    assert (clean == 128).all()
    assert adversarial[0, :4, 0].tolist() == [120, 128, 136, 128]
    assert difference[0, :4, 1].tolist() == [0, 128, 255, 128]
    assert "±8/255" in text
    shown = words(text.split('<section id="gallery">')[1])
    assert "fell to apgd-ce" in shown
    assert "true dog , said dog → dog stands" in shown
    assert "wrong before any attack" in shown


def test_other_norms_are_scaled_to_their_largest_change_and_say_so(make: Any) -> None:
    run = make.evaluate("run", "plain", {8: 3})
    make.gallery(run, "linf-8_255", eps=0.25, norm="l2")
    text = page([run])
    assert decode(re.findall(r'<img src="([^"]*)"', text)[2])[0, :3, 0].tolist() == [0, 128, 255]
    assert "±0.25" in text


def test_two_runs_of_one_name_are_told_apart(make: Any) -> None:
    runs = [make.evaluate("first", "vit", {8: 3}), make.evaluate("second", "vit", {8: 9})]
    assert [row.model for row in summarize([*runs, runs[0]])] == ["vit (first)", "vit (second)"]


@pytest.mark.parametrize("spoilt", ["none", "stranger", "empty", "summary", "edited", "lost rows", "lost", "gallery"])
def test_bad_runs_are_refused_with_what_to_do(make: Any, tmp_path: Path, spoilt: str) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    told = {
        "none": r"at least one run, got none\. Write: vitadel report",
        "stranger": r"is not a run folder: it has no manifest\.json",
        "empty": "nothing to report: no training log, no finished evaluation, no finished study. Let its",
        "summary": r"summary\.json says nothing of suite, threat, n, .*\. Delete .*summary\.json and run",
        "edited": r"says robust = 99\.0% \(4\.7%-44\.8%\), its rows say 7\.5% \(.*Delete .*summary\.json and run",
        "lost rows": r"rows\.parquet does not exist\. Run the same command again to have it made",
        "lost": r"summary\.json does not exist\. Run the same command again to have it made",
        "gallery": r"cannot read .*gallery\.npz: .*Delete it to report without its pictures",
    }
    if spoilt == "summary":
        write_json(run / "eval" / "linf-8_255" / "summary.json", {"name": "linf-8_255"})
    if spoilt == "edited":
        path = run / "eval" / "linf-8_255" / "summary.json"
        robust = {"correct": 3, "n": 40, "accuracy": 0.99, "low": 0.047, "high": 0.448}
        write_json(path, {**read_json(path), "robust": robust})
    if spoilt == "lost rows":
        (run / "eval" / "linf-8_255" / "rows.parquet").unlink()
    if spoilt == "lost":
        (run / "eval" / "linf-8_255" / "summary.json").unlink()
    if spoilt == "gallery":
        (run / "eval" / "linf-8_255" / "gallery.npz").write_bytes(b"not a zip")
    runs = {"none": [], "stranger": [tmp_path / "nowhere"], "empty": [make.evaluate("empty", "vit", {})]}
    with pytest.raises(UsageError, match=told[spoilt]):
        write_report(runs.get(spoilt, [run]), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_flipped_bit_anywhere_in_the_gallery_is_noticed_or_harmless(make: Any) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    path = run / "eval" / "linf-8_255" / "gallery.npz"
    whole, intact, noticed = path.read_bytes(), _gallery(path), 0
    assert intact is not None
    for place in range(0, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            found = _gallery(path)
        except UsageError:
            noticed += 1
        else:
            assert found is not None
            np.testing.assert_array_equal(found.adversarial, intact.adversarial)
            np.testing.assert_array_equal(found.clean, intact.clean)
            assert (found.label, found.fell_to, found.eps) == (intact.label, intact.fell_to, intact.eps)
    assert noticed > 50


def test_names_that_are_not_utf8_are_spelled_out(make: Any, tmp_path: Path) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    make.change(run, "vit-\udce9", "model", "name")
    make.change(run, "digits-\udce9", "data", "spec")
    out = write_report([run], tmp_path / "report.html")
    assert "vit-\\udce9" in out.read_text(encoding="utf-8")
    assert write_tables([run], tmp_path / "tables")


def test_out_that_cannot_be_a_file_is_refused(make: Any, tmp_path: Path) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path, tmp_path / "file" / "report.html"):
        with pytest.raises(UsageError, match=r"one file in a folder, got .*--out report\.html"):
            write_report([run], out)
    with pytest.raises(UsageError, match=r"cannot write .*Choose a folder you may write to"):
        write_report([run], Path("/proc/nowhere/report.html"))


def test_report_does_not_import_torch_and_summaries_do_not_import_matplotlib() -> None:
    asked = "import sys, vitadel.report; print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(("count", "folded"), [(8, False), (9, True)])
def test_many_models_are_described_on_demand(make: Any, count: int, folded: bool) -> None:
    text = page([make.evaluate(f"run{at}", f"model-{at}", {8: 10}) for at in range(count)])
    assert ("<summary>What they are" in text) is folded
    assert text.count("<li><span") >= count
