"""A study of masking on the page and as files, from a made-up result."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import write_json
from vitadel.report import write_figures, write_report
from vitadel.report.figures.base import PALETTE
from vitadel.report.figures.masking import curve_drawings
from vitadel.report.reader import collect
from vitadel.runs import Run

Interval = Callable[[int, int], dict[str, float]]
EDGES = [10 ** (k / 4 - 2) for k in range(41)]
HOSTILE = "<script>alert(1)</script>"


def result(interval: Interval, answer: str, left: int) -> dict[str, object]:
    """What the study would have written: 40 images, two attentions of two heads, `left` standing under attack."""

    def share(count: int) -> dict[str, float]:
        return interval(count, 40)

    def gaps(place: int, beyond: int) -> dict[str, object]:
        counts = [0] * 42
        counts[place] = 80
        one = {"rows": 80, "counts": counts, "beyond": [beyond] * 4, "median": 1.5, "max": 7.25}
        return {
            "all": {**one, "rows": 160, "counts": [2 * c for c in counts], "beyond": [2 * beyond] * 4},
            "heads": [one, one],
        }

    numbers = {"felled": 3, "felled_of": 40, "felled_share": 0.075, "felled_low": 0.0258, "felled_high": 0.1986}
    evidence = {"code": "square", "sentence": HOSTILE, "numbers": numbers, "points": "masked", "outcome": True}
    attack = {"name": "PGD, 20 steps", "tried": 36, "fell": 9, "share": share(9), "seconds": 1.5}
    return {
        "study": "masking",
        "threat": {"norm": "linf", "eps": 8 / 255, "text": "linf:8/255"},
        "settings": {"is": "Masking", "curve_steps": 20},
        "n": 40,
        "classes": 10,
        "clean": share(36),
        "verdict": {"answer": answer, "because": "it was made up", "evidence": [evidence]},
        "factors": {"attentions": [0.5, 0.01], "tried": 24},
        "lines": [{"name": str(gap), "gap": gap} for gap in (9.7, 16.6, 87.3, 103.3)],
        "edges": EDGES,
        "gaps": {
            "plain": [{"name": f"blocks.{i}.attn", **gaps(30, 80)} for i in range(2)],
            "scaled": [{"name": f"blocks.{i}.attn", **gaps(10, 0)} for i in range(2)],
        },
        "gradients": {},
        "eps": [{"eps": e / 255, "text": f"linf:{e}/255", "right": share(left)} for e in (8, 100)],
        "iterations": [{"steps": s, "pgd": share(left), "aas": share(left - 2)} for s in (10, 100)],
        "blocks": [
            {"blocks": k, "original": share(left), "rescaled": share(left - k), "rescaled_clean": share(35)}
            for k in (0, 1, 2)
        ],
        "attacks": [{**attack, "forwards": 720, "backwards": 700, "zero_gradients": 12}],
        "seconds": 12.0,
    }


def study(folder: Path, name: str, told: dict[str, object] | None) -> Path:
    parts = {"study": {"is": "Masking"}, "model": {"name": name, "sha256": "ab" * 32}, "seed": 0}
    run = Run.claim(folder, "analyze", parts, device="cpu")
    if told is not None:
        write_json(folder / "study" / "result.json", told)
    return run.folder


class Text(HTMLParser):
    """The words of the page's section on masking, and that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.open = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(page: Path) -> str:
    text = Text()
    text.feed(page.read_text())
    assert not text.open
    return " ".join(" ".join(text.words).split())


def test_one_study(tmp_path: Path, known_interval: Interval) -> None:
    run = study(tmp_path / "run", "pointer", result(known_interval, "masked", 30))
    page = write_report([run], tmp_path / "page.html")
    told = words(page)
    assert "Is the gradient hidden?" in told
    assert "verdict masked it was made up" in told
    assert f"points to masked: {HOSTILE} felled 7.5% [2.6\N{EN DASH}19.9]" in told
    assert HOSTILE not in page.read_text()
    assert "blocks.0.attn 160 1.5 7.25 100.00 100.00 100.00 100.00 1.5 7.25 0.00" in told
    assert "head 1 80" in told
    assert "factors 0.5, 0.01 (the best of 24 tried)" in told
    assert "PGD, 20 steps 36 9 22.5" in told
    assert page.read_text().count("<svg") == 4
    assert "mathdefault" not in page.read_text()
    first = page.read_bytes()
    assert write_report([run], page).read_bytes() == first


def test_two_studies_stand_side_by_side(tmp_path: Path, known_interval: Interval) -> None:
    before = study(tmp_path / "before", "model", result(known_interval, "masked", 30))
    after = study(tmp_path / "after", "model", result(known_interval, "not masked", 12))
    page = write_report([before, after], tmp_path / "page.html")
    told = words(page)
    assert "verdict masked it was made up not masked it was made up" in told
    assert "model (before)" in told
    assert "model (after)" in told
    # three curves that both share, and the gaps of each
    assert page.read_text().count("<svg") == 5
    assert told.count("shares of rows beyond the lines") == 2


def test_radii_of_two_norms_have_a_drawing_and_a_scale_each(tmp_path: Path, known_interval: Interval) -> None:
    linf = result(known_interval, "masked", 20)
    l2 = {**result(known_interval, "masked", 18), "threat": {"norm": "l2", "eps": 0.5, "text": "l2:0.5"}}
    l2["eps"] = [{"eps": eps, "text": f"l2:{eps}", "right": known_interval(18, 40)} for eps in (0.5, 2.0)]
    runs = [study(tmp_path / "a", "vit", linf), study(tmp_path / "b", "cnn", l2)]
    numbered = [(place, record.masking) for place, record in enumerate(collect(runs)) if record.masking]
    drawn = {one.title: one.svg for one in curve_drawings(numbered)}
    kinds = ("Accuracy and radius", "Accuracy and steps", "Accuracy and rescaled attentions")
    assert list(drawn) == [f"{kind} ({norm})" for kind in kinds for norm in ("linf", "l2")]
    first, second = drawn["Accuracy and radius (linf)"], drawn["Accuracy and radius (l2)"]
    assert "eps, in 1/255" in first
    assert ">100<" in first
    assert "eps (l2)" in second
    assert ">2.0<" in second
    assert PALETTE[1] not in first
    assert [one.title for one in curve_drawings(numbered[:1])] == list(kinds)


def test_figures_as_files(tmp_path: Path, known_interval: Interval) -> None:
    run = study(tmp_path / "run", "pointer", result(known_interval, "masked", 30))
    written = write_figures(run)
    names = [f"{name}{end}" for name in ("gaps", "eps", "iterations", "blocks") for end in (".png", ".pdf")]
    assert [path.name for path in written] == names
    bytes_ = [path.read_bytes() for path in written]
    assert all(b.startswith((b"\x89PNG", b"%PDF")) for b in bytes_)
    assert [path.read_bytes() for path in write_figures(run)] == bytes_
    assert write_figures(study(tmp_path / "empty", "pointer", None)) == []


def test_studies_that_cannot_be_shown(tmp_path: Path, known_interval: Interval) -> None:
    with pytest.raises(UsageError, match="nothing to report"):
        write_report([study(tmp_path / "empty", "pointer", None)], tmp_path / "page.html")
    told = result(known_interval, "masked", 30)
    broken = study(tmp_path / "broken", "pointer", {**told, "lines": 3})
    with pytest.raises(UsageError, match="result.json is not as the study wrote it .* Delete it"):
        write_report([broken], tmp_path / "page.html")
