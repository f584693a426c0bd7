"""One self-contained HTML page from run folders."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vitadel.core.errors import UsageError
from vitadel.report import summary, text
from vitadel.report.checks import Check, State, check_curve, check_evaluation
from vitadel.report.comparison.view import comparison_view
from vitadel.report.figures import curves
from vitadel.report.figures.exhibits import exhibit_drawing, with_common_range
from vitadel.report.figures.gallery import Card, cards, pixelated
from vitadel.report.figures.style import PALETTE, Drawing, color, glyph
from vitadel.report.labels import color_numbers, identities, model_names
from vitadel.report.reader import Curve, EvaluatedSuite, RunRecord, read_runs
from vitadel.runs.exhibits import Exhibit, Table
from vitadel.runs.schema import ROBUST, WRONG_BEFORE, Gallery, Measure, StudyRecord

_TEMPLATES = Path(__file__).parent / "templates"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar of an evaluation, in images and in percent of all of them."""

    name: str
    kind: str
    count: int
    percent: float


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """One evaluation on the page."""

    anchor: str
    evaluation: EvaluatedSuite
    row: summary.SummaryRow
    checks: tuple[Check, ...]
    bar: tuple[Segment, ...]
    cards: tuple[Card, ...]
    pixelated: bool

    @property
    def failed(self) -> int:
        """How many checks fail."""
        return _failed(self.checks)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as the page shows it."""

    record: RunRecord
    number: int
    evaluations: tuple[EvaluationView, ...]
    curves: tuple[tuple[Curve, tuple[Check, ...]], ...]
    provenance: tuple[tuple[str, str], ...]

    @property
    def failed(self) -> int:
        """How many checks of curves fail."""
        return sum(_failed(checks) for _, checks in self.curves)

    @property
    def has_curve(self) -> bool:
        """Whether it was attacked at several radii."""
        return any(curve.has_several_radii for curve, _ in self.curves)

    @property
    def has_bars(self) -> bool:
        """Whether it was attacked."""
        return any(view.bar for view in self.evaluations)

    @property
    def open_gallery(self) -> EvaluationView | None:
        """The gallery that is open initially: one of a middle radius, where some images are broken and some robust."""
        shown = [view for view in self.evaluations if view.cards]
        return shown[len(shown) // 2] if shown else None


@dataclass(frozen=True, slots=True)
class Panel:
    """One exhibit of one run: a figure or a table."""

    run: RunView
    drawing: Drawing | None
    table: Table | None


@dataclass(frozen=True, slots=True)
class ExhibitGroup:
    """The same exhibit of several runs; runs with the same caption share it."""

    title: str
    panels: tuple[Panel, ...]
    captions: tuple[tuple[list[RunView], str], ...]


@dataclass(frozen=True, slots=True)
class StudySection:
    """One study, of all runs that have it."""

    anchor: str
    title: str
    results: tuple[tuple[RunView, StudyRecord], ...]
    groups: tuple[ExhibitGroup, ...]


@dataclass(frozen=True, slots=True)
class SuiteSection:
    """One suite of perturbations, of all the runs that were evaluated with it.

    Args:
        anchor: Its id in the page.
        title: Its title.
        results: Its summaries.
        measures: Rows of a table, with a cell for each result.
        groups: What it shows.
        conventions: What else determines the numbers, and of which runs.
    """

    anchor: str
    title: str
    results: tuple[tuple[RunView, EvaluatedSuite], ...]
    measures: tuple[tuple[Measure, tuple[Measure | None, ...]], ...]
    groups: tuple[ExhibitGroup, ...]
    conventions: tuple[tuple[list[RunView], str], ...]


def write_report(runs: Sequence[Path], out: Path, *, baseline: str | None = None) -> Path:
    """Write the page about some runs; the same runs always give the same bytes.

    Args:
        runs: Run folders.
        out: The file to write.
        baseline: The name of a model that the others are compared with.

    Returns:
        The file.

    Raises:
        UsageError: If one of the folders cannot be read, or the file not be written.
    """
    if out.is_dir() or (out.parent.exists() and not out.parent.is_dir()):
        raise UsageError(f"a report is one file in a folder, got {out}. Write for example --out report.html")
    return text.write_file(out, _render(read_runs(runs), baseline))


def _render(records: Sequence[RunRecord], baseline: str | None) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(**_content(records, baseline)) + "\n"


def _content(records: Sequence[RunRecord], baseline: str | None) -> dict[str, object]:
    """What the template shows."""
    rows, models = summary.summary_rows(records), identities(records)
    numbers = color_numbers(models, len(PALETTE))
    runs = _runs(records, rows, numbers)
    first = {run.record.label: run for run in reversed(runs)}
    drawn = [curve for run in runs for curve, _ in run.curves]
    return {
        "css": (_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        "title": _title(model_names(models)),
        "models": [
            (run, _sentence([r for r in records if r.label == run.record.label])) for run in reversed(first.values())
        ],
        "runs": runs,
        "attacked": [run for run in runs if run.evaluations],
        "trained": [run for run in runs if run.record.training],
        "sweeps": [run for run in runs if run.record.sweep],
        "studies": _study_sections(runs),
        "comparison": comparison_view(records, numbers, baseline),
        "suites": _suite_sections(runs),
        "legend": _attack_legend(runs),
        "curve_drawings": curves.curve_drawings(drawn, numbers),
        "strokes": curves.strokes(drawn, numbers),
        "holdout_robust": any(s.event == "holdout" and s.name == "robust" for r in records for s in r.training),
        "training_drawings": curves.training_drawings(records, numbers),
        "markdown": summary.markdown(rows) if rows else "",
        "latex": summary.latex(rows) if rows else "",
        "attack_rows": sum(len(evaluation.record.attacks) for record in records for evaluation in record.attacks),
        "is_randomized": any(evaluation.is_randomized for record in records for evaluation in record.attacks),
        "glyph": glyph,
        "color": color,
        "number": text.number,
        "parameters": text.parameters_text,
        "interval": text.interval,
        "evidence": text.evidence,
        "PASS": State.PASS,
        "FAIL": State.FAIL,
    }


def _title(models: Sequence[str]) -> str:
    return "Robustness of " + (" and ".join(models) if len(models) <= 2 else f"{len(models)} models")


def _sentence(records: Sequence[RunRecord]) -> str:
    """What a model is, from all the runs that trained or measured it."""
    words = [part for record in records for part in text.description(record) if part]
    return "; ".join(dict.fromkeys(words)) + "."


def _runs(
    records: Sequence[RunRecord], rows: Sequence[summary.SummaryRow], numbers: Mapping[str, int]
) -> tuple[RunView, ...]:
    galleries = sum(_has_images(one.gallery) for record in records for one in record.attacks)
    left = iter(rows)
    return tuple(
        RunView(
            record=record,
            number=numbers[record.label],
            evaluations=tuple(
                _evaluation(f"r{r}e{e}", one, next(left), galleries) for e, one in enumerate(record.attacks)
            ),
            curves=tuple((curve, check_curve(curve)) for curve in record.curves),
            provenance=tuple(text.provenance(record.folder, record.manifest)),
        )
        for r, record in enumerate(records)
    )


def _evaluation(anchor: str, evaluation: EvaluatedSuite, row: summary.SummaryRow, galleries: int) -> EvaluationView:
    gallery = evaluation.gallery if _has_images(evaluation.gallery) else None
    threat = evaluation.record.threat
    unit = threat.unit if threat and gallery and threat.norm == gallery.norm else ""
    return EvaluationView(
        anchor=anchor,
        evaluation=evaluation,
        row=row,
        checks=check_evaluation(evaluation),
        bar=_bar(evaluation),
        cards=cards(gallery, unit=unit, galleries=galleries) if gallery else (),
        pixelated=pixelated(gallery) if gallery else False,
    )


def _has_images(gallery: Gallery | None) -> bool:
    return gallery is not None and len(gallery.clean) > 0


def _failed(checks: Sequence[Check]) -> int:
    return sum(check.state is State.FAIL for check in checks)


def _bar(evaluation: EvaluatedSuite) -> tuple[Segment, ...]:
    """How many images are robust, broken by each attack in the suite's order, misclassified before any."""
    broken_by, attacks = evaluation.rows.broken_by, evaluation.record.attacks
    if evaluation.record.robust is None or not broken_by:
        return ()
    counts = Counter(broken_by)
    names = dict.fromkeys([*(attack.name for attack in attacks), *sorted(counts)])
    broken = [(name, "broken") for name in names if name not in (ROBUST, WRONG_BEFORE)]
    order = [(ROBUST, "robust"), *broken, (WRONG_BEFORE, "wrong")]
    return tuple(
        Segment(name, kind, counts[name], 100 * counts[name] / len(broken_by)) for name, kind in order if counts[name]
    )


