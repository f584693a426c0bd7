"""Perturbations, as images, classified by other models.

Debenedetti (2022, section 4.3.1) rescales a perturbation to an 8-bit image and classifies it with models trained on
natural images. If they predict the class of the attacked image more often than by chance, the perturbation shows the
object. The control compares the same predictions with shuffled labels: the accuracy by chance of a classifier that
prefers some classes.

Shape letters: B images, K classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.analyze import attacked_images
from vitadel.analyze.attacked_images import Sign, Stretch
from vitadel.analyze.base import run_study, tensor_context
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, Steps, check_ranges
from vitadel.core.progress import ProgressCallback, silent
from vitadel.core.rng import fold_seed
from vitadel.core.stats import Accuracy, accuracy
from vitadel.evaluate.context import Batch, Context, Work
from vitadel.evaluate.store import TableRows
from vitadel.models import Model, load, weights_sha256
from vitadel.runs import describe
from vitadel.runs.exhibits import Bar, Bars, Exhibit, Picture, Pictures, Table
from vitadel.runs.schema import StudyRecord
from vitadel.runs.typed_json import tensor_from_json, tensor_to_json
from vitadel.threats import Threat

_TOP = 5
_ENDS = ("accuracy", "low", "high")
_SHOWN = ("clean", "perturbation", "shuffled")
_NAMES = {"clean": "clean images", "perturbation": "perturbations", "shuffled": "perturbations, labels shuffled"}


@dataclass(frozen=True, slots=True)
class PerturbationSemantics:
    """Perturbations of PGD as 8-bit images, classified by other models: top-1 and top-5, with a control.

    Args:
        classifiers: Models as on the command line, with the same classes as the studied model; images are resized to
            their image size.
        images: Number of images shown; all are measured.
        steps: Steps of PGD.
        step_size: Step size of PGD; 1.5 eps / steps if not given.
        stretch: The change that is black or white in the image of a perturbation.
        sign: Which image is subtracted from the other.
        gray: Whether perturbations are converted to gray.
    """

    former_names: ClassVar[dict[str, str]] = {"grey": "gray"}

    title: ClassVar[str] = "Perturbations classified by other models"
    about: ClassVar[str] = "perturbations classified by other models, with shuffled labels as the control"
    needs_threat: ClassVar[bool] = True

    classifiers: tuple[str, ...] = ()
    images: Count = 6
    steps: Steps = 100
    step_size: attacked_images.StepSize | None = None
    stretch: Stretch = Stretch.EPS
    sign: Sign = Sign.ADDED
    gray: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.classifiers)) < len(self.classifiers):
            raise UsageError(
                f"PerturbationSemantics.classifiers names a model twice: {', '.join(self.classifiers)}. Name each once."
            )

    def check(self, model: nn.Module) -> None:
        _check_classes(model, self._loaded())

    def run(self, ctx: Context) -> None:
        _WithClassifiers(self, self._loaded()).run(ctx)

    def summarize(self, ctx: Context) -> StudyRecord:
        return _WithClassifiers(self, self._loaded()).summarize(ctx)

    def _loaded(self) -> dict[str, nn.Module]:
        if not self.classifiers:
            raise UsageError(
                "no model was named to classify the perturbations. Write perturbation-semantics:classifiers=MODEL, "
                "several with + between them."
            )
        return {name: load(name) for name in self.classifiers}


def classify_perturbations(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    classifiers: Mapping[str, nn.Module],
    threat: Threat | str = "linf:8/255",
    settings: PerturbationSemantics | None = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    progress: ProgressCallback = silent,
) -> dict[str, object]:
    """The study with classifiers that are loaded already.

    Args:
        model: The model that is attacked.
        x: [B, 3, H, W] the images, with pixels in [0, 1].
        y: [B] their labels.
        classifiers: The models that classify the perturbations, by name; `settings.classifiers` is ignored.
        threat: The threat model of the attack.
        settings: The settings of the study.
        seed: Seeds all random numbers.
        batch_size: Images per batch; by default what the engine chooses for the device.
        progress: Called with the progress.

    Returns:
        The result of the study, as plain JSON values.
    """
    if not classifiers:
        raise UsageError("no model was given to classify the perturbations. Give them by name: {'resnet': model}.")
    study = _WithClassifiers(settings or PerturbationSemantics(), dict(classifiers))
    return run_study(
        study, tensor_context(model, x, y, threat, seed=seed, batch_size=batch_size, progress=progress)
    ).to_json()


@dataclass(frozen=True, slots=True)
class _WithClassifiers:
    """The study with loaded classifiers."""

    title: ClassVar[str] = PerturbationSemantics.title
    about: ClassVar[str] = PerturbationSemantics.about
    needs_threat: ClassVar[bool] = True

    settings: PerturbationSemantics
    classifiers: Mapping[str, nn.Module]

    def check(self, model: nn.Module) -> None:
        _check_classes(model, self.classifiers)

    def run(self, ctx: Context) -> None:
        with _moved_to(self.classifiers, ctx.device):
            ctx.map(self._table_name, self._measure(ctx))

    @property
    def _table_name(self) -> str:
        """The table's name contains hashes of the weights, since a name alone does not identify a classifier."""
        return f"classified-{'-'.join(_weights_hash(one)[:8] for one in self.classifiers.values())}"

    def summarize(self, ctx: Context) -> StudyRecord:
        rows, settings, threat = ctx.table(self._table_name), self.settings, str(ctx.required_threat)
        classes = rows["classes"][0]
        scores = {
            name: {shown: _score(rows[f"{shown}-{number}"], classes) for shown in _SHOWN}
            for number, name in enumerate(self.classifiers)
        }
        exhibits: list[Exhibit] = [
            _bars(scores, classes, len(rows)),
            self._scores_table(scores, classes, ctx),
            self._pictures(rows, ctx),
        ]
        numbers = {
            "n": len(rows),
            "settings": describe(settings),
            "classes": classes,
            "chance": {"top1": 1 / classes, "top5": min(1.0, _TOP / classes)},
            "classifiers": {name: _weights_hash(one) for name, one in self.classifiers.items()},
            "fooled": sum(rows["success"]),
            "scores": {
                name: {
                    shown: {top: describe(perturbed) for top, perturbed in tops.items()}
                    for shown, tops in kinds.items()
                }
                for name, kinds in scores.items()
            },
        }
        summary = _summary(scores, classes, len(rows), threat)
        return StudyRecord("perturbation-semantics", self.title, summary, exhibits, numbers)

    def _measure(self, ctx: Context) -> Work:
        settings, threat = self.settings, ctx.required_threat
        attack = attacked_images.pgd(settings.steps, settings.step_size, threat)
        shuffled = _permutation(len(ctx.images), ctx.seed)

        def measure(batch: Batch) -> dict[str, object]:
            result, label_B = ctx.attack(attack, batch), ctx.images.labels[batch.index]
            x, pixels = batch.x.cpu(), self._as_image((result.x_adv - batch.x).cpu(), threat)
            other_B = ctx.images.labels[shuffled[batch.index]]
            columns: dict[str, object] = {"success": result.success}
            predictions = []
            for number, (name, classifier) in enumerate(self.classifiers.items()):
                clean_BK = self._logits(name, classifier, x, ctx)
                z_BK = self._logits(name, classifier, pixels.float() / 255, ctx)
                if int(label_B.max()) >= z_BK.shape[1]:
                    raise UsageError(
                        f"{name} has {z_BK.shape[1]} classes, the data has a label {int(label_B.max())}. "
                        "Choose a classifier for this data set."
                    )
                columns |= {
                    f"clean-{number}": rank_of(clean_BK, label_B),
                    f"perturbation-{number}": rank_of(z_BK, label_B),
                    f"shuffled-{number}": rank_of(z_BK, other_B),
                    "classes": [z_BK.shape[1]] * len(batch),
                }
                predictions.append(z_BK.argmax(1))
            shown = [
                tensor_to_json(image) if index < settings.images else None
                for index, image in zip(batch.index.tolist(), pixels, strict=True)
            ]
            return {**columns, "predictions": torch.stack(predictions, 1), "shown": shown}

        return measure

    def _as_image(self, delta: Tensor, threat: Threat) -> Tensor:
        """uint8 [B, C, H, W]."""
        pixels = attacked_images.as_bytes(delta, threat, self.settings.stretch, self.settings.sign)
        return attacked_images.gray(pixels).round().byte().expand_as(pixels) if self.settings.gray else pixels

    def _logits(self, name: str, classifier: nn.Module, x: Tensor, ctx: Context) -> Tensor:
        size = _image_size(classifier)
        if size is not None and tuple(x.shape[-2:]) != (size, size):
            x = F.interpolate(x, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)
        try:
            return ctx.logits(x, model=classifier, seed=ctx.seed)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error

    def _pictures(self, rows: TableRows, ctx: Context) -> Pictures:
        count = min(self.settings.images, len(rows))
        x, labels = ctx.images.images(torch.arange(count)).cpu(), ctx.images.labels[:count].tolist()
        cells, names = [], list(self.classifiers)
        for index, (image, label) in enumerate(zip(x, labels, strict=True)):
            predicted = rows["predictions"][index][0]
            pixels = tensor_from_json(rows["shown"][index]).float() / 255
            note = f"predicted {predicted}" + (", correct" if predicted == label else "")
            cells.append([Picture.of(image.numpy()), Picture.of(pixels.numpy(), note=note)])
        how = attacked_images.how_stretched(ctx.required_threat, self.settings.stretch, self.settings.sign)
        return Pictures(
            "Inputs of the classifiers",
            f"The first images and the perturbations of PGD with {self.settings.steps} steps. "
            f"{how} Below a perturbation is the class that {names[0]} predicts for it.",
            cells,
            rows=[f"label {label}" for label in labels],
            columns=["image", "perturbation"],
        )

    def _scores_table(
        self, scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int, ctx: Context
    ) -> Table:
        sizes = {name: _image_size(one) for name, one in self.classifiers.items()}
        resized = [name for name, size in sizes.items() if size is not None and size != ctx.image_size[1]]
        note = f" Images were resized for {', '.join(resized)} (bicubic)." if resized else ""
        tops = list(next(iter(scores.values()))["clean"])
        return Table(
            "Top-k accuracy (table)",
            f"Share of {len(ctx.images)} images whose class is among the classifier's top k, with Wilson's 95% "
            f"intervals. Chance is {1 / classes:.4f} for top-1"
            + (f" and {_TOP / classes:.4f} for top-{_TOP}" if "top5" in tops else "")
            + f"; shuffled labels give the accuracy by chance of a classifier that prefers some classes.{note}",
            ["classifier", "shown", *(f"{top} {part}" for top in tops for part in ("", "low", "high"))],
            [
                [name, _NAMES[shown], *(getattr(scores[name][shown][top], end) for top in tops for end in _ENDS)]
                for name in scores
                for shown in _SHOWN
            ],
        )


