import base64
import html
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.core.flags import Flag
from vitadel.core.stats import accuracy, expected_accuracy
from vitadel.report import summarize, write_report, write_tables
from vitadel.runs import Run
from vitadel.runs.schema import AttackRecord, Gallery, SuiteRecord, ThreatRecord
from vitadel.runs.sweep_schema import CombinationRecord, SweepRecord

SECTIONS = ("comparison", "summary", "trust", "curve", "attacks", "training", "gallery", "provenance", "copy")


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


def test_the_summary_table_matches_the_summaries(two_runs: list[Path], known_interval: Any) -> None:
    table = words(page(two_runs).split('<table class="summary">')[1].split("</table>")[0])
    for robust in (20, 6, 0, 33, 28, 19):
        shares = [{k: f"{100 * v:.1f}" for k, v in known_interval(correct, 40).items()} for correct in (36, robust)]
        assert "40 " + " ".join(f"{s['accuracy']} {s['low']}\N{EN DASH}{s['high']}" for s in shares) in table
    assert "clean none \N{EN DASH} 40 90.0" in table
    assert "linf:8/255 apgd-ce, square" in table


def test_the_legend_names_models_with_several_radii(make: Any) -> None:
    run = make.claim("a", "swept")
    for name, eps in (("linf-1_255", 1), ("linf-4_255", 4)):
        make.attack(run, name, ["", "apgd-ce", "clean"], eps / 255)
    make.attack(run, "autoattack-linf-8_255", ["apgd-ce", "apgd-ce", "clean"], 8 / 255, suite="autoattack")
    text = page([run.folder, make.evaluate("b", "single", {8: 20})])
    curve = text.split('<section id="curve">')[1].split("</section>")[0]
    legend = words(curve.split('<ul class="legend">')[1].split("</ul>")[0])
    assert "swept" in legend
    assert "single" not in legend


def test_only_the_best_of_each_threat_is_bold(two_runs: list[Path]) -> None:
    assert re.findall(r'class="value best">([\d.]+)<', page(two_runs)) == ["82.5", "70.0", "47.5"]


def test_files_are_shown_by_name(make: Any) -> None:
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


def test_different_images_are_not_compared_in_bold(make: Any) -> None:
    runs = [make.evaluate("a", "a", {8: 10}), make.evaluate("b", "b", {8: 20})]
    make.change(runs[1], "cifar10", "data", "spec")
    assert [row.best for row in summarize(runs)] == [False, False]


def test_the_page_loads_nothing_from_the_network(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    text = page([*two_runs, make.train("plain", "plain")])
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace("url(#", "")
    for tag, attributes in elements(text).found:
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)


def test_elements_are_closed_and_ids_unique(make: Any, two_runs: list[Path]) -> None:
    make.gallery(two_runs[0], "linf-8_255", eps=8 / 255)
    parsed = elements(page([*two_runs, make.train("plain", "plain")]))
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(a.get("href") or "")[1:] for _, a in parsed.found if (a.get("href") or "").startswith("#")}
    assert links <= set(ids)


def test_names_are_escaped(make: Any) -> None:
    evil = "<script>alert('model')</script>$x^"
    run = make.evaluate("run", evil, {4: 20, 8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    text = page([run])
    assert text.count("<script>") == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "predicted &lt;script&gt;" in text


def test_the_page_is_reproducible(make: Any, two_runs: list[Path]) -> None:
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
    assert "plain (plain" not in text  # one trained it, one measured it: no need to distinguish them


def test_a_single_eps_draws_no_curve(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {8: 3})])
    assert sections(text) == ["summary", "trust", "attacks", "provenance", "copy"]
    assert "only one eps was attacked" in text


def test_clean_evaluation_alone_has_no_attacks(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {}, clean_only=True)])
    assert sections(text) == ["summary", "trust", "provenance", "copy"]


def test_bars_match_the_rows(make: Any) -> None:
    text = page([make.evaluate("run", "plain", {8: 6})])
    bar = text.split('<div class="bar">')[1]
    assert re.findall(r'title="(\d+ [^"]*)"', bar) == [
        "6 robust",
        "20 broken by apgd-ce",
        "10 broken by square",
        "4 misclassified before any attack",
    ]
    assert "width:15.000%" in bar


def attack_lines(text: str) -> list[str]:
    table = text.split("Attack by attack")[1].split("<tbody>")[1].split("</tbody>")[0]
    return [words(line) for line in table.split("</tr>")[:-1]]


