"""One self-contained page from run folders."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.core.errors import UsageError
from vitadel.core.files import write_whole
from vitadel.report import checks, identity, tables
from vitadel.report.comparison.view import board
from vitadel.report.exhibits import Exhibit, Findings, Table, alike
from vitadel.report.figures import base, exhibits, masking, pictures
from vitadel.report.manifest_text import provenance, sentence
from vitadel.report.masking import Masking
from vitadel.report.reader import collect, curves
from vitadel.report.records import Curve, Evaluation, Record
from vitadel.report.surveys import Measure, Survey

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a survival bar, in images and in percent of all of them."""

    name: str
    kind: str
    count: int
    percent: float


@dataclass(frozen=True, slots=True)
class Line:
    """One evaluation as the page shows it in its several places."""

    anchor: str
    evaluation: Evaluation
    row: tables.SummaryRow
    checks: tuple[checks.Check, ...]
    bar: tuple[Segment, ...]
    cards: tuple[pictures.Card, ...]
    pixelated: bool

    @property
    def failed(self) -> int:
        return _failed(self.checks)


@dataclass(frozen=True, slots=True)
class Block:
    """One run as the page shows it."""

    record: Record
    number: int
    lines: tuple[Line, ...]
    curves: tuple[tuple[Curve, tuple[checks.Check, ...]], ...]
    provenance: tuple[tuple[str, str], ...]

    @property
    def failed(self) -> int:
        return sum(_failed(made) for _, made in self.curves)

    @property
    def swept(self) -> bool:
        return any(curve.swept for curve, _ in self.curves)

    @property
    def has_bars(self) -> bool:
        return any(line.bar for line in self.lines)

    @property
    def opened(self) -> Line | None:
        """The gallery a reader sees first: a middle one, where images both fall and stand."""
        shown = [line for line in self.lines if line.cards]
        return shown[len(shown) // 2] if shown else None

    @property
    def has_cards(self) -> bool:
        return self.opened is not None

    @property
    def glyph(self) -> str:
        return base.glyph(self.number)

    @property
    def color(self) -> str:
        return base.color(self.number)


@dataclass(frozen=True, slots=True)
class Panel:
    """One exhibit of one run: a figure or a table."""

    block: Block
    drawing: base.Drawing | None
    table: Table | None


@dataclass(frozen=True, slots=True)
class Stand:
    """The same exhibit of every run that has it; runs that say the same of it share the caption."""

    title: str
    panels: tuple[Panel, ...]
    captions: tuple[tuple[tuple[Block, ...], str], ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One study, of all the runs that carried it out."""

    study: str
    title: str
    summaries: tuple[tuple[Block, str], ...]
    stands: tuple[Stand, ...]


@dataclass(frozen=True, slots=True)
class SurveyChapter:
    """One survey, of all the runs that carried it out; `measures` are rows of a table with a cell for each of them."""

    anchor: str
    title: str
    found: tuple[tuple[Block, Survey], ...]
    measures: tuple[tuple[Measure, tuple[Measure | None, ...]], ...]
    stands: tuple[Stand, ...]
    conventions: tuple[tuple[tuple[Block, ...], str], ...]

    @property
    def has_clean(self) -> bool:
        return any(survey.clean for _, survey in self.found)


def write_report(runs: Sequence[Path], out: Path, *, baseline: str | None = None) -> Path:
    """Write the page about `runs` to `out` and return it; the same runs always give the same bytes.

    Where several models were evaluated they are compared, and with a `baseline`, the name of one of them, to that.
    """
    if out.is_dir() or (out.parent.exists() and not out.parent.is_dir()):
        raise UsageError(f"a report is one file in a folder, got {out}. Write for example --out report.html")
    text = render(collect(runs), baseline)
    write_whole(out, lambda beside: _write(beside, text))
    return out


def render(records: Sequence[Record], baseline: str | None = None) -> str:
    """The page as text."""
    import jinja2

    loader = jinja2.FileSystemLoader(_HERE)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(**_content(records, baseline)) + "\n"


def _write(beside: Path, text: str) -> None:
    beside.write_text(text, encoding="utf-8", errors="backslashreplace")


def _content(records: Sequence[Record], baseline: str | None) -> dict[str, object]:
    rows = tables.summary_rows(records)
    models = identity.identities(records)
    numbers = identity.numbers(models)
    blocks = _blocks(records, rows, numbers)
    table = board(records, numbers, baseline)
    first = {block.record.label: block for block in reversed(blocks)}
    drawn = [curve for block in blocks for curve, _ in block.curves]
    return {
        "css": (_HERE / "page.css").read_text(encoding="utf-8"),
        "title": _title(identity.names(models)),
        "models": [
            (block, sentence([r for r in records if r.label == block.record.label]))
            for block in reversed(first.values())
        ],
        "blocks": blocks,
        "measured": [block for block in blocks if block.lines],
        "trained": [block for block in blocks if block.record.training],
        "sweeps": [block for block in blocks if block.record.sweep],
        "studied": [block for block in blocks if block.record.masking],
        "evidence_codes": list(dict.fromkeys(e.code for _, study in _studies(blocks) for e in study.evidence)),
        "gap_drawings": _gap_drawings(blocks),
        "masking_drawings": masking.curve_drawings(_studies(blocks)),
        "chapters": _chapters(blocks),
        "board": table,
        "surveys": _survey_chapters(blocks),
        "legend": _attack_legend(blocks),
        "curve_drawings": base.curve_drawings(drawn, numbers),
        "strokes": base.strokes(drawn, numbers),
        "holdout_robust": any(s.event == "holdout" and s.name == "robust" for r in records for s in r.training),
        "training_drawings": base.training_drawings(records, numbers),
        "markdown": tables.markdown(rows) if rows else "",
        "latex": tables.latex(rows) if rows else "",
        "attack_rows": sum(len(evaluation.attacks) for record in records for evaluation in record.evaluations),
        "is_expected": any(evaluation.is_expected for record in records for evaluation in record.evaluations),
        "PASS": checks.State.PASS,
        "FAIL": checks.State.FAIL,
    }


def _studies(blocks: Sequence[Block]) -> list[tuple[int, Masking]]:
    return [(block.number, block.record.masking) for block in blocks if block.record.masking is not None]


def _gap_drawings(blocks: Sequence[Block]) -> list[base.Drawing]:
    """One drawing per study; two and more stand side by side, so each is narrower."""
    studies = _studies(blocks)
    widest = 4 if len(studies) == 1 else 2
    return [masking.gap_drawing(one, number, min(widest, len(one.plain))) for number, one in studies]


def _chapters(blocks: Sequence[Block]) -> list[Chapter]:
    told: dict[str, list[tuple[Block, Findings]]] = {}
    for block in blocks:
        if block.record.findings is not None:
            told.setdefault(block.record.findings.study, []).append((block, block.record.findings))
    return [_chapter(study, found) for study, found in told.items()]


def _chapter(study: str, found: Sequence[tuple[Block, Findings]]) -> Chapter:
    summaries = tuple((block, findings.summary) for block, findings in found)
    stands = _stands(study, [(block, exhibit) for block, findings in found for exhibit in findings.exhibits])
    return Chapter(study, found[0][1].title, summaries, stands)


def _stands(name: str, pairs: Sequence[tuple[Block, Exhibit]]) -> tuple[Stand, ...]:
    shown: dict[tuple[type[Exhibit], str], list[tuple[Block, Exhibit]]] = {}
    for block, exhibit in pairs:
        shown.setdefault((type(exhibit), exhibit.title), []).append((block, exhibit))
    return tuple(_stand(f"{name}-{number}", same) for number, same in enumerate(shown.values()))


def _survey_chapters(blocks: Sequence[Block]) -> list[SurveyChapter]:
    told: dict[str, list[tuple[Block, Survey]]] = {}
    for block in blocks:
        for survey in block.record.surveys:
            told.setdefault(survey.suite, []).append((block, survey))
    return [_survey_chapter(f"survey-{place}", found) for place, found in enumerate(told.values())]


def _survey_chapter(anchor: str, found: Sequence[tuple[Block, Survey]]) -> SurveyChapter:
    own = [{(measure.name, measure.kind): measure for measure in survey.measures} for _, survey in found]
    known = {key: measure for mine in reversed(own) for key, measure in mine.items()}
    order = dict.fromkeys(key for mine in own for key in mine)
    conventions: dict[str, list[Block]] = {}
    for block, survey in found:
        conventions.setdefault("; ".join(f"{key}: {value}" for key, value in survey.conventions), []).append(block)
    return SurveyChapter(
        anchor=anchor,
        title=found[0][1].title,
        found=tuple(found),
        measures=tuple((known[key], tuple(mine.get(key) for mine in own)) for key in order),
        stands=_stands(anchor, [(block, exhibit) for block, survey in found for exhibit in survey.exhibits]),
        conventions=tuple((tuple(whose), text) for text, whose in conventions.items() if text),
    )


def _stand(name: str, pairs: Sequence[tuple[Block, Exhibit]]) -> Stand:
    blocks, exhibits = [block for block, _ in pairs], alike([exhibit for _, exhibit in pairs])
    panels = [_panel(f"{name}-{place}", *pair) for place, pair in enumerate(zip(blocks, exhibits, strict=True))]
    captions: dict[str, list[Block]] = {}
    for block, exhibit in zip(blocks, exhibits, strict=True):
        captions.setdefault(exhibit.caption, []).append(block)
    return Stand(exhibits[0].title, tuple(panels), tuple((tuple(whose), text) for text, whose in captions.items()))


def _panel(name: str, block: Block, exhibit: Exhibit) -> Panel:
    if isinstance(exhibit, Table):
        return Panel(block, None, exhibit)
    return Panel(block, exhibits.exhibit_drawing(exhibit, name), None)


def _title(models: Sequence[str]) -> str:
    if len(models) <= 2:
        return "Robustness of " + " and ".join(models)
    return f"Robustness of {len(models)} models"


def _blocks(
    records: Sequence[Record], rows: Sequence[tables.SummaryRow], numbers: Mapping[str, int]
) -> tuple[Block, ...]:
    galleries = sum(pictures.has_gallery(e) for record in records for e in record.evaluations)
    left = iter(rows)
    return tuple(
        Block(
            record=record,
            number=numbers[record.label],
            lines=tuple(_line(f"r{r}e{e}", ev, next(left), galleries) for e, ev in enumerate(record.evaluations)),
            curves=tuple((curve, checks.of_curve(curve)) for curve in curves(record)),
            provenance=tuple(provenance(record)),
        )
        for r, record in enumerate(records)
    )


def _line(anchor: str, evaluation: Evaluation, row: tables.SummaryRow, galleries: int) -> Line:
    gallery = evaluation.gallery if pictures.has_gallery(evaluation) else None
    return Line(
        anchor=anchor,
        evaluation=evaluation,
        row=row,
        checks=checks.of_evaluation(evaluation),
        bar=_bar(evaluation),
        cards=pictures.cards(gallery, galleries=galleries) if gallery else (),
        pixelated=pictures.pixelated(gallery) if gallery else False,
    )


def _failed(made: Sequence[checks.Check]) -> int:
    return sum(check.state is checks.State.FAIL for check in made)


def _bar(evaluation: Evaluation) -> tuple[Segment, ...]:
    """What became of the images: standing, fallen to each attack in the suite's order, wrong before."""
    if evaluation.robust is None or not evaluation.fell_to:
        return ()
    counts = Counter(evaluation.fell_to)
    attacks = [name for name in dict.fromkeys([*(a.name for a in evaluation.attacks), *sorted(counts)]) if name]
    order = [("", "stands"), *((name, "fell") for name in attacks if name != "clean"), ("clean", "wrong")]
    n = len(evaluation.fell_to)
    return tuple(Segment(name, kind, counts[name], 100 * counts[name] / n) for name, kind in order if counts[name])


def _attack_legend(blocks: Sequence[Block]) -> list[str]:
    """Every attack that felled an image, in the order the suites run them; the place chooses the shade."""
    lines = [line for block in blocks for line in block.lines]
    fell = {segment.name: None for line in lines for segment in line.bar if segment.kind == "fell"}
    in_order = dict.fromkeys(attack.name for line in lines for attack in line.evaluation.attacks)
    return [*(name for name in in_order if name in fell), *(name for name in fell if name not in in_order)]
