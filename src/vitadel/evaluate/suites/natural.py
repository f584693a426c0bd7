"""Natural images that are hard to classify: ImageNet-A, ImageNet-R, or a user's own.

ImageNet-A (Hendrycks et al. 2021, arXiv:1907.07174) has 7500 photographs that a ResNet-50 misclassifies, ImageNet-R
(arXiv:2006.16241) 30000 paintings, toys, sketches and other renditions; both have 200 of the 1000 classes. The authors
take the prediction among those 200; others take it among all 1000, which costs a ResNet-50 a third of its accuracy on
ImageNet-R. Both are computed from one forward pass and reported. A label is the number of a folder's wnid among the
1000, not the number of the folder in a listing.
"""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.stats import accuracy, accuracy_of
from vitadel.data import DataSet, subset_wnids, wnids
from vitadel.evaluate.context import Batch, Context
from vitadel.evaluate.images import Images
from vitadel.evaluate.suites.base import suite_record
from vitadel.evaluate.suites.pictures import first_images, picture
from vitadel.runs.exhibits import Bar, Bars, Cell, Pictures, Table
from vitadel.runs.schema import Measure, SuiteRecord

_TABLE = "predictions"
_HARDEST = 10  # classes in the table
_IMAGES = 10  # shown


class LabelSpace(enum.Enum):
    """The classes among which the prediction is chosen: a subset, or all classes of the model."""

    SUBSET = "subset"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class NaturalAdversarial:
    """Accuracy on hard images, with predictions among the classes that occur, and among all classes of the model.

    Args:
        label_space: The main measure: `subset`, among the classes that occur, or `all`.
    """

    name: ClassVar[str] = "natural-adversarial"
    title: ClassVar[str] = "Natural adversarial images"
    about: ClassVar[str] = (
        "accuracy on natural adversarial images of your own: among the classes that occur, and among all"
    )
    needs_threat: ClassVar[bool] = False

    label_space: LabelSpace = LabelSpace.SUBSET

    def members(self, data: DataSet, images: Images) -> list[int]:
        """The labels of the subset."""
        return sorted(set(images.labels.tolist()))

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError if all images have one class."""
        if len(self.members(data, data.split(split))) < 2:
            raise UsageError(
                f"{data.spec} has images of one class only, so there is nothing to choose among. Give more."
            )

    def run(self, ctx: Context) -> None:
        """Predictions among all classes and among the subset, from one forward pass."""
        members = torch.tensor(self._members(ctx))

        def predictions(batch: Batch) -> dict[str, object]:
            z_BK = ctx.logits(batch.x)
            return {
                "prediction": ctx.predicted(z_BK),
                "among": members[z_BK[:, members].argmax(1)],
                "classes": [z_BK.shape[1]] * len(batch),
            }

        ctx.map(_TABLE, predictions)

    def rows(self, ctx: Context) -> Mapping[str, Sequence[object]]:
        """Both predictions, and whether they are correct."""
        table, correct = ctx.table(_TABLE), self._correct(ctx)
        return {
            "clean_prediction": table["prediction"],
            "correct": correct[self.label_space],
            "prediction_among": table["among"],
            "correct_among": correct[LabelSpace.SUBSET],
            "correct_all": correct[LabelSpace.ALL],
        }

    def summarize(self, ctx: Context) -> SuiteRecord:
        """The accuracy in both label spaces."""
        table, correct, members = ctx.table(_TABLE), self._correct(ctx), self._members(ctx)
        classes = table["classes"][0]
        shares = {space: accuracy_of(correct[space]) for space in LabelSpace}
        names = {LabelSpace.SUBSET: f"{len(members)}-way", LabelSpace.ALL: f"{classes}-way"}
        if len(members) == classes:
            names[LabelSpace.ALL] += ", all the model knows"
        main = table["among" if self.label_space is LabelSpace.SUBSET else "prediction"]
        return suite_record(
            self,
            ctx,
            tables=[_TABLE],
            clean=None,
            measures=[
                Measure.of(f"{names[space]} accuracy", shares[space], main=space is self.label_space)
                for space in LabelSpace
            ],
            sentence=(
                f"{shares[LabelSpace.SUBSET].accuracy:.1%} of {len(table)} images are correct among {len(members)} "
                f"classes, {shares[LabelSpace.ALL].accuracy:.1%} among the {classes} that the model knows."
            ),
            conventions={"label_space": self.label_space.value, "subset": len(members), "classes": classes},
            exhibits=[
                Bars(
                    "Accuracy by label space",
                    "With 95% intervals.",
                    list(names.values()),
                    [Bar.of("accuracy", list(shares.values()))],
                    "accuracy",
                    (0.0, 1.0),
                ),
                _hardest_classes(ctx, correct[self.label_space]),
                _pictures(ctx, main),
            ],
            flags=_missing_classes(ctx, members),
        )

    def _members(self, ctx: Context) -> list[int]:
        assert ctx.data is not None
        return self.members(ctx.data, ctx.images)

    def _correct(self, ctx: Context) -> dict[LabelSpace, list[float]]:
        table = ctx.table(_TABLE)
        return {LabelSpace.SUBSET: ctx.correct(table["among"]), LabelSpace.ALL: ctx.correct(table["prediction"])}


class _Released(NaturalAdversarial):
    """A released data set with 200 classes, some of which may have no images here."""

    __slots__ = ()

    def members(self, data: DataSet, images: Images) -> list[int]:
        """The 200 classes of the release."""
        label = {name: number for number, name in enumerate(wnids())}
        return [label[name] for name in subset_wnids(self.name)]

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Raise a UsageError for other images, and for models without ImageNet's classes."""
        if data.classes != wnids() or not set(data.split(split).labels.tolist()) <= set(self.members(data, data.test)):
            raise UsageError(
                f"suite {self.name} is about the 200 classes of {self.name}, and {data.spec} has others. "
                f"Write --data {self.name}:DIR, or --suite natural-adversarial for images of your own."
            )
        known = getattr(getattr(model, "spec", None), "num_classes", len(wnids()))
        if known != len(wnids()):
            raise UsageError(
                f"suite {self.name} needs a model with the 1000 classes of ImageNet, got one with {known}. "
                "Choose another model."
            )


