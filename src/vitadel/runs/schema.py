"""The records of a run folder: what suites and studies write, and what reports and programs read.

eval/<name>/summary.json  SuiteRecord
eval/<name>/rows.parquet  ImageRows
eval/<name>/gallery.npz   Gallery
study/result.json         StudyRecord

The record of a sweep is in `vitadel.runs.sweep_schema`. All are read and written by `vitadel.runs.typed_json`, so each
is declared once. `read_suite` and `read_study` raise a UsageError of one line for a damaged file. The `schema` of a
file, such as `suite/1`, gives its kind and version; files without it have the fields of version 1. Names that earlier
versions wrote are translated here: those of fields in their metadata, those of suites and studies by
`FORMER_SUITE_NAMES` and `FORMER_STUDY_NAMES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitadel.core.errors import UsageError, short_repr
from vitadel.core.files import read_json, read_npz, write_npz
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy, accuracy_of
from vitadel.runs.exhibits import Exhibit, Table
from vitadel.runs.typed_json import from_json, to_json

SUITE_SCHEMA, STUDY_SCHEMA = "suite/1", "study/1"

# the value of `broken_by` for a robust image, and for one that was misclassified without an attack
ROBUST, WRONG_BEFORE = "", "clean"
# former names of suites and studies
FORMER_SUITE_NAMES = {
    "adversarial": "autoattack",
    "adversarial-plus": "autoattack-plus",
    "adversarial-rand": "autoattack-rand",
    "adversarial-paper-protocol": "autoattack-paper-protocol",
    "grey-level": "gray-level",
}
FORMER_STUDY_NAMES = {
    "accumulate": "feature-visualization",
    "gates": "tora-gates",
    "restrict": "restricted-attention",
    "semantics": "perturbation-semantics",
}
# a convention as earlier versions wrote it
_FORMER_SOURCES = {"made here": "computed by vitadel"}
# units of radii, which records of earlier versions do not have
_FORMER_UNITS = {"linf": "1/255"}
# flags as earlier versions named them
FORMER_FLAG_CODES = {"search-fell-back": "search-fallback", "robust-fell": "robust-accuracy-drop"}
# kinds of measures that are shares, lie in [0, 1] and are read in percent
SHARES = frozenset({"accuracy", "error", "bias", "share"})
# the kinds and the dimensions of the arrays of a gallery
_GALLERY = {
    **{"clean": ("u", 4), "adversarial": ("f", 4)},
    **dict.fromkeys(("label", "clean_prediction", "prediction"), ("iu", 1)),
    **{"broken_by": ("U", 1), "classes": ("U", 1), "eps": ("f", 0), "norm": ("U", 0)},
}
# keys of a study's file that are not its own numbers
_STUDY_KEYS = ("schema", "study", "title", "summary", "exhibits")


@dataclass(frozen=True, slots=True)
class ThreatRecord:
    """A threat model in a record.

    Args:
        norm: `linf`, `l2`, `l1`.
        eps: The radius in pixel values of [0, 1]; None if the threat has no single radius.
        text: As on the command line, such as `linf:8/255`.
        unit: The unit that a radius is shown in: `1/255` if it bounds every pixel value, else empty.
    """

    norm: str
    eps: float | None
    text: str
    unit: str = field(default="", metadata={"omit": True})

    def __post_init__(self) -> None:
        if not self.unit and self.norm in _FORMER_UNITS:
            object.__setattr__(self, "unit", _FORMER_UNITS[self.norm])

    @classmethod
    def of(cls, text: str, eps: float | None, unit: str = "") -> "ThreatRecord":
        """The record of a threat from its text, such as `str` gives."""
        return cls(text.partition(":")[0], eps, text, unit)


@dataclass(frozen=True, slots=True)
class AttackRecord:
    """The results and the cost of one attack of a suite.

    Args:
        name: The attack, such as `apgd-ce`.
        tried: Number of images attacked: those that were still robust.
        broken: Number of images for which it found an adversarial example.
        forwards: Forward passes, counted per image.
        backwards: Backward passes, counted per image.
        seconds: Time in the search.
        zero_gradients: Input gradients that were exactly zero.
        rejected: Successes of a search in reduced precision that the float32 model did not confirm.
    """

    name: str
    tried: int
    broken: int = field(metadata={"was": ("fell",)})
    forwards: int
    backwards: int
    seconds: float
    zero_gradients: int = 0
    rejected: int = field(default=0, metadata={"was": ("denied",)})


@dataclass(frozen=True, slots=True)
class Measure:
    """A headline metric, such as an accuracy under corruptions. Exactly one measure of a suite is its main one.

    Args:
        name: Its name.
        value: The number; None if it is undefined on these images.
        low: The lower end of its 95% interval; None if there is no interval.
        high: The upper end.
        n: Number of images.
        kind: `accuracy`, `error`, `bias`, `share` (all in [0, 1]), or another unit such as `mCE`.
        higher_is_better: Whether higher values are better.
        main: Whether it is the number that models are compared by.
        column: The column of the rows with its value for each image, if models are compared by it besides the main one.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    kind: str = "accuracy"
    higher_is_better: bool = True
    main: bool = False
    column: str = field(default="", metadata={"omit": True})

    @classmethod
    def of(
        cls,
        name: str,
        share: Accuracy | Sequence[float],
        *,
        kind: str = "accuracy",
        higher_is_better: bool = True,
        main: bool = False,
        column: str = "",
    ) -> "Measure":
        """The measure of a share, or of the mean of one score per image."""
        share = share if isinstance(share, Accuracy) else accuracy_of(share)
        return cls(name, share.accuracy, share.low, share.high, share.n, kind, higher_is_better, main, column)

    @property
    def is_share(self) -> bool:
        """Whether the number lies in [0, 1] and is shown in percent."""
        return self.kind in SHARES