def at_8_255(run: Path, n: int, **fields: Any) -> SuiteRecord:
    """The summary of an evaluation at 8/255."""
    threat = ThreatRecord.of("linf:8/255", 8 / 255)
    known: dict[str, Any] = {"clean": None, "robust": None, "attacks": (), "flags": (), "seconds": 1.0, **fields}
    return SuiteRecord("linf-8_255", "curve", n, threat=threat, **known)


def test_every_attack_shows_robust_and_rejected_counts(make: Any) -> None:
    # of ten images one misclassified, two broken within a smaller radius, three by pgd, one by square; three are robust
    broken_by = ["clean", "pgd", "square", "pgd", "pgd", "pgd", "square", "", "", ""]
    forwards = [[0, 0]] * 3 + [[5, 0]] * 3 + [[5, 9]] * 4
    attacks = [AttackRecord("pgd", 7, 4, 35, 28, 1.25, rejected=6), AttackRecord("square", 4, 2, 3600, 0, 2.0)]
    run = make.evaluate("run", "vit", {})
    record = at_8_255(run, 10, clean=accuracy(9, 10), robust=accuracy(3, 10), attacks=attacks, search_precision="fp16")
    columns = {"label": [0] * 10, "broken_by": broken_by, "distance": [0.01] * 10, "forwards": forwards}
    text = page([make.finish(Run.open(run), record, columns)])
    first, second = attack_lines(text)
    assert first.endswith("pgd 7 3 40.0 35 28 1.2 fp16 6")
    assert second.endswith("square 4 1 30.0 3,600 0 2.0 fp16 0")


def test_flags_of_a_training_are_shown_once(make: Any) -> None:
    folder = make.train("run", "vit")
    run = Run.open(folder)
    for _ in range(2):  # raised again after a restart
        run.log("alarm", at=4, code="overfitting", sentence="one step leaves 80% right <b>now</b>", evidence={})
    run.log("alarm", at=4, code="label-leaking", sentence="attacked images are easier", evidence={})
    run.log("alarm", at=5, code="robust-fell", sentence="as an earlier version names it", evidence={})
    text = page([folder])
    assert text.count("one step leaves 80% right") == 1
    assert "step 4: attacked images are easier" in text
    assert "<code>robust-accuracy-drop</code>" in text
    assert "robust-fell" not in text
    assert "<b>now</b>" not in text


def test_a_randomized_model_is_shown_by_its_expected_accuracy(make: Any) -> None:
    before, after = [1.0, 0.9, 0.5, 1.0], [0.8, 0.2, 0.5, 1.0]
    attacks = [AttackRecord("apgd-ce", 4, 1, 80, 80, 1.0), AttackRecord("apgd-dlr", 4, 0, 80, 80, 1.0)]
    columns: dict[str, Any] = {
        "label": [0] * 4,
        "broken_by": ["", "apgd-ce", "", ""],
        "distance": [0.01] * 4,
        "clean_correct": before,
        "robust": after,
        "forwards": [[20.0, 20.0]] * 4,
    }
    run = make.evaluate("run", "noisy", {})
    record = at_8_255(run, 4, clean=expected_accuracy(before), robust=expected_accuracy(after), attacks=attacks)
    text = page([make.finish(Run.open(run), record, columns)])
    # mean +- 1.96 deviations of the mean: of 1, 0.9, 0.5, 1 the deviation is 0.238, of 0.8, 0.2, 0.5, 1 it is 0.35
    assert "4 85.0 61.7\N{EN DASH}100.0 62.5 28.2\N{EN DASH}96.8" in words(text)
    assert "4 rows: 85.0 \N{RIGHTWARDS ARROW} 62.5% correct" in words(text)
    assert "mean share of correct predictions" in text
    assert [line.split("apgd-")[1] for line in attack_lines(text)] == [
        "ce 4 1 \N{EN DASH} 80 80 1.0 \N{EN DASH} 0",
        "dlr 4 0 62.5 80 80 1.0 \N{EN DASH} 0",
    ]
    wrong = replace(record, robust=replace(expected_accuracy(after), accuracy=0.7))
    with pytest.raises(UsageError, match=r"has robust = 70\.0% \(28.*, its rows give 62\.5% \(28"):
        page([make.finish(Run.open(run), wrong, columns)])


