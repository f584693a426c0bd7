"""Shape or texture? Images with the shape of one class and the texture of another, and which of them a model goes by.

Geirhos et al. 2019 (arXiv:1811.12231) made 1280 such stimuli of 16 classes: 1200 conflicts, and 80 where shape and
texture agree. A model of ImageNet's 1000 classes decides for the one of 16 whose members have the highest mean
probability (207 of the 1000 are members). Two numbers go by similar names:

shape accuracy   decisions for the shape among all 1280, the 80 included (Bhojanapalli et al. 2021, arXiv:2103.14586)
shape bias       decisions for the shape among those for shape or texture, of the 1200 conflicts alone (the field)
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.attacks import Flag
from vitadel.core.errors import UsageError
from vitadel.core.files import refuse_special
from vitadel.core.stats import Accuracy, accuracy
from vitadel.data import SHAPES, STIMULI, DataSet, cues
from vitadel.evaluate.suites.base import Desk, Outcome, Work, answer
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs.exhibits import Bar, Bars, Exhibit, Heat, Matrix, Picture, Pictures, Table
from vitadel.runs.schema import Measure

_PAGE = "decisions"
_CLASSES = 1000
_IMAGES, _COLUMNS = 10, 5  # shown

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
    """Shape accuracy as in the paper and shape bias as in the field, on the cue-conflict stimuli.

    `mapping` is a text file for models whose classes are not ImageNet's 1000: a line per class of the 16, its name and
    then the model's class numbers, such as `bear 294-297` or `boat 472 554`.
    """

    name: ClassVar[str] = "shape-bias"
    title: ClassVar[str] = "Shape or texture"
    about: ClassVar[str] = "shape accuracy and shape bias on cue-conflict stimuli (--data cue-conflict:DIR)"
    needs_threat: ClassVar[bool] = False

    mapping: str | None = None

    def members(self) -> dict[str, list[int]]:
        """The model's classes that make up each of the 16."""
        return _numbers(_MEMBERS) if self.mapping is None else _read(Path(self.mapping).expanduser())

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        if data.classes != SHAPES:
            raise UsageError(
                f"suite {self.name} looks at cue-conflict stimuli, and {data.spec} are none. "
                "Write --data cue-conflict:DIR with the folder that holds airplane, bear, ..."
            )
        known = getattr(getattr(model, "spec", None), "num_classes", None)
        highest = max(max(members) for members in self.members().values())
        if self.mapping is None and known not in (None, _CLASSES):
            raise UsageError(
                f"the model has {known} classes, not the 1000 of ImageNet. Say which of them are which with "
                "shape-bias:mapping=FILE, a line per class of the 16 such as `bear 3 7-9`."
            )
        if known is not None and highest >= known:
            raise UsageError(f"{self.mapping} names class {highest}, and the model has {known}, counted from 0.")

    def named_files(self, data: DataSet, split: str) -> dict[str, str]:
        if self.mapping is None:
            return {}
        members = self.members()  # read once more, so that what cannot be read is refused in its words
        return {"mapping": hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()}

    def look(self, desk: Desk) -> None:
        desk.fill(_PAGE, self._work(desk))

    def _work(self, desk: Desk) -> Work:
        members = self.members()
        highest = max(max(one) for one in members.values())

        def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
            z_BK = answer(desk.model, x, torch.zeros_like(rows))  # the 16 are no classes of the model's
            if z_BK.shape[1] <= highest:
                raise UsageError(f"the model has {z_BK.shape[1]} classes, and the mapping names class {highest}.")
            return {
                "prediction": list(z_BK.argmax(1).tolist()),
                "decision": list(decisions(z_BK, members).tolist()),
            }

        return work

    def conclude(self, desk: Desk) -> Outcome:
        lines = desk.lines(_PAGE)
        count = len(desk.images)
        answers, decided = ([int(str(lines[row][what])) for row in range(count)] for what in ("prediction", "decision"))
        pairs = [cues(one) for one in desk.images.ids]
        tally = _Tally([SHAPES.index(s) for s, _ in pairs], [SHAPES.index(t) for _, t in pairs], decided)
        shape, bias = tally.shape_accuracy, tally.bias(None)
        measures = [Measure.of("shape accuracy", shape, main=True)]
        if bias is not None:
            measures.append(Measure.of("shape bias", bias, kind="bias"))
        if tally.conflicts:
            measures += [
                _unwanted("texture decisions", tally.share(tally.for_texture)),
                _unwanted("decisions for neither", tally.share(tally.for_neither)),
            ]
        return Outcome(
            columns={
                "clean_prediction": answers,
                "right": [float(d == s) for d, s in zip(decided, tally.shapes, strict=True)],
                "decision": decided,
                "shape": [s for s, _ in pairs],
                "texture": [t for _, t in pairs],
            },
            clean=None,
            measures=measures,
            sentence=(
                f"{shape.accuracy:.1%} of {count} stimuli are seen as the class of their shape; "
                f"{_told(bias, len(tally.conflicts))}."
            ),
            conventions={
                "decision": "highest mean probability over the members of each of 16 classes",
                "mapping": "207 of ImageNet's 1000 classes" if self.mapping is None else Path(self.mapping).name,
                "shape_accuracy": "among all stimuli, those without conflict included",
                "shape_bias": "among decisions for shape or texture, conflicts alone",
            },
            exhibits=_exhibits(desk, tally),
            flags=_incomplete(count),
        )


def decisions(z_BK: Tensor, members: Mapping[str, Sequence[int]]) -> Tensor:
    """[B] places among the 16 classes: the one whose members have the highest mean probability."""
    p_BK = z_BK.double().softmax(1)
    return torch.stack([p_BK[:, list(members[name])].mean(1) for name in SHAPES], 1).argmax(1)


