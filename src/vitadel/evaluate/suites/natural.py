"""Real images that are hard by nature: ImageNet-A, ImageNet-R, and any others of one's own.

ImageNet-A (Hendrycks et al. 2021, arXiv:1907.07174) has 7500 photographs that a ResNet-50 got wrong, ImageNet-R
(arXiv:2006.16241) 30000 paintings, toys, sketches and other renditions, each of 200 of the 1000 classes. The authors
choose among those 200; others let a model answer with any of the 1000 and count an answer outside as wrong, which
costs a ResNet-50 a third of its accuracy on ImageNet-R. Both come from one pass and both are reported. A label is the
place of a folder's wnid among the 1000, never that of the folder in a listing.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.attacks import Flag
from vitadel.core.errors import UsageError
from vitadel.core.stats import accuracy
from vitadel.data import DataSet, Split, part_wnids, wnids
from vitadel.evaluate.suites.base import Desk, Outcome, Work, share_of
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs.exhibits import Bar, Bars, Picture, Pictures, Table
from vitadel.runs.schema import Measure

_PAGE = "answers"
_WORST = 10  # classes in the table
_IMAGES, _COLUMNS = 10, 5  # shown


class LabelSpace(enum.Enum):
    """The classes a model may answer with: those of the images, or all it knows."""

    SUBSET = "subset"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class NaturalAdversarial:
    """Accuracy on images as they are, answering with the classes that occur among them, and with any the model knows.

    `label_space=subset` makes the first the main number, `all` the second.
    """

    name: ClassVar[str] = "natural-adversarial"
    title: ClassVar[str] = "Natural adversarial images"
    about: ClassVar[str] = "accuracy on hard images of one's own: among the classes that occur, and among all"
    needs_threat: ClassVar[bool] = False

    label_space: LabelSpace = LabelSpace.SUBSET

    def members(self, data: DataSet, images: Split) -> list[int]:
        """The classes to choose among, as labels."""
        return sorted(set(images.labels.tolist()))

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        if len(self.members(data, data.split(split))) < 2:
            raise UsageError(f"{data.spec} has images of one class only, so there is nothing to choose among.")

    def look(self, desk: Desk) -> None:
        desk.fill(_PAGE, self._work(desk))

    def _work(self, desk: Desk) -> Work:
        members = torch.tensor(self.members(desk.data, desk.images))

        def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
            z_BK = desk.answer(x, rows)
            return {
                "prediction": list(z_BK.argmax(1).tolist()),
                "among": list(members[z_BK[:, members].argmax(1)].tolist()),
                "classes": [z_BK.shape[1]] * len(rows),
            }

        return work

    def conclude(self, desk: Desk) -> Outcome:
        lines, labels = desk.lines(_PAGE), desk.images.labels.tolist()
        answers, among, classes = (
            [int(str(lines[row][name])) for row in range(len(labels))] for name in ("prediction", "among", "classes")
        )
        right = {
            LabelSpace.SUBSET: [float(a == y) for a, y in zip(among, labels, strict=True)],
            LabelSpace.ALL: [float(a == y) for a, y in zip(answers, labels, strict=True)],
        }
        members = self.members(desk.data, desk.images)
        ways = {LabelSpace.SUBSET: f"{len(members)}-way", LabelSpace.ALL: f"{classes[0]}-way"}
        if ways[LabelSpace.SUBSET] == ways[LabelSpace.ALL]:
            ways[LabelSpace.ALL] += ", all the model knows"
        shares = {space: share_of(right[space]) for space in LabelSpace}
        measures = [
            Measure.of(f"{ways[space]} accuracy", shares[space], main=space is self.label_space) for space in LabelSpace
        ]
        few, all_ = shares[LabelSpace.SUBSET], shares[LabelSpace.ALL]
        return Outcome(
            columns={
                "clean_prediction": answers,
                "right": right[self.label_space],
                "prediction_among": among,
                "right_among": right[LabelSpace.SUBSET],
                "right_all": right[LabelSpace.ALL],
            },
            clean=None,
            measures=measures,
            sentence=(
                f"{few.accuracy:.1%} of {len(labels)} images are right among {len(members)} classes, "
                f"{all_.accuracy:.1%} among the {classes[0]} that the model knows."
            ),
            conventions={"label_space": self.label_space.value, "subset": len(members), "classes": classes[0]},
            exhibits=[
                _bars([ways[space] for space in LabelSpace], [shares[space] for space in LabelSpace]),
                _worst(desk, right[self.label_space]),
                _pictures(desk, among if self.label_space is LabelSpace.SUBSET else answers),
            ],
            flags=self._absent(desk, members),
        )

    def _absent(self, desk: Desk, members: Sequence[int]) -> list[Flag]:
        """A class without images is chosen at times and never right: the number is another one."""
        present = set(desk.images.labels.tolist())
        absent = [desk.data.classes[label] for label in members if label not in present]
        if not absent:
            return []
        sentence = (
            f"{len(absent)} of the {len(members)} classes have no image here, the first is {absent[0]}: "
            "the accuracy is not that of the whole data set"
        )
        return [Flag("classes-missing", sentence, {"missing": len(absent), "of": len(members)})]


class _Released(NaturalAdversarial):
    """A released data set: its 200 classes, whichever have images here."""

    __slots__ = ()

    def members(self, data: DataSet, images: Split) -> list[int]:
        place = {name: label for label, name in enumerate(wnids())}
        return [place[name] for name in part_wnids(self.name)]

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        if data.classes != wnids() or not set(data.split(split).labels.tolist()) <= set(self.members(data, data.test)):
            raise UsageError(
                f"suite {self.name} judges the 200 classes of {self.name}, and {data.spec} has others. "
                f"Write --data {self.name}:DIR, or --suite natural-adversarial for images of your own."
            )
        known = getattr(getattr(model, "spec", None), "num_classes", len(wnids()))
        if known != len(wnids()):
            raise UsageError(
                f"suite {self.name} needs a model with the 1000 classes of ImageNet, got one with {known}."
            )


@dataclass(frozen=True, slots=True)
class ImageNetA(_Released):
    """Accuracy on ImageNet-A, among its 200 classes and among all 1000, from one pass.

    `label_space=subset` makes the first the main number, as its authors have it; `all` the second.
    """

    name: ClassVar[str] = "imagenet-a"
    title: ClassVar[str] = "ImageNet-A"
    about: ClassVar[str] = "accuracy on ImageNet-A (--data imagenet-a:DIR): 200-way and 1000-way"


@dataclass(frozen=True, slots=True)
class ImageNetR(_Released):
    """Accuracy on ImageNet-R, among its 200 classes and among all 1000, from one pass.

    `label_space=subset` makes the first the main number, as its authors have it; `all` the second.
    """

    name: ClassVar[str] = "imagenet-r"
    title: ClassVar[str] = "ImageNet-R"
    about: ClassVar[str] = "accuracy on ImageNet-R (--data imagenet-r:DIR): 200-way and 1000-way"


def _bars(names: Sequence[str], shares: Sequence[object]) -> Bars:
    bar = Bar("accuracy", *([getattr(one, what) for one in shares] for what in ("accuracy", "low", "high")))
    return Bars("Accuracy by label space", "With 95% intervals.", names, [bar], "accuracy", (0.0, 1.0))


def _worst(desk: Desk, right: Sequence[float]) -> Table:
    """The classes that are recognized least."""
    labels = desk.images.labels.tolist()
    counts, hits = Counter(labels), Counter(label for label, one in zip(labels, right, strict=True) if one)
    order = sorted(counts, key=lambda label: (hits[label] / counts[label], label))[:_WORST]
    shares = {label: accuracy(hits[label], counts[label]) for label in order}
    rows = [[desk.data.classes[at], counts[at], share.accuracy, share.low, share.high] for at, share in shares.items()]
    columns = ["class", "images", "accuracy", "low", "high"]
    return Table("The hardest classes", f"Of {len(counts)} classes with images, the ten lowest.", columns, rows)


def _pictures(desk: Desk, answers: Sequence[int]) -> Pictures:
    rows = torch.arange(min(_IMAGES, len(desk.images)))
    names, labels = desk.data.classes, desk.images.labels.tolist()

    def told(number: int) -> str:
        return names[number] if number < len(names) else str(number)

    cells: list[Picture | None] = [
        picture(
            image,
            f"{told(labels[at])}, taken for {told(answers[at])}" if answers[at] != labels[at] else told(labels[at]),
        )
        for at, image in enumerate(desk.images.images(rows))
    ]
    cells += [None] * (-len(cells) % _COLUMNS)
    shown = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    return Pictures("The first images", "With their class, and the model's answer where it is another.", shown)