@dataclass(frozen=True, slots=True)
class ImageNetA(_Released):
    """Accuracy on ImageNet-A, among its 200 classes and among all 1000.

    Args:
        label_space: The main measure: `subset`, as its authors report, or `all`.
    """

    name: ClassVar[str] = "imagenet-a"
    title: ClassVar[str] = "ImageNet-A"
    about: ClassVar[str] = "accuracy on ImageNet-A (--data imagenet-a:DIR): 200-way and 1000-way"


@dataclass(frozen=True, slots=True)
class ImageNetR(_Released):
    """Accuracy on ImageNet-R, among its 200 classes and among all 1000.

    Args:
        label_space: The main measure: `subset`, as its authors report, or `all`.
    """

    name: ClassVar[str] = "imagenet-r"
    title: ClassVar[str] = "ImageNet-R"
    about: ClassVar[str] = "accuracy on ImageNet-R (--data imagenet-r:DIR): 200-way and 1000-way"


def _hardest_classes(ctx: Context, correct: Sequence[float]) -> Table:
    labels = ctx.images.labels.tolist()
    counts = Counter(labels)
    num_correct = Counter(label for label, is_correct in zip(labels, correct, strict=True) if is_correct)
    order = sorted(counts, key=lambda label: (num_correct[label] / counts[label], label))[:_HARDEST]
    accuracies = {label: accuracy(num_correct[label], counts[label]) for label in order}
    rows: list[list[Cell]] = [
        [ctx.class_name(label), one.n, one.accuracy, one.low, one.high] for label, one in accuracies.items()
    ]
    columns = ["class", "images", "accuracy", "low", "high"]
    return Table("The hardest classes", f"Of {len(counts)} classes with images, the ten lowest.", columns, rows)


def _pictures(ctx: Context, predictions: Sequence[int]) -> Pictures:
    index = first_images(ctx, _IMAGES)
    shown = []
    for image, label, prediction in zip(
        ctx.images.images(index), ctx.images.labels[index].tolist(), predictions, strict=False
    ):
        name = ctx.class_name(label)
        wrong = "" if prediction == label else f", predicted as {ctx.class_name(prediction)}"
        shown.append(picture(image, name + wrong))
    return Pictures.grid("The first images", "With their class, and the prediction if it is wrong.", shown)


def _missing_classes(ctx: Context, members: Sequence[int]) -> list[Flag]:
    """A flag if classes have no images: they may be predicted, so the accuracy is not comparable."""
    present = set(ctx.images.labels.tolist())
    absent = [ctx.class_name(label) for label in members if label not in present]
    if not absent:
        return []
    sentence = (
        f"{len(absent)} of the {len(members)} classes have no image here, the first is {absent[0]}: "
        "the accuracy is not that of the whole data set"
    )
    return [Flag("classes-missing", sentence, {"missing": len(absent), "of": len(members)})]
