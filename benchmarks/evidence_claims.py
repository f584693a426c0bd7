"""The claims of the five papers, what decides each, and the verdict: intervals and paired tests of `core.stats`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from evidence_records import ArmRecord, Records, Scores
from numpy.typing import NDArray

from vitadel.core.stats import (
    Accuracy,
    Difference,
    accuracy,
    crossed_interval,
    independent_difference,
    paired_difference,
)

# -------------------------------------------------------------- comparisons


class Verdict(Enum):
    """What the records say of a claim."""

    HOLDS = "holds"
    DOES_NOT = "does not hold"
    UNDECIDED = "undecided"
    UNMEASURED = "not measured yet"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Two accuracies and their difference.

    Args:
        first: The mean of the first and its interval.
        second: That of the second.
        difference: By how much the first is higher.
        n: Images.
        seeds: Trainings of each.
        sources: The files of the records.
        commit: The commits of the records.
    """

    first: tuple[float, float, float]
    second: tuple[float, float, float]
    difference: Difference
    n: int
    seeds: int
    sources: tuple[str, ...]
    commits: tuple[str, ...]


ALPHA = 0.05


def decide(difference: Difference, margin: float = 0.0) -> Verdict:
    """Whether the first is higher than the second by more than `margin`, in shares.

    Without a margin, an exact test decides where there is one, at 5%; otherwise the 95% interval does: it lies above
    the margin, below it, or the records do not say.
    """
    if difference.p is not None and not margin:
        if difference.p >= ALPHA:
            return Verdict.UNDECIDED
        return Verdict.HOLDS if difference.value > 0 else Verdict.DOES_NOT
    if difference.low > margin:
        return Verdict.HOLDS
    return Verdict.DOES_NOT if difference.high < margin else Verdict.UNDECIDED


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim with several comparisons holds if all do, and does not if one does not."""
    for decisive in (Verdict.DOES_NOT, Verdict.UNMEASURED, Verdict.UNDECIDED):
        if decisive in verdicts:
            return decisive
    return Verdict.HOLDS if verdicts else Verdict.UNMEASURED


def mean_of(scores: Sequence[Scores]) -> tuple[float, float, float]:
    """The mean and its interval: Wilson's for one training with one prediction per image."""
    if len(scores) == 1 and scores[0].of == 1:
        one = accuracy(int(scores[0].correct.sum()), len(scores[0].correct))
        return one.accuracy, one.low, one.high
    return crossed_interval(np.stack([one.shares for one in scores]))


def difference_of(first: Sequence[Scores], second: Sequence[Scores]) -> Difference:
    """The difference on the same images: an exact test for one training, else an interval over trainings and images."""
    if len(first) == len(second) == 1 and first[0].of == second[0].of == 1:
        one, other = first[0].correct, second[0].correct
        return paired_difference(int((one > other).sum()), int((other > one).sum()), len(one))
    pairs = zip(first, second, strict=True)
    return Difference(*crossed_interval(np.stack([one.shares - other.shares for one, other in pairs])))