def _permutation(n: int, seed: int) -> Tensor:
    """A random order of all images, independent of how they are distributed over processes."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(fold_seed(seed, *b"shuffled labels")))


def rank_of(z_BK: Tensor, label_B: Tensor) -> Tensor:
    """[B]: the number of other classes whose logits are at least that of the label."""
    own_B1 = z_BK.gather(1, label_B[:, None])
    return (z_BK >= own_B1).sum(1) - 1


def _score(ranks: Sequence[int], classes: int) -> dict[str, Accuracy]:
    """Top-1 accuracy, and top-5 accuracy if there are more than five classes."""
    tops = {"top1": 1, **({"top5": _TOP} if classes > _TOP else {})}
    return {name: accuracy(sum(rank < top for rank in ranks), len(ranks)) for name, top in tops.items()}


def _informative_top(classes: int) -> str:
    """The more informative accuracy: with ten classes, top-5 is 50% by chance."""
    return "top5" if classes > 2 * _TOP else "top1"


def _bars(scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int, n: int) -> Bars:
    top = _informative_top(classes)
    first = int(top.removeprefix("top"))
    share = (
        f"Share of {n} perturbations for which the class of the image is among the classifier's top {first}"
        if first > 1
        else f"Share of {n} perturbations for which the classifier predicts the class of the image"
    )
    return Bars(
        f"Perturbations classified, top-{first}",
        f"{share}, beside that of shuffled labels; with Wilson's 95% intervals. If perturbations show the object, "
        "accuracy is higher than for shuffled labels.",
        list(scores),
        [
            Bar.of(_NAMES[shown], [scores[name][shown][top] for name in scores])
            for shown in ("perturbation", "shuffled")
        ],
        y_label=f"top-{first} accuracy",
        references=[("chance", first / classes)],
    )


def _summary(scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int, n: int, threat: str) -> str:
    sentences = []
    for name, kinds in scores.items():
        top = _informative_top(classes)
        score, control = kinds["perturbation"][top], kinds["shuffled"][top]
        sentences.append(
            f"the top-{top[-1]} accuracy of {name} is {score.accuracy:.1%} ({score.low:.1%}-{score.high:.1%}), "
            f"{control.accuracy:.1%} with shuffled labels"
        )
    return f"On the perturbations of {n} images at {threat}, " + "; ".join(sentences) + "."


def _check_classes(model: nn.Module, classifiers: Mapping[str, nn.Module]) -> None:
    wanted = _classes(model)
    for name, one in classifiers.items():
        if wanted is not None and (got := _classes(one)) is not None and got != wanted:
            raise UsageError(
                f"the studied model has {wanted} classes, the classifier {name} has {got}. "
                "Choose a classifier for the same classes."
            )


def _classes(model: nn.Module) -> int | None:
    return model.spec.num_classes if isinstance(model, Model) and model.spec is not None else None


def _image_size(model: nn.Module) -> int | None:
    return model.spec.image_size if isinstance(model, Model) and model.spec is not None else None


def _weights_hash(model: nn.Module) -> str:
    return weights_sha256((model.net if isinstance(model, Model) else model).state_dict())


@contextmanager
def _moved_to(classifiers: Mapping[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Inside, classifiers are on the device of the studied model; afterwards, on their own devices again."""
    devices = {name: device_of(one) for name, one in classifiers.items()}
    try:
        for one in classifiers.values():
            one.to(device)
        yield
    finally:
        for name, one in classifiers.items():
            one.to(devices[name])