def test_runs_of_earlier_versions_are_shown_with_current_names(make: Any, known_interval: Any) -> None:
    """Other names of columns, of fields and of the suite; a gallery with another name of its column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = make.claim("run", "vit")
    folder = run.folder / "eval" / "adversarial-linf-8_255"
    folder.mkdir(parents=True)
    fell_to = ["clean", "apgd-ce", "apgd-ce", "", ""]
    columns = {"row": range(5), "id": list("abcde"), "label": [0] * 5, "clean_prediction": [1, 0, 0, 0, 0]}
    columns |= {"fell_to": fell_to, "size": [0.0, 0.02, 0.03, 0.0, 0.0], "clean_right": [0.0, 1.0, 1.0, 1.0, 1.0]}
    pq.write_table(pa.table({**columns, "right": [0.0, 0.0, 0.0, 1.0, 1.0]}), folder / "rows.parquet")
    attack = {"name": "apgd-ce", "tried": 4, "fell": 2, "forwards": 40, "backwards": 40, "seconds": 1, "denied": 3}
    summary = {"name": folder.name, "suite": "adversarial", "n": 5, "seconds": 1, "attacks": [attack], "flags": []}
    summary |= {"threat": {"norm": "linf", "eps": 8 / 255, "text": "linf:8/255"}, "clean": known_interval(4, 5)}
    write_json(folder / "summary.json", {**summary, "robust": known_interval(2, 5)})
    make.gallery(run.folder, folder.name, eps=8 / 255)
    with np.load(folder / "gallery.npz") as stored:
        arrays = {("fell_to" if name == "broken_by" else name): stored[name] for name in stored}
    np.savez(folder / "gallery.npz", **arrays)
    text = page([run.folder])
    assert attack_lines(text)[0].endswith("apgd-ce 4 2 40.0 40 40 1.0 \N{EN DASH} 3")
    assert "autoattack linf: only one eps" not in words(text)
    assert "autoattack linf: falls to zero" in words(text)
    assert re.findall(r'title="(\d+ [^"]*)"', text.split('<div class="bar">')[1].split("</div></div>")[0]) == [
        "2 robust",
        "2 broken by apgd-ce",
        "1 misclassified before any attack",
    ]
    assert "2 broken, largest 7.65/255, eps 8/255" in words(text)
    assert "broken by apgd-ce" in words(text.split('<section id="gallery">')[1])


def test_flags_are_counted_listed_and_linked(make: Any) -> None:
    run = Run.open(make.evaluate("run", "plain", {}))
    flag = Flag("zero_gradients", "Gradients are zero.", {"share": 0.25})
    make.attack(run, "linf-8_255", [""] * 9 + ["square"] * 400, 8 / 255, [flag])
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


def test_perturbations_are_gray_at_zero_and_black_or_white_at_eps(make: Any) -> None:
    run = make.evaluate("run", "plain", {8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    text = page([run])
    clean, adversarial, difference = (decode(a) for a in re.findall(r'<img src="([^"]*)"', text)[:3])
    assert (clean == 128).all()
    assert adversarial[0, :4, 0].tolist() == [120, 128, 136, 128]
    assert difference[0, :4, 1].tolist() == [0, 128, 255, 128]
    assert "±8/255" in text
    shown = words(text.split('<section id="gallery">')[1])
    assert "broken by apgd-ce" in shown
    assert "true dog , predicted dog → dog robust" in shown
    assert "misclassified before any attack" in shown


def test_other_norms_are_scaled_to_their_largest_change(make: Any) -> None:
    run = make.evaluate("run", "plain", {8: 3})
    make.gallery(run, "linf-8_255", eps=0.25, norm="l2")
    text = page([run])
    assert decode(re.findall(r'<img src="([^"]*)"', text)[2])[0, :3, 0].tolist() == [0, 128, 255]
    assert "±0.25" in text


def test_runs_of_one_name_are_distinguished_by_folder(make: Any) -> None:
    runs = [make.evaluate("first", "vit", {8: 3}), make.evaluate("second", "vit", {8: 9})]
    assert [row.model for row in summarize([*runs, runs[0]])] == ["vit (first)", "vit (second)"]


@pytest.mark.parametrize("damage", ["none", "no-run", "empty", "summary", "edited", "lost rows", "lost", "gallery"])
def test_invalid_runs_are_refused_with_advice(make: Any, tmp_path: Path, damage: str) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    messages = {
        "none": r"at least one run, got none\. Write: vitadel report",
        "no-run": r"is not a run folder: it has no manifest\.json",
        "empty": "nothing to report: no training log, no finished evaluation, no finished study. Let its",
        "summary": r"summary\.json lacks suite, threat, n, .*\. Delete .*summary\.json and run",
        "edited": r"has robust = 99\.0% \(4\.7%-44\.8%\), its rows give 7\.5% \(.*Delete .*summary\.json and run",
        "lost rows": r"rows\.parquet does not exist\. Run the same command again to have it made",
        "lost": r"summary\.json does not exist\. Run the same command again to have it made",
        "gallery": r"cannot read .*gallery\.npz: .*Delete it to report without its pictures",
    }
    if damage == "summary":
        write_json(run / "eval" / "linf-8_255" / "summary.json", {"name": "linf-8_255"})
    if damage == "edited":
        path = run / "eval" / "linf-8_255" / "summary.json"
        robust = {"correct": 3, "n": 40, "accuracy": 0.99, "low": 0.047, "high": 0.448}
        write_json(path, {**read_json(path), "robust": robust})
    if damage == "lost rows":
        (run / "eval" / "linf-8_255" / "rows.parquet").unlink()
    if damage == "lost":
        (run / "eval" / "linf-8_255" / "summary.json").unlink()
    if damage == "gallery":
        (run / "eval" / "linf-8_255" / "gallery.npz").write_bytes(b"not a zip")
    runs = {"none": [], "no-run": [tmp_path / "nowhere"], "empty": [make.evaluate("empty", "vit", {})]}
    with pytest.raises(UsageError, match=messages[damage]):
        write_report(runs.get(damage, [run]), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_flipped_bit_in_the_gallery_is_detected_or_harmless(make: Any) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    make.gallery(run, "linf-8_255", eps=8 / 255)
    path = run / "eval" / "linf-8_255" / "gallery.npz"
    whole, intact, detected = path.read_bytes(), Gallery.read(path), 0
    for place in range(0, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            result = Gallery.read(path)
        except UsageError:
            detected += 1
        else:
            np.testing.assert_array_equal(result.adversarial, intact.adversarial)
            np.testing.assert_array_equal(result.clean, intact.clean)
            assert (result.label, result.broken_by, result.eps) == (intact.label, intact.broken_by, intact.eps)
    assert detected > 50


def test_the_table_of_a_sweep_is_shown_and_one_without_its_axes_is_refused(make: Any) -> None:
    run = Run.claim(make.root / "sweep", "sweep", {"recipe": "digits"}, device="cpu").folder
    rows = tuple(CombinationRecord(f"lr={lr}", {"lr": lr}, "failed", "too large a step") for lr in ("0.1", "0.2"))
    record = SweepRecord("digits", ("lr",), None, None, None, None, rows)
    write_json(run / "table.json", record.to_json())
    assert page([run]).count("too large a step") == 2
    write_json(run / "table.json", {**record.to_json(), "axes": ["lr", "other"]})
    with pytest.raises(UsageError) as error:
        page([run])
    assert str(error.value) == (
        f"{run / 'table.json'}: the row 'lr=0.1' has no value of the axis 'other'. "
        "Delete it and run the same command again."
    )


def test_names_that_are_not_utf8_are_escaped(make: Any, tmp_path: Path) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    make.change(run, "vit-\udce9", "model", "name")
    make.change(run, "digits-\udce9", "data", "spec")
    out = write_report([run], tmp_path / "report.html")
    assert "vit-\\udce9" in out.read_text(encoding="utf-8")
    assert write_tables([run], tmp_path / "tables")


def test_a_folder_whose_name_is_not_utf8_is_reported(make: Any, tmp_path: Path) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    whole = page([run])
    renamed = run.rename(tmp_path / "run\udcff")
    assert page([renamed]) == whole.replace(">run<", ">run\\udcff<")


def test_an_invalid_output_path_is_refused(make: Any, tmp_path: Path) -> None:
    run = make.evaluate("run", "vit", {8: 3})
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path, tmp_path / "file" / "report.html"):
        with pytest.raises(UsageError, match=r"one file in a folder, got .*--out report\.html"):
            write_report([run], out)
    with pytest.raises(UsageError, match=r"cannot write .*Choose a folder you may write to"):
        write_report([run], Path("/proc/nowhere/report.html"))


def test_report_does_not_import_torch_and_summaries_do_not_import_matplotlib() -> None:
    code = "import sys, vitadel.report; print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize(("count", "folded"), [(8, False), (9, True)])
def test_many_models_are_described_on_demand(make: Any, count: int, folded: bool) -> None:
    text = page([make.evaluate(f"run{at}", f"model-{at}", {8: 10}) for at in range(count)])
    assert ("<summary>What they are" in text) is folded
    assert text.count("<li><span") >= count