@dataclass(frozen=True, slots=True)
class _Tally:
    """Classes of shape and texture, and what was decided, as places among the 16."""

    shapes: Sequence[int]
    textures: Sequence[int]
    decided: Sequence[int]

    @property
    def conflicts(self) -> list[int]:
        return [at for at, (s, t) in enumerate(zip(self.shapes, self.textures, strict=True)) if s != t]

    @property
    def for_shape(self) -> list[int]:
        return [at for at in self.conflicts if self.decided[at] == self.shapes[at]]

    @property
    def for_texture(self) -> list[int]:
        return [at for at in self.conflicts if self.decided[at] == self.textures[at]]

    @property
    def for_neither(self) -> list[int]:
        return [at for at in self.conflicts if self.decided[at] not in (self.shapes[at], self.textures[at])]

    @property
    def shape_accuracy(self) -> Accuracy:
        right = sum(d == s for d, s in zip(self.decided, self.shapes, strict=True))
        return accuracy(right, len(self.decided))

    def share(self, places: Sequence[int]) -> Accuracy:
        """Of the conflicts."""
        return accuracy(len(places), len(self.conflicts))

    def bias(self, shape: int | None) -> Accuracy | None:
        """Shape bias over all conflicts or over those of one shape; None where nothing was decided for either."""
        by_shape, by_texture = (
            sum(shape in (None, self.shapes[at]) for at in places) for places in (self.for_shape, self.for_texture)
        )
        return accuracy(by_shape, by_shape + by_texture) if by_shape + by_texture else None


def _told(bias: Accuracy | None, conflicts: int) -> str:
    if not conflicts:
        return "there are no conflicts"
    if bias is None:
        return f"there is no shape bias, since none of {conflicts} conflicts was decided for shape or texture"
    return f"the shape bias is {bias.accuracy:.1%} over {conflicts} conflicts"


def _unwanted(name: str, share: Accuracy) -> Measure:
    return Measure.of(name, share, kind="share", higher_is_better=False)


def _exhibits(desk: Desk, tally: _Tally) -> list[Exhibit]:
    each = [tally.bias(place) for place in range(len(SHAPES))]
    whole = tally.bias(None)
    bar = Bar(
        "shape bias", *([None if b is None else getattr(b, w) for b in each] for w in ("accuracy", "low", "high"))
    )
    rows: list[list[str | float | None]] = []
    seen = [[0.0] * len(SHAPES) for _ in SHAPES]
    for shape, decided in zip(tally.shapes, tally.decided, strict=True):
        seen[shape][decided] += 1
    for place, name in enumerate(SHAPES):
        of_shape = [at for at in tally.conflicts if tally.shapes[at] == place]
        counts = [len(set(of_shape) & set(one)) for one in (tally.for_shape, tally.for_texture, tally.for_neither)]
        mine = each[place]
        rows.append([name, *counts, None if mine is None else mine.accuracy])
    shares = [[count / max(1.0, sum(row)) for count in row] for row in seen]
    return [
        Bars(
            "Shape bias by class of the shape",
            "Decisions for the shape among those for shape or texture, with 95% intervals; the line is all classes.",
            SHAPES,
            [bar],
            "shape bias",
            (0.0, 1.0),
            [] if whole is None else [("all", whole.accuracy)],
        ),
        Heat(
            "What each shape is seen as",
            "Share of the decisions on the stimuli of one shape, those without conflict included.",
            [Matrix("share", shares)],
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
        _pictures(desk, tally),
    ]


def _pictures(desk: Desk, tally: _Tally) -> Pictures:
    rows = torch.arange(min(_IMAGES, len(desk.images)))
    cells: list[Picture | None] = []
    for at, image in enumerate(desk.images.images(rows)):
        shape, texture, seen = (SHAPES[one[at]] for one in (tally.shapes, tally.textures, tally.decided))
        cells.append(picture(image, f"{shape} of {texture}: {seen}"))
    cells += [None] * (-len(cells) % _COLUMNS)
    shown = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    return Pictures("The first stimuli", "Shape, texture, and what the model decided for.", shown)


def _incomplete(count: int) -> list[Flag]:
    if count == STIMULI:
        return []
    sentence = f"{count} of the {STIMULI} stimuli were looked at: the numbers are not those of the whole set"
    return [Flag("stimuli-missing", sentence, {"stimuli": count, "of": STIMULI})]


def _numbers(written: Mapping[str, str]) -> dict[str, list[int]]:
    """Class numbers from words such as `8 10-16`."""
    found = {}
    for name, text in written.items():
        members: list[int] = []
        for word in text.split():
            first, _, last = word.partition("-")
            members += range(int(first), int(last or first) + 1)
        found[name] = members
    return found


def _are_numbers(text: str) -> bool:
    # no model has classes of more than 6 digits
    ends = [re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word) for word in text.split()]
    return bool(ends) and all(one is not None and int(one[1]) <= int(one[2] or one[1]) for one in ends)


def _read(path: Path) -> dict[str, list[int]]:
    refuse_special(path)
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the mapping {path}: {error}.") from error
    written: dict[str, str] = {}
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        if name not in SHAPES or name in written or not _are_numbers(rest):
            raise UsageError(
                f"cannot read {line!r} in the mapping {path}. Write each of the 16 classes once, and behind it numbers "
                "of the model's classes, such as `bear 294-297`."
            )
        written[name] = rest
    if absent := [name for name in SHAPES if name not in written]:
        raise UsageError(
            f"the mapping {path} has no line for {', '.join(absent)}. A choice among fewer is another one."
        )
    return _numbers(written)
