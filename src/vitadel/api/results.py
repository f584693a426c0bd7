"""What evaluations and studies return, as short tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# kinds of measures that are shares, shown in percent
_SHARES = ("accuracy", "error", "bias", "share")

Summary = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShortTable:
    """A table of text: a title, names of columns, rows, and lines below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        cells = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        )
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `vd.evaluate` returns: the run folder, and a summary per suite and radius.

    Args:
        run: The run folder, with one row per image under `eval/NAME/rows.parquet`.
        model: What records call the model.
        summaries: As written to `eval/NAME/summary.json`.
        assumption: What had to be assumed of the model's normalization; empty if nothing.
    """

    run: Path
    model: str
    summaries: tuple[Summary, ...]
    assumption: str = ""

    def __iter__(self) -> Iterator[Summary]:
        return iter(self.summaries)

    def __len__(self) -> int:
        return len(self.summaries)

    def __getitem__(self, name: str) -> Summary:
        """The summary of this name, such as `quick-linf-8_255` or `corruptions`."""
        return {str(summary["name"]): summary for summary in self.summaries}[name]

    def to_dict(self) -> dict[str, object]:
        """Everything but pictures as plain JSON values."""
        return {"run": str(self.run), "evaluations": [without_bulk(summary) for summary in self.summaries]}

    def tables(self) -> list[ShortTable]:
        """Attacks in one table, then a table for every other suite."""
        attacked = [summary for summary in self.summaries if "measures" not in summary]
        others = [summary for summary in self.summaries if "measures" in summary]
        return [*([_attack_table(self.model, attacked)] if attacked else []), *map(self._measures_table, others)]

    def _measures_table(self, summary: Summary) -> ShortTable:
        measures = _mappings(summary["measures"])
        rows = [[str(one["name"]), _value(one), _interval(one), str(one["n"] or "-")] for one in measures]
        title = f"{summary['title']}: {self.model}"
        return ShortTable(
            title, ["measure", "value", "95% interval", "images"], rows, [str(summary["sentence"]), *_flags(summary)]
        )

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def without_bulk(result: Summary) -> dict[str, object]:
    """A result without the pixels of its pictures and without histograms, which are in the run folder."""
    exhibits = result.get("exhibits")
    if isinstance(exhibits, list):
        return {**result, "exhibits": [_pruned(one, ("cells",)) for one in exhibits]}
    pruned = _pruned(dict(result), ("counts", "edges"))
    assert isinstance(pruned, dict)
    return pruned


def _pruned(value: object, names: Sequence[str]) -> object:
    if isinstance(value, dict):
        return {key: _pruned(inner, names) for key, inner in value.items() if key not in names}
    return [_pruned(inner, names) for inner in value] if isinstance(value, list) else value


def _attack_table(model: str, summaries: Sequence[Summary]) -> ShortTable:
    columns, rows, notes = ["threat", "images", "clean", "robust", "flags"], [], []
    with_scaling = any("scaling" in summary for summary in summaries)
    for summary in summaries:
        threat = summary["threat"]
        text = str(threat["text"]) if isinstance(threat, dict) else "-"
        row = [text, str(summary["n"]), _accuracy(summary["clean"]), _accuracy(summary["robust"])]
        row.append(str(len(_mappings(summary["flags"]))))
        rows.append([_scored_on(summary), *row] if with_scaling else row)
        if isinstance(scaling := summary.get("scaling"), dict):
            notes.append(f"{summary['name']}: {_factors(scaling['factors'])}; `rescaled` is the paper's protocol")
        notes += _flags(summary)
    return ShortTable(model, ["scored on", *columns] if with_scaling else columns, rows, notes)


def _scored_on(summary: Summary) -> str:
    from vitadel.evaluate import PAPER_PROTOCOL

    return "rescaled" if str(summary["suite"]).endswith(PAPER_PROTOCOL) else "model"


def _factors(factors: Mapping[str, object]) -> str:
    each = factors["attentions"]
    assert isinstance(each, list)
    probe = "" if factors["felled"] is None else f"; a short attack broke {factors['felled']} of {factors['of']}"
    return f"{len(each)} attentions scaled by {min(each):.2g} to {max(each):.2g}{probe}"


def _flags(summary: Summary) -> list[str]:
    return [f"{summary['name']}: {flag['sentence']} ({flag['code']})" for flag in _mappings(summary["flags"])]


def _mappings(value: object) -> list[Summary]:
    assert isinstance(value, list)
    return value


def _accuracy(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    return f"{value['accuracy']:.1%} ({value['low']:.1%}-{value['high']:.1%})"


def _value(measure: Summary) -> str:
    return _number(measure["value"], str(measure["kind"]))


def _interval(measure: Summary) -> str:
    if measure["low"] is None or measure["high"] is None:
        return "-"
    kind = str(measure["kind"])
    return f"{_number(measure['low'], kind)}-{_number(measure['high'], kind)}"


def _number(value: object, kind: str) -> str:
    assert isinstance(value, int | float)
    return f"{value:.1%}" if kind in _SHARES else f"{value:.1f}"
