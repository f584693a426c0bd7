"""What every row of a sweep is evaluated with, and the columns that this makes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitadel import data
from vitadel.core.errors import UsageError
from vitadel.core.files import slug
from vitadel.evaluate import PAPER_PROTOCOL, Suite
from vitadel.evaluate.parsing import as_suites
from vitadel.runs.schema import Measure, SuiteRecord
from vitadel.threats import Threat, parse_threat

# suites of images of their own, and the kind of data set that has them
OWN_IMAGES = {"imagenet-a": "imagenet-a", "imagenet-r": "imagenet-r", "shape-bias": "cue-conflict"}
_CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: an evaluation of every row, and the measure that is shown.

    Args:
        name: The heading of the column.
        evaluation: A suite, or text of a suite or an attack, as for `--suite` and `--attack`.
        threat: Its threat model, if different from the table's.
        scaling: Attention scaling, as for `--scaling`.
        rescaled: Whether the rescaled model is scored instead of the model, as by Jain & Dutta.
        measure: The number: `clean`, or the name of a measure of the suite; the main one by default.
        source: The source of settings that the paper does not state.
        published: The column of the published table that it is compared with, if its name is different.
    """

    name: str
    evaluation: str | Suite
    threat: str = ""
    scaling: str = ""
    rescaled: bool = False
    measure: str = ""
    source: str = ""
    published: str = ""

    @property
    def printed_as(self) -> str:
        """The column of the published table that it is compared with."""
        return self.published or self.name

    @property
    def suite(self) -> Suite:
        """The suite; that of a single attack is named after its text, so that a run can have several."""
        if not isinstance(self.evaluation, str):
            return self.evaluation
        (suite,) = as_suites(self.evaluation)
        return replace(suite, name=slug(self.evaluation)) if suite.name == "attack" else suite  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """One call of an evaluation: suites that share the images, the threat and the scaling.

    Args:
        model: A run folder or another model.
        run: The run folder of the results.
        data: The test images.
        suites: The suites.
        threat: Their threat model.
        scaling: Attention scaling.
        study: A study to run instead of suites, as text for `vitadel analyze`.
    """

    model: str
    run: Path
    data: str
    suites: tuple[Suite, ...]
    threat: Threat | None = None
    scaling: str | None = None
    study: str = ""


@dataclass(frozen=True, slots=True)
class TestImages:
    """The sources of test images.

    Args:
        usual: The data set whose test images are used by default.
        own: Data sets for suites that need specific images, by kind: `imagenet-a`, `imagenet-r`, `cue-conflict`.
    """

    __test__ = False  # not a test case, which pytest would assume from the name

    usual: str
    own: Mapping[str, str]

    @classmethod
    def of(cls, given: Sequence[str], otherwise: str) -> "TestImages":
        """The sources given by `--test-data`, with the data set of the training as default."""
        kinds = [(data.parse_spec(text).kind.value, text) for text in given]
        own = {kind: text for kind, text in kinds if kind in OWN_IMAGES.values()}
        usual = [text for kind, text in kinds if kind not in own]
        if len(usual) > 1 or len(own) + len(usual) < len(given):
            raise UsageError(
                f"the test images are given twice, got --test-data {' and '.join(given)}. Give one data set, and at "
                "most one of each of imagenet-a, imagenet-r and cue-conflict."
            )
        return cls(usual[0] if usual else otherwise, own)

    def find(self, suite: Suite) -> str | None:
        """The data set of a suite; None if it needs specific images that were not given."""
        kind = OWN_IMAGES.get(suite.name)
        return self.usual if kind is None else self.own.get(kind)


def evaluations(
    columns: Sequence[Column],
    model: str,
    folder: Path,
    images: TestImages,
    threat: Threat | None,
    head: str = "",
    row: str = "",
) -> dict[EvaluationTask, list[Column]]:
    """The evaluations that the columns need, without columns for which there are no images.

    `row` is the label of a row with columns of its own, and part of the names of its folders: rows that differ in their
    attack alone share `folder`.
    """
    groups: dict[tuple[str, str, str | None], list[Column]] = {}
    for column in columns:
        if (spec := images.find(column.suite)) is not None:
            groups.setdefault((column.threat, column.scaling, spec), []).append(column)
    result: dict[EvaluationTask, list[Column]] = {}
    for (radius, scaling, spec), members in groups.items():
        assert spec is not None
        suites = tuple({column.suite.name: column.suite for column in members}.values())
        parts = ["test", row, head, radius, scaling, "" if spec == images.usual else data.parse_spec(spec).kind.value]
        call = EvaluationTask(
            f"{model}#{head}" if head else model,
            folder / slug("-".join(filter(None, parts))),
            spec,
            suites,
            parse_threat(radius) if radius else threat,
            scaling or None,
        )
        result[call] = members
    return result


def select(column: Column, records: Sequence[SuiteRecord], threat: Threat | None) -> SuiteRecord:
    """The record of a column: its suite's, at the radius of the threat if there are several."""
    name = column.suite.name + (f"-{PAPER_PROTOCOL}" if column.rescaled else "")
    own = [record for record in records if record.suite == name]
    if not own:  # only a suite of attacks has a record of the rescaled model
        raise UsageError(f"there is no result of {name!r} for the column {column.name!r}. Write an attack for it.")
    eps = None if threat is None else threat.eps
    at_eps = (one for one in own if eps and one.threat and math.isclose(one.threat.eps or 0.0, eps))
    return next(at_eps, own[-1])


def measured(column: Column, record: SuiteRecord) -> Measure | None:
    """The number of a column from its record; None if it is undefined on these images, as mCE beyond ImageNet."""
    if column.measure not in ("", _CLEAN):
        return next((one for one in record.measures if one.name == column.measure), None)
    if column.measure == _CLEAN or not (record.main or record.robust):
        return None if record.clean is None else Measure.of(_CLEAN, record.clean)
    return record.main if record.robust is None else Measure.of("robust", record.robust)