def _attack_legend(runs: Sequence[RunView]) -> list[str]:
    """Every attack that broke an image, in the order of the suites; its index chooses the shade."""
    views = [view for run in runs for view in run.evaluations]
    broke = {segment.name: None for view in views for segment in view.bar if segment.kind == "broken"}
    in_order = dict.fromkeys(attack.name for view in views for attack in view.evaluation.record.attacks)
    return [*(name for name in in_order if name in broke), *(name for name in broke if name not in in_order)]


# ---------------------------------------------- studies, suites, exhibits


def _grouped(pairs: Sequence[tuple[RunView, _T]], key: Callable[[_T], object]) -> list[list[tuple[RunView, _T]]]:
    """The pairs whose second parts have the same key, together."""
    groups: dict[object, list[tuple[RunView, _T]]] = {}
    for run, one in pairs:
        groups.setdefault(key(one), []).append((run, one))
    return list(groups.values())


def _by_text(pairs: Sequence[tuple[RunView, str]]) -> tuple[tuple[list[RunView], str], ...]:
    """Texts, each with all runs that have it."""
    return tuple(([run for run, _ in same], same[0][1]) for same in _grouped(pairs, str))


def _study_sections(runs: Sequence[RunView]) -> list[StudySection]:
    results = [(run, run.record.study) for run in runs if run.record.study is not None]
    return [_study_section(f"study-{same[0][1].study}", same) for same in _grouped(results, lambda one: one.study)]


