"""Results of evaluations, printed as short tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitadel.attacks import Factors
from vitadel.core.errors import unknown_name_error
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy
from vitadel.runs.schema import AttackRecord, Measure, SuiteRecord

Summary = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShortTable:
    """A table of text: title, column names, rows, and notes below it."""

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
    """What `vd.evaluate` returns: the run folder, and one record per suite and radius.

    Args:
        run: The run folder, with one row per image under `eval/NAME/rows.parquet`.
        model: The name of the model in records.
        records: As written to `eval/NAME/summary.json`.
        assumption: What was assumed about the normalization of the model; empty if nothing.
    """

    run: Path
    model: str
    records: tuple[SuiteRecord, ...]
    assumption: str = ""

    def __iter__(self) -> Iterator[SuiteRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, name: str) -> SuiteRecord:
        """The record of this name, such as `quick-linf-8_255`; or of this suite, if it has only one record.

        Raises:
            UsageError: If there is no such record.
        """
        by_name = {record.name: record for record in self.records}
        of_suite = [record for record in self.records if record.suite == name]
        if name not in by_name and len(of_suite) == 1:
            return of_suite[0]
        if name not in by_name:
            raise unknown_name_error("record of this evaluation", name, by_name)
        return by_name[name]

    def to_dict(self) -> dict[str, object]:
        """Everything except pictures, as plain JSON values."""
        return {"run": str(self.run), "evaluations": [without_arrays(record.to_json()) for record in self.records]}

    def tables(self) -> list[ShortTable]:
        """One table for the suites of attacks, then one for every other suite."""
        attacked = [record for record in self.records if not record.measures]
        others = [_measures_table(self.model, record) for record in self.records if record.measures]
        return [*([_attack_table(self.model, attacked)] if attacked else []), *others]

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


@dataclass(frozen=True, slots=True, eq=False)
class Robustness:
    """What `vd.robustness` returns; accuracies are in [0, 1].

    Args:
        record: The numbers, as `vd.evaluate` writes them.
        broken_by: Per image the first attack that broke it; "clean" if the clean image is misclassified, "" if robust.
        prediction: Per image the class predicted for its adversarial example, or for the image itself.
        distance: Per image the distance of its adversarial example, in the threat's norm.
        x_adv: The adversarial examples; for robust images the last attempts.
        factors: The factors found for attention scaling; None without it.
        paper_protocol: Robust accuracy of the rescaled model itself, as the paper reports it.

    Example:
        >>> f"{result.clean_accuracy:.1%} -> {result.robust_accuracy:.1%}"
        '93.0% -> 41.3%'
    """

    record: SuiteRecord
    broken_by: Sequence[str]
    prediction: Sequence[int]
    distance: Sequence[float]
    x_adv: Tensor
    factors: Factors | None = None
    paper_protocol: Accuracy | None = None

    @property
    def clean(self) -> Accuracy:
        """Clean accuracy with its 95% interval."""
        assert self.record.clean is not None
        return self.record.clean

    @property
    def robust(self) -> Accuracy:
        """Robust accuracy after all attacks, with its 95% interval."""
        return self.record.robust or self.clean

    @property
    def clean_accuracy(self) -> float:
        return self.clean.accuracy

    @property
    def robust_accuracy(self) -> float:
        return self.robust.accuracy

    @property
    def attacks(self) -> Sequence[AttackRecord]:
        """The record of each attack: images tried and broken, and cost."""
        return self.record.attacks

    @property
    def flags(self) -> Sequence[Flag]:
        """Reasons why the numbers may be unreliable."""
        return self.record.flags

    @property
    def seconds(self) -> float:
        return self.record.seconds

    def to_dict(self) -> dict[str, object]:
        """The record and the per-image results as plain JSON values."""
        images = {"broken_by": self.broken_by, "prediction": self.prediction, "distance": self.distance}
        return {**self.record.to_json(), **{name: list(values) for name, values in images.items()}}

    def tables(self) -> list[ShortTable]:
        """The accuracies, and a row per attack."""
        rows = [
            [one.name, str(one.tried), str(one.broken), str(one.forwards), str(one.backwards), f"{one.seconds:.1f}"]
            for one in self.attacks
        ]
        columns = ["attack", "tried", "broken", "forwards", "backwards", "seconds"]
        return [_attack_table("", [self.record]), *([ShortTable("", columns, rows)] if rows else [])]

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def without_arrays(result: Summary) -> dict[str, object]:
    """A result without pixels of pictures and without histograms, which are in the run folder."""
    pruned = _pruned(dict(result), ("cells", "panels", "counts", "edges"))
    assert isinstance(pruned, dict)
    return pruned


def _pruned(value: object, names: Sequence[str]) -> object:
    if isinstance(value, dict):
        return {key: _pruned(inner, names) for key, inner in value.items() if key not in names}
    return [_pruned(inner, names) for inner in value] if isinstance(value, list) else value


def _attack_table(model: str, records: Sequence[SuiteRecord]) -> ShortTable:
    columns, rows, notes = ["threat", "images", "clean", "robust", "flags"], [], []
    with_scaling = any(record.scaling for record in records)
    for record in records:
        row = [record.threat.text if record.threat else "-", str(record.n), _accuracy(record.clean)]
        row += [_accuracy(record.robust), str(len(record.flags))]
        scored_on = "rescaled" if any(flag.code == "rescaled-model" for flag in record.flags) else "model"
        rows.append([scored_on, *row] if with_scaling else row)
        if record.scaling:
            notes.append(f"{record.name}: {_factors(record.scaling)}; `rescaled` is the paper's protocol")
        notes += _flags(record)
    return ShortTable(model, ["scored on", *columns] if with_scaling else columns, rows, notes)


def _measures_table(model: str, record: SuiteRecord) -> ShortTable:
    rows = [[one.name, _number(one.value, one), _interval(one), str(one.n or "-")] for one in record.measures]
    columns = ["measure", "value", "95% interval", "images"]
    return ShortTable(f"{record.title}: {model}", columns, rows, [record.sentence, *_flags(record)])


def _factors(record: Mapping[str, Any]) -> str:
    factors = record["factors"]
    each = factors["attentions"]
    # older records say `felled` and `of`
    broken, num_images = (
        factors.get(new, factors.get(old)) for new, old in (("broken", "felled"), ("num_images", "of"))
    )
    trial = "" if broken is None else f"; a short attack broke {broken} of {num_images}"
    where = {"train": "training", "evaluated": "evaluated"}.get(str(record.get("split")))
    where = "" if where is None else f", found on {record['images']} {where} images"
    if not each:
        return f"logits scaled by {factors['logits']:.2g}{where}{trial}"
    return f"{len(each)} attentions scaled by {min(each):.2g} to {max(each):.2g}{where}{trial}"


def _flags(record: SuiteRecord) -> list[str]:
    return [f"{record.name}: {flag.sentence} ({flag.code})" for flag in record.flags]


def _accuracy(value: Accuracy | None) -> str:
    return "-" if value is None else f"{value.accuracy:.1%} ({value.low:.1%}-{value.high:.1%})"


def _interval(measure: Measure) -> str:
    if measure.low is None or measure.high is None:
        return "-"
    return f"{_number(measure.low, measure)}-{_number(measure.high, measure)}"


def _number(value: float | None, measure: Measure) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if measure.is_share else f"{value:.1f}"
