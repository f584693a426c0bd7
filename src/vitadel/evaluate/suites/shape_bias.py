"""Shape bias: does a model classify images with the shape of one class and the texture of another by the shape?

Geirhos et al. 2019 (arXiv:1811.12231) created 1280 such stimuli of 16 classes: 1200 conflicts, and 80 where shape and
texture agree. The decision of a model with ImageNet's 1000 classes is the one of 16 whose members have the highest mean
probability (207 of the 1000 are members). Two measures have similar names:

shape accuracy   decisions for the shape among all 1280, the 80 included (Bhojanapalli et al. 2021, arXiv:2103.14586)
shape bias       decisions for the shape among those for shape or texture, on the 1200 conflicts only (common usage)
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.files import check_regular_file
from vitadel.core.flags import Flag
from vitadel.core.stats import Accuracy, accuracy, accuracy_of
from vitadel.data import NUM_STIMULI, SHAPES, DataSet, cues
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.suites.base import suite_record
from vitadel.evaluate.suites.pictures import first_images, picture
from vitadel.runs.exhibits import Bar, Bars, Cell, Exhibit, Heatmap, Matrix, Pictures, Table
from vitadel.runs.schema import Measure, SuiteRecord

_TABLE = "decisions"
_CLASSES = 1000
_IMAGES = 10  # shown

# which of the 1000 classes of ImageNet make up each of the 16
_MEMBERS = {
    "airplane": "404",
    "bear": "294-297",
    "bicycle": "444 671",
    "bird": "8 10-16 18-20 22-24 80-83 87-96 98-100 127-133 135-145",
    "boat": "472 554 625 814 914",
    "bottle": "440 720 737 898 899 901 907",
    "car": "436 511 817",
    "cat": "281-286",
    "chair": "423 559 765 857",
    "clock": "409 530 892",
    "dog": "152-191 193-203 205-226 228-241 243-250 252-257 259 261-263 265-268",
    "elephant": "385 386",
    "keyboard": "508 878",
    "knife": "499",
    "oven": "766",
    "truck": "555 569 656 675 717 734 864 867",
}


@dataclass(frozen=True, slots=True)
class ShapeBias:
    """Shape accuracy as in the paper and shape bias as commonly defined, on the cue-conflict stimuli.

    Args:
        mapping: Text file for models whose classes are not ImageNet's 1000: for each of the 16 classes a line with its
            name and the model's class numbers, such as `bear 294-297` or `boat 472 554`.
    """

    name: ClassVar[str] = "shape-bias"
    title: ClassVar[str] = "Shape bias"
    about: ClassVar[str] = "shape accuracy and shape bias on cue-conflict stimuli (--data cue-conflict:DIR)"
    needs_threat: ClassVar[bool] = False

    mapping: str | None = None

    def members(self) -> dict[str, list[int]]:
        """The model's classes that make up each of the 16."""
        return _numbers(_MEMBERS) if self.mapping is None else read_mapping(Path(self.mapping).expanduser())

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError for other images, and for models whose classes do not match the mapping."""
        if data.classes != SHAPES:
            raise UsageError(
                f"suite {self.name} is about cue-conflict stimuli, and {data.spec} are none. "
                "Write --data cue-conflict:DIR with the folder that holds airplane, bear, ..."
            )
        known = getattr(getattr(model, "spec", None), "num_classes", None)
        highest = max(max(members) for members in self.members().values())
        if self.mapping is None and known not in (None, _CLASSES):
            raise UsageError(
                f"the model has {known} classes, not the 1000 of ImageNet. Write shape-bias:mapping=FILE with a file "
                "that has a line for each of the 16 classes, such as `bear 3 7-9`."
            )
        if known is not None and highest >= known:
            raise UsageError(
                f"{self.mapping} names class {highest}, and the model has {known}, counted from 0. "
                "Write the model's own classes."
            )

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        """A hash of the mapping."""
        if self.mapping is None:
            return {}
        members = self.members()  # raises the error of an unreadable file
        return {"mapping": hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()}

    def run(self, ctx: Context) -> None:
        """The prediction among all classes of the model, and the decision among the 16."""
        members = self.members()
        highest = max(max(one) for one in members.values())

        def predictions(batch: Batch) -> dict[str, Tensor]:
            z_BK = ctx.logits(batch.x)  # not checked against the labels: the 16 are not classes of the model
            if z_BK.shape[1] <= highest:
                raise UsageError(
                    f"the model has {z_BK.shape[1]} classes, and the mapping names class {highest}. Write the model's "
                    "own classes."
                )
            return {"prediction": z_BK.argmax(1), "decision": decisions(z_BK, members)}

        ctx.map(_TABLE, predictions)

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """The decisions, with the classes of shape and texture."""
        counts = _Decisions.of(ctx)
        return {
            "clean_prediction": ctx.table(_TABLE)["prediction"],
            "correct": (counts.decisions == counts.shapes).astype(float).tolist(),
            "decision": counts.decisions.tolist(),
            "shape": [SHAPES[label] for label in counts.shapes],
            "texture": [SHAPES[label] for label in counts.textures],
        }

    def summarize(self, ctx: Context) -> SuiteRecord:
        """Shape accuracy, shape bias, and the fractions of all other decisions."""
        counts = _Decisions.of(ctx)
        bias, conflicts = counts.shape_bias(), int(counts.conflicts.sum())
        shape = accuracy_of((counts.decisions == counts.shapes).astype(float).tolist())
        measures = [Measure.of("shape accuracy", shape, main=True)]
        if bias is not None:
            measures.append(Measure.of("shape bias", bias, kind="bias"))
        if conflicts:
            for name, decided in (
                ("texture decisions", counts.for_texture),
                ("decisions for neither", counts.for_neither),
            ):
                share = accuracy(int(decided.sum()), conflicts)
                measures.append(Measure.of(name, share, kind="share", higher_is_better=False))
        return suite_record(
            self,
            ctx,
            tables=[_TABLE],
            clean=None,
            measures=measures,
            sentence=(
                f"{shape.accuracy:.1%} of {shape.n} stimuli are classified by their shape; "
                f"{_bias_in_words(bias, conflicts)}."
            ),
            conventions={
                "decision": "highest mean probability over the members of each of 16 classes",
                "mapping": "207 of ImageNet's 1000 classes" if self.mapping is None else Path(self.mapping).name,
                "shape_accuracy": "among all stimuli, those without conflict included",
                "shape_bias": "among decisions for shape or texture, conflicts alone",
            },
            exhibits=[*_exhibits(counts), _pictures(ctx, counts)],
            flags=_incomplete(shape.n),
        )


def decisions(z_BK: Tensor, members: Mapping[str, Sequence[int]]) -> Tensor:
    """[B] labels among the 16 classes: the one whose members have the highest mean probability."""
    p_BK = z_BK.double().softmax(1)
    return torch.stack([p_BK[:, list(members[name])].mean(1) for name in SHAPES], 1).argmax(1)


@dataclass(frozen=True, slots=True, eq=False)
class _Decisions:
    """Labels among the 16 classes, [n] each: of the shape, of the texture, and of the decision."""

    shapes: NDArray[np.int64]
    textures: NDArray[np.int64]
    decisions: NDArray[np.int64]

    @classmethod
    def of(cls, ctx: Context) -> "_Decisions":
        pairs = [cues(stimulus) for stimulus in ctx.images.ids]
        labels = np.array([[SHAPES.index(shape), SHAPES.index(texture)] for shape, texture in pairs])
        return cls(labels[:, 0], labels[:, 1], np.array(ctx.table(_TABLE)["decision"]))

    @property
    def conflicts(self) -> NDArray[np.bool_]:
        return self.shapes != self.textures

    @property
    def for_shape(self) -> NDArray[np.bool_]:
        return self.conflicts & (self.decisions == self.shapes)

    @property
    def for_texture(self) -> NDArray[np.bool_]:
        return self.conflicts & (self.decisions == self.textures)

    @property
    def for_neither(self) -> NDArray[np.bool_]:
        return self.conflicts & ~self.for_shape & ~self.for_texture

    def shape_bias(self, shape: int | None = None) -> Accuracy | None:
        """Shape bias over all conflicts, or those of one shape; None without decisions for shape or texture."""
        chosen = np.ones_like(self.conflicts) if shape is None else self.shapes == shape
        by_shape, by_texture = int((self.for_shape & chosen).sum()), int((self.for_texture & chosen).sum())
        return accuracy(by_shape, by_shape + by_texture) if by_shape + by_texture else None


def _bias_in_words(bias: Accuracy | None, conflicts: int) -> str:
    if not conflicts:
        return "there are no conflicts"
    if bias is None:
        return f"there is no shape bias, since none of {conflicts} conflicts was decided for shape or texture"
    return f"the shape bias is {bias.accuracy:.1%} over {conflicts} conflicts"


def _exhibits(counts: _Decisions) -> list[Exhibit]:
    whole, biases = counts.shape_bias(), [counts.shape_bias(label) for label in range(len(SHAPES))]
    confusion = np.zeros((len(SHAPES), len(SHAPES)))
    np.add.at(confusion, (counts.shapes, counts.decisions), 1)
    rows: list[list[Cell]] = []
    for label, (name, bias) in enumerate(zip(SHAPES, biases, strict=True)):
        decided = (counts.for_shape, counts.for_texture, counts.for_neither)
        numbers = [int((one & (counts.shapes == label)).sum()) for one in decided]
        rows.append([name, *numbers, None if bias is None else bias.accuracy])
    return [
        Bars(
            "Shape bias by class of the shape",
            "Decisions for the shape among those for shape or texture, with 95% intervals; the line is all classes.",
            SHAPES,
            [Bar.of("shape bias", biases)],
            "shape bias",
            (0.0, 1.0),
            [] if whole is None else [("all", whole.accuracy)],
        ),
        Heatmap(
            "Decisions by shape",
            "Share of the decisions on the stimuli of one shape, those without conflict included.",
            [Matrix("share", (confusion / confusion.sum(1, keepdims=True).clip(1)).tolist())],
            "share",
            "shape",
            "decision",
            SHAPES,
            SHAPES,
            low=0.0,
            high=1.0,
        ),
        Table(
            "Decisions by class of the shape",
            "Conflicts alone.",
            ["class", "shape", "texture", "neither", "shape bias"],
            rows,
        ),
    ]


def _pictures(ctx: Context, counts: _Decisions) -> Pictures:
    index = first_images(ctx, _IMAGES)
    shown = []
    for number, image in zip(index.tolist(), ctx.images.images(index), strict=True):
        shape, texture, decision = (
            SHAPES[labels[number]] for labels in (counts.shapes, counts.textures, counts.decisions)
        )
        shown.append(picture(image, f"{shape} of {texture}: {decision}"))
    return Pictures.grid("The first stimuli", "Shape, texture, and the model's decision.", shown)


def _incomplete(count: int) -> list[Flag]:
    if count == NUM_STIMULI:
        return []
    sentence = f"{count} of the {NUM_STIMULI} stimuli were evaluated: the numbers are not those of the whole set"
    return [Flag("stimuli-missing", sentence, {"stimuli": count, "of": NUM_STIMULI})]


def _numbers(written: Mapping[str, str]) -> dict[str, list[int]]:
    """Class numbers from words such as `8 10-16`."""
    numbers = {}
    for name, text in written.items():
        members: list[int] = []
        for word in text.split():
            first, _, last = word.partition("-")
            members += range(int(first), int(last or first) + 1)
        numbers[name] = members
    return numbers


def _are_numbers(text: str) -> bool:
    # no model has classes of more than 6 digits
    ends = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word) for word in text.split()]
    return bool(ends) and all(one is not None and int(one[1]) <= int(one[2] or one[1]) for one in ends)


def read_mapping(path: Path) -> dict[str, list[int]]:
    check_regular_file(path)
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the mapping {path}: {error}. Check the path.") from error
    written: dict[str, str] = {}
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        if name not in SHAPES or name in written or not _are_numbers(rest):
            raise UsageError(
                f"cannot read {line!r} in the mapping {path}. Write each of the 16 classes once, followed by numbers "
                "of the model's classes, such as `bear 294-297`."
            )
        written[name] = rest
    if absent := [name for name in SHAPES if name not in written]:
        raise UsageError(
            f"the mapping {path} has no line for {', '.join(absent)}. Add it: the decision is among all 16."
        )
    return _numbers(written)