def _study_section(anchor: str, results: Sequence[tuple[RunView, StudyRecord]]) -> StudySection:
    exhibits = [(run, exhibit) for run, study in results for exhibit in study.exhibits]
    return StudySection(anchor, results[0][1].title, tuple(results), _groups(anchor.removeprefix("study-"), exhibits))


def _suite_sections(runs: Sequence[RunView]) -> list[SuiteSection]:
    results = [(run, evaluation) for run in runs for evaluation in run.record.perturbations]
    groups = _grouped(results, lambda one: one.record.suite)
    return [_suite_section(f"suite-{number}", same) for number, same in enumerate(groups)]


def _suite_section(anchor: str, results: Sequence[tuple[RunView, EvaluatedSuite]]) -> SuiteSection:
    own = [{(one.name, one.kind): one for one in evaluation.record.measures} for _, evaluation in results]
    known = {key: measure for mine in reversed(own) for key, measure in mine.items()}
    order = dict.fromkeys(key for mine in own for key in mine)
    conventions = [(run, _conventions(evaluation)) for run, evaluation in results]
    return SuiteSection(
        anchor=anchor,
        title=results[0][1].record.title,
        results=tuple(results),
        measures=tuple((known[key], tuple(mine.get(key) for mine in own)) for key in order),
        groups=_groups(anchor, [(run, exhibit) for run, one in results for exhibit in one.record.exhibits]),
        conventions=tuple(pair for pair in _by_text(conventions) if pair[1]),
    )


def _conventions(evaluation: EvaluatedSuite) -> str:
    items = (evaluation.record.conventions or {}).items()
    return "; ".join(f"{key}: {text.compact(value)}" for key, value in items)


def _groups(name: str, exhibits: Sequence[tuple[RunView, Exhibit]]) -> tuple[ExhibitGroup, ...]:
    groups = _grouped(exhibits, lambda one: (type(one), one.title))
    return tuple(_group(f"{name}-{number}", same) for number, same in enumerate(groups))


def _group(name: str, pairs: Sequence[tuple[RunView, Exhibit]]) -> ExhibitGroup:
    runs, exhibits = [run for run, _ in pairs], with_common_range([exhibit for _, exhibit in pairs])
    panels = [_panel(f"{name}-{i}", *pair) for i, pair in enumerate(zip(runs, exhibits, strict=True))]
    captions = _by_text([(run, exhibit.caption) for run, exhibit in zip(runs, exhibits, strict=True)])
    return ExhibitGroup(exhibits[0].title, tuple(panels), captions)


def _panel(name: str, run: RunView, exhibit: Exhibit) -> Panel:
    if isinstance(exhibit, Table):
        return Panel(run, None, exhibit)
    return Panel(run, exhibit_drawing(exhibit, name), None)