Side = tuple[str, str]  # an arm and a score


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two scores of a measurement.

    Args:
        about: What is compared, as the page writes it.
        measurement: Of `MEASUREMENTS`.
        first: The arm and score that should be higher. A score with `*` is several, such as random draws, which are a
            sample as seeds are.
        second: The arm and score that it is compared with.
        margin: By how much the first must be higher; negative if it may be lower by less than this.
        given: A score that must be correct in both arms for an image to count.
        judged: Whether the verdict depends on it; if not, it is there to be read.
        trained: Whether one seed is too few to decide.
        published: Both numbers in percent, as the paper prints them.
    """

    about: str
    measurement: str
    first: Side
    second: Side
    margin: float = 0.0
    given: str = ""
    judged: bool = True
    trained: bool = False
    published: tuple[float, float] | None = None

    def estimate(self, records: Records) -> Estimate | None:
        pair = [records.arm(self.measurement, side[0]) for side in (self.first, self.second)]
        common = set.intersection(*({one.seed for one in arm} for arm in pair))
        scales = {one.scale for arm in pair for one in arm}
        if not common or len(scales) > 1:
            return None
        chosen = [[one for one in arm if one.seed in common] for arm in pair]
        images = {(one.images, one.n) for arm in chosen for one in arm}
        assert len(images) == 1, f"{self.measurement}: arms were measured on different images, {images}"
        kept = self._kept(chosen)
        first, second = (
            [Scores(own.correct[kept], own.of) for one in arm for own in one.chosen(side[1])]
            for arm, side in zip(chosen, (self.first, self.second), strict=True)
        )
        lines = [one.line for arm in chosen for one in arm]
        return Estimate(
            mean_of(first),
            mean_of(second),
            difference_of(first, second),
            int(kept.sum()),
            len(common),
            tuple(dict.fromkeys(line["file"] for line in lines)),
            tuple(dict.fromkeys(line["commit"][:7] for line in lines)),
        )

    def _kept(self, arms: Sequence[Sequence[ArmRecord]]) -> NDArray[np.bool_]:
        """[N]: the images that count."""
        kept = np.ones(arms[0][0].n, np.bool_)
        for one in (one for arm in arms for one in arm if self.given):
            kept &= one.scores[self.given].correct == 1
        return kept

    def verdict(self, estimate: Estimate | None) -> Verdict:
        if estimate is None:
            return Verdict.UNMEASURED
        if self.trained and estimate.seeds < 2:  # nothing is known of the variation between seeds
            return Verdict.UNDECIDED
        return decide(estimate.difference, self.margin)


@dataclass(frozen=True, slots=True)
class Earlier:
    """Two numbers of records by earlier commands, which do not have every image.

    Args:
        about: What is compared.
        command: What made the records.
        seed: The seed of that command.
        first: The keys of the first record and the path to its number.
        second: Those of the second.
        n: Images.
        counts: Paths, in the first record, to how many images only the first and only the second has, where records
            know it. Images that are counted in both make the test stricter.
        margin: As of `Comparison`.
        judged: As of `Comparison`.
        stands_in: Whether it decides as long as nothing else of its claim has been measured.
        trained: As of `Comparison`.
        published: As of `Comparison`.
    """

    about: str
    command: str
    first: tuple[Mapping[str, object], tuple[str, ...]]
    second: tuple[Mapping[str, object], tuple[str, ...]]
    n: int
    seed: int = 0
    counts: tuple[tuple[str, ...], ...] = ()
    margin: float = 0.0
    judged: bool = True
    stands_in: bool = False
    trained: bool = False
    published: tuple[float, float] | None = None

    def estimate(self, records: Records) -> Estimate | None:
        found = [records.find(keys) for keys, _ in (self.first, self.second)]
        if found[0] is None or found[1] is None:
            return None
        lines = [line for line in found if line is not None]
        sides = [_number(line, path, self.n) for line, (_, path) in zip(lines, (self.first, self.second), strict=True)]
        if self.counts:
            only = [int(_at(lines[0], path)) for path in self.counts]
            difference = paired_difference(only[0], only[1], self.n)
        else:
            difference = independent_difference(sides[0], sides[1])
        first, second = ((one.accuracy, one.low, one.high) for one in sides)
        files = tuple(dict.fromkeys(line["file"] for line in lines))
        return Estimate(first, second, difference, self.n, 1, files, tuple(dict.fromkeys(map(commit_of, lines))))

    def verdict(self, estimate: Estimate | None) -> Verdict:
        if estimate is None:
            return Verdict.UNMEASURED
        return Verdict.UNDECIDED if self.trained else decide(estimate.difference, self.margin)


def commit_of(line: Mapping[str, Any]) -> str:
    return str(line["versions"]["vitadel"])[:7]


def _at(line: Any, path: Sequence[str]) -> Any:
    for name in path:
        line = next(one for one in line if one["name"] == name) if isinstance(line, list) else line[name]
    return line


def _number(line: Mapping[str, Any], path: Sequence[str], n: int) -> Accuracy:
    """An accuracy of an earlier record, with the interval that the record gives; Wilson's if it gives none."""
    one = _at(line, path)
    if not isinstance(one, Mapping):
        return accuracy(round(one * n), n)
    value = one.get("accuracy", one.get("value"))
    return Accuracy(round(value * n), n, value, one["low"], one["high"])