@dataclass(frozen=True, slots=True)
class SuiteRecord:
    """The summary of one suite on one split: the numbers, counted from the rows in the same folder.

    Args:
        name: The folder of the rows, such as `autoattack-linf-8_255`.
        suite: The suite, such as `autoattack`.
        n: Images.
        clean: Accuracy before any attack or perturbation; None where labels do not apply.
        threat: The threat, None for a suite that does not attack.
        robust: Accuracy after all attacks; an upper bound on the true one.
        attacks: The results of each attack, in order.
        search_precision: The precision of the searches; every success was judged in float32.
        flags: Reasons why the numbers may be unreliable.
        seconds: Computing time.
        title: Title in reports, where the suite has measures.
        sentence: The main finding in a sentence.
        measures: The numbers of a suite that perturbs images, one of them the main one.
        conventions: What else determines the numbers, such as the preprocessing.
        exhibits: Tables and figures.
        scaling: The record of the scaling factors, if attacks rescaled the attention.
        schema: Kind and version of the file.
    """

    name: str
    suite: str
    n: int
    clean: Accuracy | None
    threat: ThreatRecord | None
    robust: Accuracy | None
    attacks: Sequence[AttackRecord]
    flags: Sequence[Flag]
    seconds: float
    search_precision: str | None = field(default=None, metadata={"omit": True})
    title: str = field(default="", metadata={"omit": True})
    sentence: str = field(default="", metadata={"omit": True})
    measures: Sequence[Measure] = field(default=(), metadata={"omit": True})
    conventions: Mapping[str, object] | None = field(default=None, metadata={"omit": True})
    exhibits: Sequence[Exhibit] = field(default=(), metadata={"omit": True})
    scaling: Mapping[str, object] | None = field(default=None, metadata={"omit": True})
    schema: str = SUITE_SCHEMA

    def __post_init__(self) -> None:
        mains = [measure for measure in self.measures if measure.main]
        valued = [measure for measure in mains if measure.value is not None]
        if self.measures and (len(mains) != 1 or not valued):
            raise UsageError(
                f"a suite has one main measure with a value, got {len(valued)} in {self.name!r}. "
                "Pass main=True to exactly one Measure whose value is not None."
            )

    @property
    def main(self) -> Measure | None:
        """The measure that models are compared by; None for a suite of attacks."""
        return next((measure for measure in self.measures if measure.main), None)

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON."""
        content: dict[str, object] = to_json(self)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, object], source: object = "the summary") -> "SuiteRecord":
        """The record in a JSON object; raises a UsageError of one line if it is damaged."""
        remedy = "Delete the file and run the same command again: it is counted from the rows."
        _check_known_keys(content, SUITE_SCHEMA, source)
        suite = content.get("suite")
        renamed: dict[str, object] = {}
        if isinstance(suite, str):
            renamed["suite"] = FORMER_SUITE_NAMES.get(suite, suite)
        conventions = content.get("conventions")
        if isinstance(conventions, Mapping) and conventions.get("source") in _FORMER_SOURCES:
            renamed["conventions"] = {**conventions, "source": _FORMER_SOURCES[str(conventions["source"])]}
        record = from_json(cls, {**content, **renamed}, source, remedy)
        flags = tuple(replace(flag, code=FORMER_FLAG_CODES.get(flag.code, flag.code)) for flag in record.flags)
        return replace(record, flags=flags)


@dataclass(frozen=True, slots=True)
class ImageRows:
    """The columns of `rows.parquet`; empty where a suite does not have one.

    Args:
        index: The image's index in its split.
        id: Its name in the data set.
        label: Its class.
        clean_prediction: The class that the model predicts without an attack or a perturbation.
        clean_correct: Whether it is correct: 0 or 1, or how often for a randomized model.
        robust: Whether the prediction is correct after all attacks, or how often for a randomized model.
        correct: The fraction of its perturbed versions with a correct prediction; None if none could be read.
        broken_by: The first attack that found an adversarial example; `ROBUST` or `WRONG_BEFORE` if none did.
        distance: Distance of the adversarial example from the image, in the threat's norm.
        forwards: Forward passes of each attack.
    """

    index: Sequence[int]
    id: Sequence[object] = ()
    label: Sequence[object] = ()
    clean_prediction: Sequence[object] = ()
    clean_correct: Sequence[float | int | bool | None] = ()
    robust: Sequence[float | int | bool | None] = ()
    correct: Sequence[float | int | bool | None] = ()
    broken_by: Sequence[str] = ()
    distance: Sequence[float | int | None] = ()
    forwards: Sequence[object] = ()

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[object]], source: object = "the rows") -> "ImageRows":
        """The rows of a table that may have more columns; raises a UsageError of one line if it is damaged."""
        remedy = "Delete the file and run the same command again."
        return from_json(cls, {name: list(values) for name, values in columns.items()}, source, remedy)


@dataclass(frozen=True, slots=True, eq=False)
class Gallery:
    """Some clean and attacked images, for the report.

    Args:
        clean: The images as bytes [n, H, W, 3].
        adversarial: The attacked images with pixels in [0, 1].
        label: Their classes.
        clean_prediction: The model's predictions for the clean images.
        prediction: Its predictions for the attacked images.
        broken_by: As in `ImageRows`.
        classes: The names of the classes.
        eps: The radius of the threat.
        norm: The norm of the threat.
    """

    clean: NDArray[np.uint8]
    adversarial: NDArray[np.float32]
    label: Sequence[int]
    clean_prediction: Sequence[int]
    prediction: Sequence[int]
    broken_by: Sequence[str]
    classes: Sequence[str]
    eps: float
    norm: str

    def write(self, path: Path) -> None:
        """Store it as a NumPy archive."""
        write_npz(path, {one.name: np.asarray(getattr(self, one.name)) for one in fields(self)})

    @classmethod
    def read(cls, path: Path) -> "Gallery":
        """The gallery of an archive; raises a UsageError of one line if it is damaged."""
        remedy = "Delete it to report without its pictures."
        stored = read_npz(path, _GALLERY, remedy, former={"broken_by": "fell_to"})
        if not _is_gallery(stored):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in stored.items() if array.ndim)
            raise UsageError(f"{path} does not hold a clean and an attacked picture per image, got {shapes}. {remedy}")
        plain = {name: array.tolist() for name, array in stored.items() if array.ndim < 4}
        return cls(clean=stored["clean"], adversarial=stored["adversarial"].astype(np.float32), **plain)


def _is_gallery(stored: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the arrays are of the same images, and the pictures can be drawn."""
    clean, adversarial = stored["clean"], stored["adversarial"]
    counts = {len(stored[name]) for name in ("clean", "label", "clean_prediction", "prediction", "broken_by")}
    same_shape = clean.shape == adversarial.shape and clean.shape[3] == 3 and 0 not in clean.shape[1:3]
    in_range = (np.abs(adversarial) <= 2).all() and np.isfinite(stored["eps"])  # pixels lie in [0, 1]
    return clean.dtype == np.uint8 and len(counts) == 1 and same_shape and bool(in_range)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """The result of a study: a summary in words, exhibits, and all numbers.

    Args:
        study: Name of the study, such as `lesion`.
        title: Title in reports.
        summary: The main finding in one or two sentences.
        exhibits: Tables and figures.
        numbers: All results by name, for programs.
        schema: Kind and version of the file.
    """

    study: str
    title: str
    summary: str
    exhibits: Sequence[Exhibit]
    numbers: Mapping[str, object] = field(default_factory=dict)
    schema: str = STUDY_SCHEMA

    def __post_init__(self) -> None:
        if taken := [key for key in self.numbers if key in _STUDY_KEYS]:
            raise UsageError(f"a study's own numbers may not be called {', '.join(taken)}. Choose other names.")

    @property
    def tables(self) -> list[Table]:
        """The exhibits that are tables."""
        return [one for one in self.exhibits if isinstance(one, Table)]

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON, with `numbers` merged into the other fields."""
        content: dict[str, Any] = to_json(self)
        numbers, exhibits = content.pop("numbers"), content.pop("exhibits")
        return {**content, **numbers, "exhibits": exhibits}

    @classmethod
    def from_json(cls, content: Mapping[str, object], source: object = "the result") -> "StudyRecord":
        """The record in a JSON object; raises a UsageError of one line if it is damaged."""
        _check_known_keys(content, STUDY_SCHEMA, source)
        known = {key: content[key] for key in _STUDY_KEYS if key in content}
        if isinstance(study := content.get("study"), str):
            known["study"] = FORMER_STUDY_NAMES.get(study, study)
        numbers = {key: value for key, value in content.items() if key not in _STUDY_KEYS}
        remedy = "Run the study again, into another run folder."
        if "exhibits" not in content and "study" in content:
            raise UsageError(f"{source} is of an earlier version, whose studies had no exhibits. {remedy}")
        return from_json(cls, {**known, "numbers": numbers}, source, remedy)


def read_suite(path: Path) -> SuiteRecord:
    """The record in a `summary.json`."""
    return SuiteRecord.from_json(read_json(path), path)


def read_study(path: Path) -> StudyRecord:
    """The record in a `result.json`."""
    return StudyRecord.from_json(read_json(path), path)


def _check_known_keys(content: Mapping[str, object], known: str, source: object) -> None:
    """Refuse a file of another kind, or of a later version."""
    kind, _, newest = known.partition("/")
    name, _, version = str(content.get("schema", known)).partition("/")
    if name != kind or not version.isdecimal():
        raise UsageError(
            f"{source} holds no {kind}, but {short_repr(content.get('schema'))}. Give the file of a {kind}."
        )
    if int(version) > int(newest):
        raise UsageError(f"{source} has version {version:.20}, and this Vitadel reads up to {newest}. Update it.")
