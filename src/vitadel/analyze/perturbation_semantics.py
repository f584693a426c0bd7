"""Do perturbations mean anything to others? Independent models classify them as if they were photographs.

Debenedetti (2022, section 4.3.1): a perturbation stretched to an 8-bit image is shown to classifiers that were trained
on ordinary images. If they name the class of the attacked image more often than chance does, the perturbation shows the
object. The control are the same answers against the labels in a random order: what a classifier that has its favorites
gets right by chance.

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.analyze import attacked_images
from vitadel.analyze.attacked_images import ImageAttacker, Sign, Stretch
from vitadel.analyze.json_arrays import packed, unpacked
from vitadel.analyze.study import Bench, InHand, Parts, as_it_is
from vitadel.attacks import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify, silent
from vitadel.core.rng import fold_seed
from vitadel.core.stats import Accuracy, accuracy
from vitadel.models import Model, fingerprint, load
from vitadel.runs import describe
from vitadel.runs.exhibits import Bar, Bars, Exhibit, Picture, Pictures, Table, findings
from vitadel.threats import Threat

_ROWS = 64
_TOP = 5
_SHOWN = ("clean", "perturbation", "shuffled")
_NAMES = {"clean": "clean images", "perturbation": "perturbations", "shuffled": "perturbations, labels shuffled"}


@dataclass(frozen=True, slots=True)
class PerturbationSemantics:
    """Perturbations of PGD as 8-bit images, classified by other models: top-1 and top-5, with a control.

    `classifiers` are models as on the command line, with the classes of the studied one; images of another size than
    theirs are resized. `steps` and `step_size` are those of PGD, 1.5 eps / steps if not said. `stretch` and `sign`
    choose how a perturbation becomes an image, `gray` takes its colors away; `images` are shown.
    """

    about: ClassVar[str] = "do perturbations show the object? Other models classify them, beside shuffled labels"
    needs_threat: ClassVar[bool] = True

    classifiers: tuple[str, ...] = ()
    images: Count = 6
    steps: Count = 100
    step_size: attacked_images.StepSize | None = None
    stretch: Stretch = Stretch.EPS
    sign: Sign = Sign.ADDED
    gray: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.classifiers)) < len(self.classifiers):
            raise UsageError(f"PerturbationSemantics.classifiers names a model twice: {', '.join(self.classifiers)}.")

    def refuse(self, model: nn.Module) -> None:
        _check_classes(model, self._loaded())

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """How often each classifier names the class of the attacked image, on all images."""
        return _Work(self, self._loaded(), bench).result()

    def _loaded(self) -> dict[str, nn.Module]:
        if not self.classifiers:
            raise UsageError(
                "no model was named to classify the perturbations. Write semantics:classifiers=MODEL, several with + "
                "between them."
            )
        return {name: load(name) for name in self.classifiers}


def semantics(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    classifiers: Mapping[str, nn.Module],
    threat: Threat | str = "linf:8/255",
    settings: PerturbationSemantics | None = None,
    *,
    seed: int = 0,
    batch: int | None = None,
    notify: Notify = silent,
) -> dict[str, object]:
    """The study with classifiers in hand, by name; those that the settings name are not loaded."""
    if not classifiers:
        raise UsageError("no model was given to classify the perturbations. Give them by name: {'resnet': model}.")
    radius = threats.as_threat(threat)
    chosen = settings or PerturbationSemantics()
    bench = Bench(model, InHand(x, y), Parts(), radius, seed, batch, notify)
    with as_it_is(model):
        return _Work(chosen, dict(classifiers), bench).result()


@dataclass(frozen=True, slots=True)
class _Work:
    """The study on its way."""

    settings: PerturbationSemantics
    classifiers: Mapping[str, nn.Module]
    bench: Bench

    def result(self) -> dict[str, object]:
        attacked_images.check_images(self.bench.images)
        device, settings = device_of(self.bench.model), self.settings
        with _on(self.classifiers, device):
            # other weights under the same name are another study's numbers
            marks = {name: _mark(one) for name, one in self.classifiers.items()}
            known = "-".join(mark[:8] for mark in marks.values())
            told = attacked_images.gathered(self.bench, f"answers-{known}", self._look())
        classes = int(str(told["classes"][0]))
        scores = {
            name: {shown: _score(told[f"{shown}-{number}"], classes) for shown in _SHOWN}
            for number, name in enumerate(self.classifiers)
        }
        exhibits: list[Exhibit] = [
            _bars(scores, classes, len(self.bench.images)),
            self._table(scores, classes),
            self._pictures(told["shown"]),
        ]
        numbers = {
            "n": len(self.bench.images),
            "settings": describe(settings),
            "threat": {"text": threats.spell(self.bench.threat), "eps": self.bench.threat.eps},
            "classes": classes,
            "chance": {"top1": 1 / classes, "top5": min(1.0, _TOP / classes)},
            "classifiers": marks,
            "fooled": sum(map(bool, told["fooled"])),
            "scores": {
                name: {shown: {top: describe(found) for top, found in tops.items()} for shown, tops in kinds.items()}
                for name, kinds in scores.items()
            },
            "seconds": self.bench.parts.seconds,
        }
        summary = _summary(scores, classes, len(self.bench.images), threats.spell(self.bench.threat))
        result = findings("semantics", "What perturbations mean to other models", summary, exhibits, numbers)
        self.bench.parts.close(result)
        return result

    def _look(self) -> "Callable[[Tensor], dict[str, list[object]]]":
        settings = self.settings
        attack = attacked_images.pgd(settings.steps, settings.step_size, self.bench.threat)
        run_attack = ImageAttacker(
            self.bench.model, self.bench.images, attack, self.bench.threat, self.bench.seed, self.bench.batch
        )
        shuffled = _permutation(len(self.bench.images), self.bench.seed)

        def look(rows: Tensor) -> dict[str, list[object]]:
            struck, label_B = run_attack(rows), self.bench.images.labels[rows]
            pixels = self._as_image(struck.adversarial - struck.x)
            other_B = self.bench.images.labels[shuffled[rows]]
            told: dict[str, list[object]] = {"fooled": struck.fooled_B.tolist()}
            for number, (name, classifier) in enumerate(self.classifiers.items()):
                clean_BK = self._answers(name, classifier, struck.x)
                z_BK = self._answers(name, classifier, pixels.float() / 255)
                if int(label_B.max()) >= z_BK.shape[1]:
                    raise UsageError(
                        f"{name} knows {z_BK.shape[1]} classes, the data has a label {int(label_B.max())}. "
                        "Choose a classifier for this data set."
                    )
                told |= {
                    f"clean-{number}": _ranks(clean_BK, label_B).tolist(),
                    f"perturbation-{number}": _ranks(z_BK, label_B).tolist(),
                    f"shuffled-{number}": _ranks(z_BK, other_B).tolist(),
                    f"said-{number}": z_BK.argmax(1).tolist(),
                    "classes": [z_BK.shape[1]] * len(rows),
                }
            shown = [(row, pixel) for row, pixel in zip(rows.tolist(), pixels, strict=True) if row < settings.images]
            said = [
                [told[f"said-{number}"][place] for number in range(len(self.classifiers))]
                for place in range(len(shown))
            ]
            told["shown"] = [
                {"pixels": packed(pixel), "said": words} for (_, pixel), words in zip(shown, said, strict=True)
            ]
            return told

        return look

    def _as_image(self, delta: Tensor) -> Tensor:
        """uint8 [B, C, H, W]."""
        pixels = attacked_images.as_bytes(delta, self.bench.threat, self.settings.stretch, self.settings.sign)
        return attacked_images.gray(pixels).round().byte().expand_as(pixels) if self.settings.gray else pixels

    def _answers(self, name: str, classifier: nn.Module, x: Tensor) -> Tensor:
        device, size = device_of(classifier), _image_size(classifier)
        if size is not None and tuple(x.shape[-2:]) != (size, size):
            x = F.interpolate(x, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)

        def ask(rows: Tensor) -> Tensor:
            with isolated(classifier, self.bench.seed, device), torch.no_grad():
                return classifier(x[rows].to(device)).float().cpu()

        z_BK = torch.cat([made for _, made in in_batches(torch.arange(len(x)), self.bench.batch or _ROWS, ask)])
        if z_BK.ndim != 2 or not bool(z_BK.isfinite().all()):
            raise UsageError(f"{name} does not answer with finite logits [images, classes], got {list(z_BK.shape)}.")
        return z_BK

    def _pictures(self, shown: Sequence[object]) -> Pictures:
        count = min(self.settings.images, len(self.bench.images))
        x, labels = self.bench.images.images(torch.arange(count)).cpu(), self.bench.images.labels[:count].tolist()
        cells, names = [], list(self.classifiers)
        for image, label, told in zip(x, labels, shown, strict=True):
            assert isinstance(told, Mapping)
            said = [f"says {word}" + (", right" if word == label else "") for word in told["said"]]
            pixels = unpacked(told["pixels"]).float() / 255
            cells.append([Picture.of(image.numpy()), Picture.of(pixels.numpy(), note=said[0])])
        how = attacked_images.how_stretched(self.bench.threat, self.settings.stretch, self.settings.sign)
        return Pictures(
            "What the classifiers see",
            f"The first images and the perturbations of PGD with {self.settings.steps} steps. "
            f"{how} Below a perturbation stands the class that {names[0]} sees in it.",
            cells,
            rows=[f"label {label}" for label in labels],
            columns=["image", "perturbation"],
        )

    def _table(self, scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int) -> Table:
        sizes = {name: _image_size(one) for name, one in self.classifiers.items()}
        side = self.bench.images.images(torch.arange(1)).shape[-1]
        resized = [name for name, size in sizes.items() if size is not None and size != side]
        note = f" Images were resized for {', '.join(resized)} (bicubic)." if resized else ""
        tops = list(next(iter(scores.values()))["clean"])
        return Table(
            "In numbers",
            f"Share of {len(self.bench.images)} images whose class is among the classifier's first, with Wilson's 95% "
            f"intervals. Chance is {1 / classes:.4f} for the first"
            + (f" and {_TOP / classes:.4f} for the first {_TOP}" if "top5" in tops else "")
            + f"; shuffled labels show what a classifier with favorites gets by it.{note}",
            ["classifier", "shown", *(f"{top} {part}" for top in tops for part in ("", "low", "high"))],
            [
                [name, _NAMES[shown], *(cell for top in tops for cell in _cells(scores[name][shown][top]))]
                for name in scores
                for shown in _SHOWN
            ],
        )


def _cells(found: Accuracy) -> tuple[float, float, float]:
    return found.accuracy, found.low, found.high


def _permutation(n: int, seed: int) -> Tensor:
    """A random order of all images; in a part of them the labels are as mixed as in all."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(fold_seed(seed, *b"shuffled labels")))