# ------------------------------------------------------------------- claims


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper claims.

    Args:
        paper: Author and year, and where it says so.
        title: The claim.
        comparisons: What decides it.
        note: What the measurement does not have of the paper's.
    """

    paper: str
    title: str
    comparisons: tuple[Comparison | Earlier, ...]
    note: str = ""

    def judged(self, records: Records) -> list[Comparison | Earlier]:
        """The comparisons that decide: earlier records stand in where none of the others has been measured."""
        own = [one for one in self.comparisons if one.judged]
        if any(one.estimate(records) for one in own):
            return own
        return [one for one in self.comparisons if isinstance(one, Earlier) and one.stands_in] or own

    def verdict(self, records: Records) -> Verdict:
        return combine([one.verdict(one.estimate(records)) for one in self.judged(records)])


_DEBENEDETTI, _JAIN, _BHOJANAPALLI = "Debenedetti 2022", "Jain & Dutta 2024", "Bhojanapalli et al. 2021"
_LI_XU, _WU = "Li & Xu 2023", "Wu et al. 2025"

_trained = partial(Comparison, trained=True)


def _robust(about: str, measurement: str, first: str, second: str, **more: Any) -> Comparison:
    return _trained(about, measurement, (first, "robust"), (second, "robust"), **more)


def _clean_too(about: str, measurement: str, first: str, second: str) -> Comparison:
    return _trained(about, measurement, (first, "clean"), (second, "clean"), judged=False)


def _both_models(measurement: str, score: str, what: str, margin: float = 0.0) -> tuple[Comparison, ...]:
    """ViT-Tiny against ResNet-18: on the images that both classify correctly, which decides, and on all."""
    compared = partial(Comparison, measurement=measurement, first=("vit", score), second=("resnet", score))
    return (
        compared(
            f"ViT-Tiny against ResNet-18, {what}, images that both classify correctly", given="clean", margin=margin
        ),
        compared("the same, all images", judged=False),
        Comparison("clean accuracy", measurement, ("vit", "clean"), ("resnet", "clean"), judged=False),
    )


def _survey(about: str, suite: str, measure: str, *, named: str = "") -> Earlier:
    """ViT-Tiny against ResNet-18 on 1000 images, unpaired; `named` is the current name of a suite renamed since."""
    sides = [
        ({"benchmark": "survey", "model": model, "suite": suite, "n": 1000}, ("measures", measure))
        for model in ("timm:vit_tiny_patch16_224", "timm:resnet18")
    ]
    command = f"vitadel evaluate MODEL --data imagenet:DIR --suite {named or suite}"
    return Earlier(about, command, sides[0], sides[1], 1000, judged=False)


_SCALED = {
    "zoo:cifar10-vit-tiny-short": ("the ViT-Tiny/4 of the zoo", "folder:DIR", 500, "8/255"),
    "dig": ("a tiny ViT on digits", "digits", 359, "24/255"),
}


def _scaled(model: str) -> tuple[str, str, int]:
    """What a model is called, the command of its records, and its images."""
    about, data, n, eps = _SCALED[model]
    return about, f"python benchmarks/attention_scaling.py MODEL --data {data} -n {n} --threat linf:{eps}", n


def _protocol(model: str, attack: str, published: tuple[float, float] | None = None) -> tuple[Earlier, ...]:
    """The robust accuracy of a model against that of the rescaled one, and their clean accuracies."""
    about, command, n = _scaled(model)
    keys = {"benchmark": "attention-scaling", "model": model, "attack": attack}
    unscaled = {"benchmark": "saturation", "model": model, "factor": 1.0}
    compared = f"{about}, against the same rescaled by AAS"
    rescaled, clean = (keys, ("aas", "rescaled")), (keys, ("aas", "rescaled_clean"))
    return (
        Earlier(f"{attack} on {compared}", command, (keys, ("plain",)), rescaled, n, published=published),
        Earlier(f"clean accuracy of {compared}", command, (unscaled, ("clean",)), clean, n, judged=False),
    )


def _itself(model: str, attack: str) -> Earlier:
    """The robust accuracy of a model under two restarts, against one restart and AAS."""
    about, command, n = _scaled(model)
    keys = {"benchmark": "attention-scaling", "model": model, "attack": attack}
    counts = ("aas", "new_by_scaling"), ("aas", "new_by_second_try")
    return Earlier(
        f"{attack} on {about}: under two restarts, against one restart and AAS: by more than 2 points",
        command,
        (keys, ("again", "union")),
        (keys, ("aas", "union")),
        n,
        counts=counts,
        margin=0.02,
    )


_CIFAR = "CIFAR-10 (JPEG), a small model and a short training, the first 1000 test images."
_UNEQUAL = (
    "ImageNet-21k pre-trained ViT-Tiny/16 (5.7 M parameters) and ResNet-18 (11.7 M) trained on ImageNet alone. Their "
    "clean accuracies are not equal, so the images that both classify correctly decide; pre-training and "
    "size differ too."
)

_TORA_RADIUS = (
    f"{_CIFAR} Ours is at 4/255 under the suite `quick`; the paper does not state its threat, and its numbers are most "
    "likely at 1/255 under PGD with 5 steps."
)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        f"{_DEBENEDETTI}, section 4.1.5, table 2",
        "A radius that grows over the first epochs makes adversarial training better",
        (
            _robust(
                "warm-up over 18% of training, against none",
                "light-recipe",
                "heavy",
                "heavy, no warm-up",
                published=(34.88, 30.48),
            ),
            _clean_too("the same, clean", "light-recipe", "heavy", "heavy, no warm-up"),
        ),
        f"{_CIFAR} With the heavy augmentation, as in the table.",
    ),
    Claim(
        f"{_DEBENEDETTI}, section 4.1.6, table 3",
        "Light augmentation is better than heavy augmentation for adversarial training",
        (
            _robust(
                "flip, crop and color jitter, against MixUp, CutMix, RandAugment and erasing too",
                "light-recipe",
                "light",
                "heavy",
                published=(39.22, 35.38),
            ),
            _clean_too("the same, clean", "light-recipe", "light", "heavy"),
        ),
        _CIFAR,
    ),
    Claim(
        f"{_DEBENEDETTI}, section 4.1.7, table 4",
        "A weight decay of 0.5, ten times the usual, makes adversarial training better",
        (
            _robust(
                "weight decay 0.5, against 0.05",
                "light-recipe",
                "light, weight decay 0.5",
                "light",
                published=(42.02, 39.30),
            ),
            _clean_too("the same, clean", "light-recipe", "light, weight decay 0.5", "light"),
        ),
        _CIFAR,
    ),
    Claim(
        f"{_DEBENEDETTI}, section 4.1.4, table 1",
        "XCiT is more robust than DeiT and CaiT after the same training",
        (
            _robust("XCiT, against DeiT", "architectures", "XCiT", "DeiT", published=(54.80, 33.32)),
            _robust("XCiT, against CaiT", "architectures", "XCiT", "CaiT", published=(54.80, 35.84)),
            _clean_too("XCiT, against DeiT, clean", "architectures", "XCiT", "DeiT"),
        ),
        f"{_CIFAR} Networks of 192 channels and about 5 M parameters, patches of 4.",
    ),
    Claim(
        f"{_JAIN}, table 3",
        "A rescaled model is less robust to attacks than the model itself: the paper's protocol for AAS",
        (
            *_protocol("zoo:cifar10-vit-tiny-short", "gama", (59.78, 57.61)),
            *_protocol("zoo:cifar10-vit-tiny-short", "pgd-100", (61.10, 58.01)),
            *_protocol("dig", "pgd-100"),
        ),
        "Small robust ViTs on CIFAR-10 (JPEG) and digits. The rescaled model is another model, which also classifies "
        "clean images worse; whether its adversarial examples fool the model itself is the next claim.",
    ),
    Claim(
        f"{_JAIN}, table 3",
        "AAS finds adversarial examples for more than 2% of images that other attacks do not, on the model itself",
        (
            _itself("zoo:cifar10-vit-tiny-short", "gama"),
            _itself("zoo:cifar10-vit-tiny-short", "pgd-100"),
            _itself("dig", "pgd-100"),
        ),
        "The 2 points are what the table of the paper gains by its protocol. Examples are made on the rescaled model "
        "and count if they fool the model itself; a second restart costs as much.",
    ),
    Claim(
        f"{_JAIN}, tables 4 and 5",
        "Adversarial training with AAS-AT makes a ViT more robust",
        (
            _robust(
                "AAS-AT, against adversarial training for as many passes",
                "attention-scaling-training",
                "AAS-AT",
                "adversarial",
            ),
            _clean_too("the same, clean", "attention-scaling-training", "AAS-AT", "adversarial"),
            Earlier(
                "earlier: the same with a search at epoch 4, 8, ...",
                "python benchmarks/attention_training.py --data folder:DIR --work FOLDER --epochs 20 --period 4 -n 500",
                ({"benchmark": "attention-training", "way": "aas"}, ("adversarial", "square")),
                ({"benchmark": "attention-training", "way": "base"}, ("adversarial", "square")),
                500,
                trained=True,
                judged=False,
                stands_in=True,
            ),
        ),
        "CIFAR-10 (JPEG), ViT-Tiny/4 from scratch in place of a pre-trained ViT-B/16, AutoAttack.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 4 and figure 8",
        "Without an MLP a ViT loses less accuracy than without an attention",
        (
            Comparison(
                "without 2 random MLPs, against without the attentions of the same blocks, random draws",
                "imagenet-lesions-random",
                ("vit", "without 2 mlp, draw *"),
                ("vit", "without 2 attention, draw *"),
            ),
            Comparison(
                "the same with 4",
                "imagenet-lesions-random",
                ("vit", "without 4 mlp, draw *"),
                ("vit", "without 4 attention, draw *"),
            ),
            Comparison(
                "without one MLP, against without one attention; the mean over blocks 2 to 12",
                "imagenet-lesions",
                ("vit", "without one MLP"),
                ("vit", "without one attention"),
            ),
            Comparison(
                "the network as it is, against without one MLP",
                "imagenet-lesions",
                ("vit", "intact"),
                ("vit", "without one MLP"),
                judged=False,
            ),
        ),
        "ViT-Tiny/16, pre-trained on ImageNet-21k; the paper's smallest is ViT-B. It always keeps the first block.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 4 and figure 8",
        "Any single block but the first can be removed without a substantial loss of accuracy",
        (
            Comparison(
                "without the worst of blocks 2 to 12, against the network as it is: within 10 points",
                "imagenet-lesions",
                ("vit", "without the worst block"),
                ("vit", "intact"),
                margin=-0.10,
            ),
            Comparison(
                "the mean over blocks 2 to 12, against the network as it is",
                "imagenet-lesions",
                ("vit", "without one block"),
                ("vit", "intact"),
                judged=False,
            ),
        ),
        "ViT-Tiny/16. The 10 points are ours, and the worst block is chosen on the same images. The paper finds "
        "smaller models to have less redundancy.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 4 and figure 9",
        "Local attention suffices: it costs little, and less than as much random attention",
        (
            Comparison(
                "patches at most 3 apart, against as many random pairs",
                "imagenet-attention",
                ("vit", "near 3"),
                ("vit", "random 3"),
            ),
            Comparison(
                "patches at most 3 apart (of 14), against all: within 10 points",
                "imagenet-attention",
                ("vit", "near 3"),
                ("vit", "intact"),
                margin=-0.10,
            ),
            Comparison(
                "patches at most 1 apart, against all",
                "imagenet-attention",
                ("vit", "near 1"),
                ("vit", "intact"),
                judged=False,
            ),
        ),
        "ViT-Tiny/16. The 10 points are ours.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 4 and figure 9",
        "Attention between patches matters less in the last blocks than in the first",
        (
            Comparison(
                "only the class token in the last 3 blocks, against in the first 3",
                "imagenet-attention",
                ("vit", "class token, last 3"),
                ("vit", "class token, first 3"),
            ),
        ),
        "ViT-Tiny/16.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 3.1 and figure 2",
        "A ViT with enough pre-training is at least as robust to corruptions as a ResNet",
        (
            *_both_models("imagenet-corruptions", "perturbed", "corruptions: within 2 points", -0.02),
            _survey("all 75 cells, 1000 images, unpaired", "corruptions", "mean over 75 cells"),
        ),
        f"{_UNEQUAL} The 2 points are ours.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 3.6 and figure 3",
        "A ViT with patches of 16 is no more susceptible to rotations and translations than a ResNet",
        (
            *_both_models("imagenet-spatial", "perturbed", "worst transformation: within 2 points", -0.02),
            Earlier(
                "worst of 2511 transformations, unpaired: within 2 points",
                "python benchmarks/spatial.py MODEL --data imagenet:DIR -n 200",
                ({"benchmark": "spatial", "model": "timm:vit_tiny_patch16_224", "images": 200}, ("worst",)),
                ({"benchmark": "spatial", "model": "timm:resnet18", "images": 200}, ("worst",)),
                200,
                margin=-0.02,
                judged=False,
                stands_in=True,
            ),
        ),
        f"{_UNEQUAL} The 2 points are ours.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 3.5 and figure 3",
        "FGSM is more successful against a ViT than against a ResNet",
        (
            Comparison(
                "ResNet-18 against ViT-Tiny under FGSM, images that both classify correctly",
                "imagenet-gray-level",
                ("resnet", "fgsm"),
                ("vit", "fgsm"),
                given="clean",
            ),
            Comparison(
                "the same under PGD-8",
                "imagenet-gray-level",
                ("resnet", "perturbed"),
                ("vit", "perturbed"),
                given="clean",
                judged=False,
            ),
            _survey(
                "ViT-Tiny against ResNet-18 under FGSM, 1000 images, unpaired",
                "grey-level",
                "FGSM at 1 grey level",
                named="gray-level",
            ),
        ),
        _UNEQUAL,
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 3.5 and table 2",
        "Adversarial examples do not transfer between ViTs and ResNets",
        (
            Comparison(
                "ViT-Tiny on images crafted on ResNet-18, against clean: within 5 points",
                "imagenet-transfer",
                ("both", "vit on resnet"),
                ("both", "vit clean"),
                margin=-0.05,
                published=(85.2, 85.6),
            ),
            Comparison(
                "ResNet-18 on images crafted on ViT-Tiny, against clean: within 5 points",
                "imagenet-transfer",
                ("both", "resnet on vit"),
                ("both", "resnet clean"),
                margin=-0.05,
                published=(79.7, 82.2),
            ),
        ),
        "ViT-Tiny/16 and ResNet-18, PGD-8 within one gray level. The 5 points are ours; the paper's row is that of "
        "ViT-B/16 and ResNet-101.",
    ),
    Claim(
        f"{_BHOJANAPALLI}, section 5",
        "The model with the higher clean accuracy also has the higher shape accuracy",
        (
            Comparison(
                "ViT-Tiny against ResNet-18, shape accuracy",
                "imagenet-shape",
                ("vit", "perturbed"),
                ("resnet", "perturbed"),
            ),
        ),
        "The paper says that clean accuracy predicts accuracy under perturbations, and finds exceptions "
        "on these images. ViT-Tiny/16 is the more accurate model here; two models cannot show a trend.",
    ),
    Claim(
        f"{_WU}, ablation of optimizers, table 5",
        "With Lion a ViT learns TRADES much better than with SGD",
        (
            _robust("Lion, against SGD", "optimizers", "Lion", "SGD"),
            _trained("the same, clean", "optimizers", ("Lion", "clean"), ("SGD", "clean"), published=(94.35, 75.06)),
        ),
        f"{_CIFAR} No generated images, AutoAttack. SGD has no weight decay, as in the paper, so that it is no tuned "
        "comparison.",
    ),
    Claim(
        f"{_LI_XU}, table 2",
        "TORA's robust head is within 2 points of the accurate head in clean accuracy, and more robust",
        tuple(
            comparison
            for weight in ("0.1", "0.9")
            for comparison in (
                _trained(
                    f"lambda {weight}: robust head against accurate head, clean: within 2 points",
                    "tora",
                    (f"TORA {weight}", "rob clean"),
                    (f"TORA {weight}", "acc clean"),
                    margin=-0.02,
                ),
                _trained(
                    f"lambda {weight}: robust head against accurate head, attacked",
                    "tora",
                    (f"TORA {weight}", "rob robust"),
                    (f"TORA {weight}", "acc robust"),
                ),
            )
        ),
        _TORA_RADIUS,
    ),
    Claim(
        f"{_LI_XU}, tables 1 and 2",
        "A larger lambda makes TORA more robust and less accurate",
        (
            _trained(
                "lambda 0.9 against 0.1, attacked",
                "tora",
                ("TORA 0.9", "joint robust"),
                ("TORA 0.1", "joint robust"),
                published=(57.50, 23.26),
            ),
            _trained(
                "lambda 0.1 against 0.9, clean",
                "tora",
                ("TORA 0.1", "joint clean"),
                ("TORA 0.9", "joint clean"),
                published=(84.10, 80.34),
            ),
        ),
        _TORA_RADIUS,
    ),
    Claim(
        f"{_LI_XU}, table 3",
        "TORA is more robust than AdapterFusion and a single adapter, and at least as accurate",
        tuple(
            comparison
            for weight, robust, clean in (
                (
                    "0.1",
                    {"AdapterFusion": (23.3, 22.6), "single": (23.3, 15.1)},
                    {"AdapterFusion": (84.1, 82.2), "single": (84.1, 82.5)},
                ),
                (
                    "0.9",
                    {"AdapterFusion": (57.5, 55.3), "single": (57.5, 30.1)},
                    {"AdapterFusion": (80.3, 79.5), "single": (80.3, 72.3)},
                ),
            )
            for other in robust
            for comparison in (
                _trained(
                    f"lambda {weight}: TORA against {other}, attacked",
                    "tora",
                    (f"TORA {weight}", "joint robust"),
                    (f"{other} {weight}", "joint robust"),
                    published=robust[other],
                ),
                _trained(
                    f"lambda {weight}: TORA against {other}, clean: within 1 point",
                    "tora",
                    (f"TORA {weight}", "joint clean"),
                    (f"{other} {weight}", "joint clean"),
                    margin=-0.01,
                    published=clean[other],
                ),
            )
        ),
        f"{_TORA_RADIUS} The 1 point is our choice.",
    ),
)
