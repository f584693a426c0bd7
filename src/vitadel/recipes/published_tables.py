"""Ablations that papers print, as sweeps, with the numbers they print: `vitadel sweeps`.

Debenedetti 2022:  master's thesis, section 4.1. Tables 1 to 4 are on 100 classes of ImageNet, tables 5 and 6 on all;
                   the checkpoints were chosen by FGSM accuracy on the test images, which our recipes do not do. Tables
                   1, 3 and 4 have a column of standard training, which is a table of its own here: `-standard`.
Wu et al. 2025:    "Vision Transformers Beat WideResNets on Small Scale Datasets Adversarial Robustness". The last
                   checkpoints are scored, and nothing is held out.
Li & Xu 2023:      slides on TORA. Accuracies are those of the joint output where no head is named; the threat is not
                   given, and 1/255 is most likely.

All accuracies are in percent. A cell that the paper leaves empty is None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from vitadel.recipes.light_recipe import (
    cait_s12_imagenet100,
    deit_s_imagenet100,
    resnet50_gelu_imagenet,
    xcit_l12_imagenet,
    xcit_m12_imagenet,
    xcit_s12_imagenet100,
)
from vitadel.recipes.published import GPU_HOURS
from vitadel.recipes.published_evaluations import EVALUATION_TABLES
from vitadel.recipes.recipe import Recipe
from vitadel.recipes.sweep import Axis, Column, PublishedAccuracy, PublishedSweep, Value
from vitadel.recipes.vit_beats_wrn import (
    vit_b2_cifar10_long,
    vit_b2_cifar10_sgd,
    vit_l2_cifar10_long,
    wrn_28_10_cifar10_lion,
)

_DEBENEDETTI = "Debenedetti 2022, thesis, table {}"
_WU = "Wu et al. 2025, table {}"
_LI_XU = "Li & Xu 2023, slides, table {}"
_APGD = "APGD-CE, 100 steps, 5 restarts"
_AUTOATTACK = "AutoAttack"
_PGD = "PGD"
# what each of these is evaluated with
_BY_APGD = (Column("robust", "apgd:steps=100,restarts=5"),)
_BY_AUTOATTACK = (Column("robust", "autoattack"),)
_BY_PGD40 = (Column("robust", "pgd:steps=40", source="our choice: the length of a step, 2.5 eps / 40"),)
_LIKE_RVT = "our choice: RVT's code, with which the slides seem to compare"
_BY_TORA = (
    Column("FGSM", "fgsm", source=_LIKE_RVT),
    Column("robust", "pgd:steps=5,step_size=0.5/255", source=_LIKE_RVT),
    Column("A", "imagenet-a"),
    Column("R", "imagenet-r"),
    Column("C", "corruptions", measure="mCE"),
)
_SUBSET = "ImageNet-100: another draw of 100 classes gives other accuracies"


def _tora(fgsm: float, a: float, r: float, c: float, hours: float | None = None) -> Mapping[str, float]:
    """The columns of Li & Xu besides clean accuracy and PGD; C is mCE."""
    numbers = {"FGSM": fgsm, "A": a, "R": r, "C": c}
    return numbers if hours is None else {**numbers, GPU_HOURS: hours}


_PRINTED = ("erase", "base", "mixup", "mixup+erase", "mixup+cutmix", "rand", "rand+erase", "mixup+cutmix+rand+erase")

# before it was tuned in table 4
_DECAY = ("plan.optimizer.weight_decay=0.05",)

# names of `vitadel.recipes.augmentation_sets.AUGMENTATION_SETS`
_BASE, _ALL = "base", "mixup+cutmix+rand+erase"


def _with_model_of(other: Callable[[], Recipe], recipe: Recipe) -> Recipe:
    return replace(recipe, model=other().model)


def _with_plan_of(other: Callable[[], Recipe], recipe: Recipe) -> Recipe:
    """Long trainings have their own warm-up and minimum learning rate."""
    return replace(recipe, plan=other().plan)


def _with_optimizer_of(other: Callable[[], Recipe], recipe: Recipe) -> Recipe:
    """Another recipe for as many epochs: schedule, average, augmentation and selection go with the optimizer."""
    chosen = other()
    plan = replace(chosen.plan, epochs=recipe.plan.epochs)
    return replace(recipe, objective=chosen.objective, plan=plan, selection=chosen.selection)


def _case(label: str, change: Callable[[Recipe], Recipe] | None = None, **chosen: str) -> Value:
    """Values of several named axes together, after `change`; `weight_decay` is the axis weight-decay."""
    values = [Axis.of(name.replace("_", "-"), [text]).values[0] for name, text in chosen.items()]
    settings = tuple(setting for value in values for setting in value.settings)
    return Value(label, settings, partial(_in_turn, (change, *(value.change for value in values))))


def _and(value: Value, *settings: str) -> Value:
    return replace(value, settings=(*value.settings, *settings))


def _in_turn(changes: Sequence[Callable[[Recipe], Recipe] | None], recipe: Recipe) -> Recipe:
    for change in changes:
        recipe = change(recipe) if change else recipe
    return recipe


_DEIT, _XCIT = "timm:deit_small_patch16_224", "timm:xcit_small_12_p16_224"

# as in the recipes of the same names
_ARCHITECTURES = Axis(
    "architecture",
    tuple(
        Value(name, change=partial(_with_model_of, recipe))
        for name, recipe in (
            ("deit-s", deit_s_imagenet100),
            ("cait-s12", cait_s12_imagenet100),
            ("xcit-s12", xcit_s12_imagenet100),
        )
    ),
)

_EPS_WARMUPS = Axis(
    "eps-warmup-epochs",
    tuple(_case(epochs, eps_warmup_epochs=epochs, augmentation=_ALL) for epochs in ("0", "5", "10", "20", "30")),
)

_IMPROVEMENTS = Axis(
    "improvement",
    (
        _and(
            _case("deit-s", architecture=_DEIT, eps_warmup_epochs="0", augmentation=_ALL, weight_decay="0.05"),
            "plan.warmup_epochs=5",  # DeiT's own; XCiT's is longer
        ),
        _case("+xca", architecture=_XCIT, eps_warmup_epochs="0", augmentation=_ALL, weight_decay="0.05"),
        _case("+eps-warmup", architecture=_XCIT, eps_warmup_epochs="10", augmentation=_ALL, weight_decay="0.05"),
        _case("+augmentation", architecture=_XCIT, eps_warmup_epochs="10", augmentation=_BASE, weight_decay="0.05"),
        _case("+weight-decay", architecture=_XCIT, eps_warmup_epochs="10", augmentation=_BASE, weight_decay="0.5"),
    ),
)

_SIZES = Axis(
    "model",
    (
        Value("gelu-resnet-50", recipe=resnet50_gelu_imagenet),
        Value("xcit-s12"),
        Value("xcit-m12", change=partial(_with_model_of, xcit_m12_imagenet)),
        # of the recipe only the model: its two steps are those of the README, where the thesis has one
        Value("xcit-l12", change=partial(_with_model_of, xcit_l12_imagenet)),
    ),
)

_VIT_L = "timm:vit_large_patch16_224"

_SCALING = Axis(
    "scaling",
    (
        Value("baseline: B/2, 2000 epochs", ("plan.epochs=2000",)),
        Value("model: L/2, 2000 epochs", (f"model.start={_VIT_L}", "plan.epochs=2000")),
        Value("epochs: B/2, 6000 epochs", change=partial(_with_plan_of, vit_b2_cifar10_long)),
        Value("both: L/2, 10000 epochs", (f"model.start={_VIT_L}",), partial(_with_plan_of, vit_l2_cifar10_long)),
    ),
)

_WRN_OPTIMIZERS = Axis(
    "optimizer",
    (
        # the SGD row is the recipe of Wang et al. 2023, and so is ours
        Value("sgd"),
        Value("lion", change=partial(_with_optimizer_of, wrn_28_10_cifar10_lion)),
    ),
)

_VIT_OPTIMIZERS = Axis(
    "optimizer",
    (
        Value("sgd", change=partial(_with_optimizer_of, vit_b2_cifar10_sgd)),
        Value("lion"),  # the recipe's own
    ),
)

_HEADS = Axis("head", tuple(Value(head, head=head) for head in ("acc", "rob", "joint")))

_TUNINGS = Axis(
    "tuning",
    (
        Value("head only", ("model.tuning.tuning=head",)),
        # one adapter cannot take turns with another
        Value("single adapter", ("model.tuning.tuning=single", "objective.independent=0")),
        Value("adapter fusion", ("model.tuning.gate=per-token",)),
        Value("tora"),
    ),
)
_LIKELY = "The slides do not give the threat; 1/255 and 5 steps of 0.5/255 are those of the RVT paper's code."


SWEEPS: dict[str, PublishedSweep] = {
    "debenedetti2022-table1": PublishedSweep(
        source=_DEBENEDETTI.format(1),
        about="architecture",
        recipe="deit-s-imagenet100",
        axes=(_ARCHITECTURES,),
        threat="linf:4/255",
        attack=_APGD,
        columns=_BY_APGD,
        test_images=5000,
        rows={
            ("deit-s",): PublishedAccuracy(62.52, 33.32, 67.38),
            ("cait-s12",): PublishedAccuracy(70.20, 35.84, 80.28),
            ("xcit-s12",): PublishedAccuracy(85.06, 54.80, 90.44),
        },
        note=f"{_SUBSET}. The thesis has a batch once plain and twice augmented; here all three are augmented.",
    ),
    "debenedetti2022-table2": PublishedSweep(
        source=_DEBENEDETTI.format(2),
        about="epochs over which eps grows",
        recipe="xcit-n12-imagenet100",
        axes=(_EPS_WARMUPS,),
        threat="linf:4/255",
        attack=_APGD,
        columns=_BY_APGD,
        test_images=5000,
        rows={
            ("0",): PublishedAccuracy(48.46, 30.48),
            ("5",): PublishedAccuracy(52.04, 32.86),
            ("10",): PublishedAccuracy(54.62, 33.84),
            ("20",): PublishedAccuracy(56.10, 34.88),
            ("30",): PublishedAccuracy(56.12, 34.54),
        },
        settings=_DECAY,
        note=f"{_SUBSET}. That DeiT's augmentations were on is known from the authors' code.",
    ),
    "debenedetti2022-table3": PublishedSweep(
        source=_DEBENEDETTI.format(3),
        about="augmentation beyond flip, crop and color jitter",
        recipe="xcit-n12-imagenet100",
        axes=(Axis.of("augmentation", _PRINTED),),
        threat="linf:4/255",
        attack=_APGD,
        columns=_BY_APGD,
        test_images=5000,
        rows={
            ("erase",): PublishedAccuracy(67.28, 39.22, 77.22),
            (_BASE,): PublishedAccuracy(66.78, 39.22, 76.60),
            ("mixup",): PublishedAccuracy(61.04, 38.56, 76.34),
            ("mixup+erase",): PublishedAccuracy(60.46, 38.26, 76.02),
            ("mixup+cutmix",): PublishedAccuracy(62.04, 38.18, 76.48),
            ("rand",): PublishedAccuracy(65.34, 37.64, 78.62),
            ("rand+erase",): PublishedAccuracy(64.76, 37.62, 78.08),
            (_ALL,): PublishedAccuracy(56.64, 35.38, 75.32),
        },
        settings=_DECAY,
        note=f"{_SUBSET}. The thesis prints 8 of the 16 combinations.",
    ),
    "debenedetti2022-table4": PublishedSweep(
        source=_DEBENEDETTI.format(4),
        about="weight decay",
        recipe="xcit-n12-imagenet100",
        axes=(Axis.of("weight-decay", ("0", "0.001", "0.01", "0.05", "0.1", "0.5", "1.0")),),
        threat="linf:4/255",
        attack=_APGD,
        columns=_BY_APGD,
        test_images=5000,
        rows={
            ("0",): PublishedAccuracy(66.44, 39.02, 76.32),
            ("0.001",): PublishedAccuracy(66.40, 39.04, 76.32),
            ("0.01",): PublishedAccuracy(66.28, 38.66, 76.26),
            ("0.05",): PublishedAccuracy(67.16, 39.30, 76.36),
            ("0.1",): PublishedAccuracy(67.28, 39.92, 76.58),
            ("0.5",): PublishedAccuracy(68.78, 42.02, 76.72),
            ("1.0",): PublishedAccuracy(67.68, 40.88, 76.12),
        },
        note=_SUBSET,
    ),
    "debenedetti2022-table5": PublishedSweep(
        source=_DEBENEDETTI.format(5),
        about="one improvement after the other, on ImageNet",
        recipe="xcit-s12-imagenet",
        axes=(_IMPROVEMENTS,),
        threat="linf:4/255",
        attack=f"{_AUTOATTACK}, RobustBench's 5000 images",
        columns=_BY_AUTOATTACK,
        test_images=5000,
        rows={
            ("deit-s",): PublishedAccuracy(66.30, 32.70),
            ("+xca",): PublishedAccuracy(71.68, 28.70),
            ("+eps-warmup",): PublishedAccuracy(71.98, 29.36),
            ("+augmentation",): PublishedAccuracy(71.70, 38.78),
            ("+weight-decay",): PublishedAccuracy(72.34, 41.78),
        },
    ),
    "debenedetti2022-table6": PublishedSweep(
        source=_DEBENEDETTI.format(6),
        about="size of XCiT, and robust ResNets, on ImageNet",
        recipe="xcit-s12-imagenet",
        axes=(_SIZES,),
        threat="linf:4/255",
        attack=f"{_AUTOATTACK}, RobustBench's 5000 images",
        columns=_BY_AUTOATTACK,
        test_images=5000,
        rows={
            ("gelu-resnet-50",): PublishedAccuracy(67.38, 35.51),
            ("wide-resnet-50-2",): PublishedAccuracy(68.46, 38.14),
            ("xcit-s12",): PublishedAccuracy(72.34, 41.78, 80.36),
            ("xcit-m12",): PublishedAccuracy(74.04, 45.24, 81.71),
            ("xcit-l12",): PublishedAccuracy(74.60, 43.78, 82.65),
        },
        note="The batch is that of the recipe; the thesis has 256 images on each of 64 devices, 128 for XCiT-L12. The "
        "ResNets are of Bai et al. 2021 and Salman et al. 2020; nothing here trains the second: --model "
        "wide-resnet-50-2=timm:wide_resnet50_2@FILE evaluates it, in a command of its own, which leaves out the rows "
        "that are trained. Clean accuracy without adversarial training is that of section 4.1.9, of the recipes "
        "xcit-s12-imagenet-standard and its like.",
    ),
    "wu2025-table2-smoothing": PublishedSweep(
        source=_WU.format("2, left"),
        about="label smoothing",
        recipe="vit-b2-cifar10",
        axes=(Axis.of("smoothing", ("0.0", "0.1", "0.2", "0.3", "0.4")),),
        threat="linf:8/255",
        attack=_AUTOATTACK,
        columns=_BY_AUTOATTACK,
        test_images=10000,
        rows={
            ("0.0",): PublishedAccuracy(92.72, 70.52),
            ("0.1",): PublishedAccuracy(93.03, 71.07),
            ("0.2",): PublishedAccuracy(93.05, 70.88),
            ("0.3",): PublishedAccuracy(93.39, 71.01),
            ("0.4",): PublishedAccuracy(93.39, 70.98),
        },
        settings=("objective.beta=5", "plan.epochs=2000"),
        note="The paper does not give beta; its row at 0.4 is the row at beta 5 of the right half.",
    ),
    "wu2025-table2-beta": PublishedSweep(
        source=_WU.format("2, right"),
        about="beta of TRADES",
        recipe="vit-b2-cifar10",
        axes=(Axis.of("beta", ("2", "3", "4", "5", "6")),),
        threat="linf:8/255",
        attack=_AUTOATTACK,
        columns=_BY_AUTOATTACK,
        test_images=10000,
        rows={
            ("2",): PublishedAccuracy(95.21, 71.22),
            ("3",): PublishedAccuracy(94.35, 71.31),
            ("4",): PublishedAccuracy(94.07, 71.06),
            ("5",): PublishedAccuracy(93.39, 70.98),
            ("6",): PublishedAccuracy(93.07, 70.69),
        },
        settings=("objective.smoothing=0.4", "plan.epochs=2000"),
    ),
    "wu2025-table3": PublishedSweep(
        source=_WU.format(3),
        about="share of generated images in a batch",
        recipe="vit-b2-cifar10",
        axes=(Axis.of("mix", ("0.0", "0.1", "0.2", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0")),),
        threat="linf:8/255",
        attack="PGD-40",
        columns=_BY_PGD40,
        test_images=10000,
        rows={
            ("0.0",): PublishedAccuracy(77.16, 56.85),
            ("0.1",): PublishedAccuracy(88.89, 62.63),
            ("0.2",): PublishedAccuracy(91.28, 66.73),
            ("0.4",): PublishedAccuracy(93.00, 70.01),
            ("0.5",): PublishedAccuracy(93.28, 71.29),
            ("0.6",): PublishedAccuracy(93.62, 72.27),
            ("0.7",): PublishedAccuracy(93.92, 72.73),
            ("0.8",): PublishedAccuracy(94.17, 73.52),
            ("0.9",): PublishedAccuracy(94.40, 73.77),
            ("1.0",): PublishedAccuracy(94.41, 73.56),
        },
        settings=("plan.epochs=1000",),
        note="The column is headed AA, but caption and text say PGD-40. There is no row at 0.3. The generated "
        "images are needed with --small, too: another folder of them is --set synthetic.folder=DIR.",
    ),
    "wu2025-table4": PublishedSweep(
        source=_WU.format(4),
        about="larger models, longer training",
        recipe="vit-b2-cifar10",
        axes=(_SCALING,),
        threat="linf:8/255",
        attack=_AUTOATTACK,
        columns=_BY_AUTOATTACK,
        test_images=10000,
        rows={
            ("baseline: B/2, 2000 epochs",): PublishedAccuracy(94.35, 71.31),
            ("model: L/2, 2000 epochs",): PublishedAccuracy(94.75, 72.17),
            ("epochs: B/2, 6000 epochs",): PublishedAccuracy(94.92, 72.52),
            ("both: L/2, 10000 epochs",): PublishedAccuracy(95.76, 74.97),
        },
        note="The paper's table 6 gives 74.94 for the last row.",
    ),
    "wu2025-table5-wrn": PublishedSweep(
        source=_WU.format(5),
        about="optimizer of WRN-28-10",
        recipe="wrn-28-10-cifar10",
        axes=(_WRN_OPTIMIZERS,),
        threat="linf:8/255",
        attack=_AUTOATTACK,
        columns=_BY_AUTOATTACK,
        test_images=10000,
        rows={("sgd",): PublishedAccuracy(92.44, 67.31), ("lion",): PublishedAccuracy(92.47, 67.42)},
        settings=("plan.epochs=2400",),
        note="The SGD row is taken from Wang et al. 2023.",
    ),
    "wu2025-table5-vit": PublishedSweep(
        source=_WU.format(5),
        about="optimizer of ViT-B/2",
        recipe="vit-b2-cifar10",
        axes=(_VIT_OPTIMIZERS,),
        threat="linf:8/255",
        attack=_AUTOATTACK,
        columns=_BY_AUTOATTACK,
        test_images=10000,
        rows={("sgd",): PublishedAccuracy(75.06, None), ("lion",): PublishedAccuracy(94.35, 71.31)},
        settings=("plan.epochs=2000",),
        note="The paper gives no robust accuracy for SGD, which had no weight decay: not a tuned comparison. Its batch "
        "is 1024, as the text has it; 2048 in the authors' code.",
    ),
    "tora-table1": PublishedSweep(
        source=_LI_XU.format(1),
        about="TORA's rows: lambda, the weight of the robust loss",
        recipe="tora-vit-b16-imagenet",
        axes=(Axis.of("lambda", ("0.1", "0.5", "0.9")),),
        threat="linf:1/255",
        attack=_PGD,
        columns=_BY_TORA,
        test_images=50000,
        rows={
            ("0.1",): PublishedAccuracy(84.1, 23.3, others=_tora(48.4, 46.5, 57.6, 31.7)),
            ("0.5",): PublishedAccuracy(83.7, 38.0, others=_tora(54.7, 39.2, 56.3, 34.4)),
            ("0.9",): PublishedAccuracy(80.3, 57.5, others=_tora(74.2, 22.2, 53.7, 41.6)),
        },
        note=f"{_LIKELY} The other rows of the table are quoted: --model NAME=MODEL evaluates one of yours.",
    ),
    "tora-table2": PublishedSweep(
        source=_LI_XU.format(2),
        about="heads and their mean, by lambda, the weight of the robust loss",
        recipe="tora-vit-b16-imagenet",
        axes=(
            Axis.of("lambda", ("0.1", "0.3", "0.5", "0.7", "0.9")),
            _HEADS,
        ),
        threat="linf:1/255",
        attack=_PGD,
        columns=_BY_TORA,
        test_images=50000,
        rows={
            ("0.1", "acc"): PublishedAccuracy(84.15, 22.08, others=_tora(47.96, 45.75, 56.79, 32.61)),
            ("0.1", "rob"): PublishedAccuracy(83.89, 24.89, others=_tora(48.54, 46.33, 57.38, 31.89)),
            ("0.1", "joint"): PublishedAccuracy(84.10, 23.26, others=_tora(48.44, 46.73, 57.64, 31.69)),
            ("0.3", "acc"): PublishedAccuracy(83.79, 32.42, others=_tora(50.42, 42.05, 56.17, 33.77)),
            ("0.3", "rob"): PublishedAccuracy(83.36, 35.62, others=_tora(53.73, 42.32, 56.49, 33.19)),
            ("0.3", "joint"): PublishedAccuracy(84.03, 33.84, others=_tora(51.85, 42.45, 56.72, 32.91)),
            ("0.5", "acc"): PublishedAccuracy(83.38, 36.58, others=_tora(53.41, 38.93, 55.8, 35.29)),
            ("0.5", "rob"): PublishedAccuracy(83.01, 39.78, others=_tora(56.19, 38.85, 56.12, 34.73)),
            ("0.5", "joint"): PublishedAccuracy(83.66, 37.99, others=_tora(54.75, 39.23, 56.27, 34.44)),
            ("0.7", "acc"): PublishedAccuracy(80.80, 49.89, others=_tora(63.7, 23.64, 54.09, 42.27)),
            ("0.7", "rob"): PublishedAccuracy(80.37, 52.23, others=_tora(67.37, 23.59, 54.04, 42.13)),
            ("0.7", "joint"): PublishedAccuracy(81.11, 50.99, others=_tora(65.75, 23.68, 54.29, 41.55)),
            ("0.9", "acc"): PublishedAccuracy(80.66, 56.10, others=_tora(70.02, 22.69, 53.64, 42.3)),
            ("0.9", "rob"): PublishedAccuracy(80.04, 58.34, others=_tora(74.24, 22.37, 53.39, 42.11)),
            ("0.9", "joint"): PublishedAccuracy(80.34, 57.50, others=_tora(74.19, 22.21, 53.67, 41.56)),
        },
        note=_LIKELY,
    ),
    "tora-table3": PublishedSweep(
        source=_LI_XU.format(3),
        about="what is added to a frozen ViT, by lambda",
        recipe="tora-vit-b16-imagenet",
        axes=(Axis.of("lambda", ("0.1", "0.9")), _TUNINGS),
        threat="linf:1/255",
        attack=_PGD,
        columns=_BY_TORA,
        test_images=50000,
        rows={
            ("0.1", "head only"): PublishedAccuracy(80.2, 15.5, others=_tora(41.1, 22.1, 42.0, 56.9, hours=15.55)),
            ("0.1", "single adapter"): PublishedAccuracy(82.5, 15.1, others=_tora(40.9, 36.9, 48.3, 46.2, hours=15.55)),
            ("0.1", "adapter fusion"): PublishedAccuracy(82.2, 22.6, others=_tora(46.2, 36.4, 52.2, 35.5, hours=19.63)),
            ("0.1", "tora"): PublishedAccuracy(84.1, 23.3, others=_tora(48.4, 46.5, 57.6, 31.7, hours=19.82)),
            ("0.9", "head only"): PublishedAccuracy(79.0, 16.3, others=_tora(42.0, 12.9, 40.2, 62.5, hours=15.55)),
            ("0.9", "single adapter"): PublishedAccuracy(72.3, 30.1, others=_tora(53.1, 3.1, 21.4, 78.7, hours=15.55)),
            ("0.9", "adapter fusion"): PublishedAccuracy(79.5, 55.3, others=_tora(66.2, 20.4, 51.7, 42.9, hours=19.69)),
            ("0.9", "tora"): PublishedAccuracy(80.3, 57.5, others=_tora(74.2, 22.2, 53.7, 41.6, hours=19.83)),
        },
        note=_LIKELY,
    ),
}

# names of earlier versions, which are still accepted
FORMER_NAMES = {
    name.replace("debenedetti2022-", "thesis-").replace("wu2025-", "vit-wrn-"): name
    for name in SWEEPS
    if name.startswith(("debenedetti2022-", "wu2025-"))
} | dict.fromkeys(("tora-table3-low", "tora-table3-high"), "tora-table3")


def _standard(table: PublishedSweep) -> PublishedSweep:
    """The column of standard training of a table: the same rows without an adversary, and their clean accuracies."""
    return replace(
        table,
        source=f"{table.source}, the column of standard training",
        about=f"{table.about}, standard training",
        settings=(*table.settings, "objective.attack=null", "selection.attack=null"),
        attack="no attack",
        columns=(Column("clean", "clean"),),
        rows={labels: PublishedAccuracy(row.standard_clean, None) for labels, row in table.rows.items()},
    )


SWEEPS |= {
    f"debenedetti2022-table{number}-standard": _standard(SWEEPS[f"debenedetti2022-table{number}"])
    for number in (1, 3, 4)
}

SWEEPS |= EVALUATION_TABLES