def _ranks(z_BK: Tensor, label_B: Tensor) -> Tensor:
    """[B]: how many classes a classifier puts before the label; a tie counts against it."""
    own_B1 = z_BK.gather(1, label_B[:, None])
    return (z_BK >= own_B1).sum(1) - 1


def _score(ranks: Sequence[object], classes: int) -> dict[str, Accuracy]:
    """The share of images whose label is first, and among the first five where there are more classes than that."""
    places = [int(str(rank)) for rank in ranks]
    tops = {"top1": 1, **({"top5": _TOP} if classes > _TOP else {})}
    return {name: accuracy(sum(place < top for place in places), len(places)) for name, top in tops.items()}


def _telling(classes: int) -> str:
    """Which share says more: five of ten classes are right by a toss of a coin."""
    return "top5" if classes > 2 * _TOP else "top1"


def _bars(scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int, n: int) -> Bars:
    top = _telling(classes)
    first = int(top.removeprefix("top"))
    return Bars(
        f"Perturbations classified, top-{first}",
        f"Share of {n} perturbations whose image's class is among the first {first} of the classifier, beside the "
        "same answers against shuffled labels; with Wilson's 95% intervals. Perturbations that show the object stand "
        "out from the shuffled ones."
        if first > 1
        else f"Share of {n} perturbations that the classifier gives the class of their image, beside the same answers "
        "against shuffled labels; with Wilson's 95% intervals. Perturbations that show the object stand out from the "
        "shuffled ones.",
        list(scores),
        [
            Bar(
                _NAMES[shown],
                [scores[name][shown][top].accuracy for name in scores],
                [scores[name][shown][top].low for name in scores],
                [scores[name][shown][top].high for name in scores],
            )
            for shown in ("perturbation", "shuffled")
        ],
        y_label=f"top-{first} accuracy",
        references=[("chance", first / classes)],
    )


def _summary(scores: Mapping[str, Mapping[str, Mapping[str, Accuracy]]], classes: int, n: int, threat: str) -> str:
    told = []
    for name, kinds in scores.items():
        top = _telling(classes)
        found, control = kinds["perturbation"][top], kinds["shuffled"][top]
        told.append(
            f"{name} finds the image's class in {found.accuracy:.1%} ({found.low:.1%}-{found.high:.1%}) of them at "
            f"top-{top[-1]}, against {control.accuracy:.1%} with shuffled labels"
        )
    return f"Of the perturbations of {n} images at {threat}, " + "; ".join(told) + "."


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


def _mark(model: nn.Module) -> str:
    return fingerprint((model.net if isinstance(model, Model) else model).state_dict())


@contextmanager
def _on(classifiers: Mapping[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Classifiers beside the studied model inside, back where they were after."""
    homes = {name: device_of(one) for name, one in classifiers.items()}
    try:
        for one in classifiers.values():
            one.to(device)
        yield
    finally:
        for name, one in classifiers.items():
            one.to(homes[name])
