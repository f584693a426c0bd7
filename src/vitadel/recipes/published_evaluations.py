"""Published tables and figures whose rows are trained by recipes of their own, or are existing models or attacks.

Jain & Dutta 2024:       "Towards Understanding and Improving Adversarial Robustness of Vision Transformers". Accuracies
                         with AAS or a scale are those of the rescaled model. Figures print no numbers.
Bhojanapalli et al. 2021: "Understanding Robustness of Transformers for Image Classification". Of its 27 models, nine
                         trained on ImageNet-21k have public weights, two of them of a later training.
Wu et al. 2025:          "Vision Transformers Beat WideResNets on Small Scale Datasets Adversarial Robustness".

All accuracies are in percent. What the papers leave open, such as the length of a step of PGD-100, is `ours`.
"""

from collections.abc import Callable, Mapping, Sequence

from vitadel.recipes import attention_scaling as aas
from vitadel.recipes import light_recipe as light
from vitadel.recipes import vit_beats_wrn as wrn
from vitadel.recipes.axes import Axis, Value
from vitadel.recipes.columns import Column
from vitadel.recipes.published import PublishedAccuracy, PublishedSweep
from vitadel.recipes.recipe import Recipe

_JAIN, _BHOJANAPALLI = "Jain & Dutta 2024, {}", "Bhojanapalli et al. 2021, {}"
_STEP = "our choice: the length of a step, 2.5 eps / steps"
_EPS8 = "linf:8/255"
_PGD20, _PGD100, _AAS = "pgd:steps=20", "pgd:steps=100", "aas-paper"
_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet100": "ImageNet-100"}
_IMAGES = {"cifar10": 10000, "cifar100": 10000, "imagenet100": 5000}
_AWP_NOTE = "The model is ViT-B/16 by PGD-AT with AWP; --model RUN evaluates one of yours. "
_READING = "AAS is the reading `aas-paper` of algorithm 1; `vitadel scalings` has others."
_NO_NUMBERS = "The figure prints no numbers."

# the attacks of table 3, in its order
_ATTACKS = {
    "FGSM": "fgsm",
    "PGD-20": _PGD20,
    "PGD-100": _PGD100,
    "CW": f"{_PGD100},loss=margin",
    "DLR": f"{_PGD100},loss=dlr",
    "GAMA": "gama:steps=100",
}


def _rescaled(name: str, attack: str, scaling: str, *, measure: str = "", threat: str = "") -> Column:
    """What the paper reports of a rescaled model: its own accuracy under the attack, or its clean accuracy."""
    return Column(name, attack, threat, scaling, rescaled=True, measure=measure, source=_STEP)


def _jain(
    item: str, data: str, about: str, axis: Axis, rows: Mapping[tuple[str, ...], PublishedAccuracy], attack: str
) -> PublishedSweep:
    """A table of attacks on the model by PGD-AT with AWP."""
    return PublishedSweep(
        source=_JAIN.format(f"{item}, {_DATA[data]}"),
        about=f"{about}, {_DATA[data]}",
        recipe=f"vit-b-{data}-at-awp",
        axes=(axis,),
        threat=_EPS8,
        attack=attack,
        rows=rows,
        note=f"{_AWP_NOTE}{_READING}",
        test_images=_IMAGES[data],
    )


_NOTHING = PublishedAccuracy(None, None)


def _unprinted(axis: Axis) -> dict[tuple[str, ...], PublishedAccuracy]:
    """The rows of a figure, which prints no numbers."""
    return {(label,): _NOTHING for label in axis.labels}


# ---------------------------------------------------------------- Jain & Dutta, attacks


def _scaled_pair(scaling: str) -> tuple[Column, ...]:
    """Clean accuracy and accuracy under PGD-100, of the rescaled model if there is a factor."""
    if not scaling:
        return (Column("robust", _PGD100, source=_STEP),)
    return (_rescaled("clean", _PGD100, scaling, measure="clean"), _rescaled("robust", _PGD100, scaling))


_FACTORS = Axis(
    "factor",
    tuple(
        Value(label, columns=_scaled_pair("" if label == "1" else label))
        for label in ("1", "0.0001", "0.001", "0.01", "0.1", "10")
    ),
)
_SEARCHES = Axis(
    "factors by",
    tuple(
        Value(label, columns=_scaled_pair(scaling))
        for label, scaling in (
            ("no attack", ""),
            ("scaling 0.01", "0.01"),
            ("cross-entropy", f"{_AAS}:loss=cross-entropy"),
            ("max-margin", f"{_AAS}:loss=margin"),
            ("GAMA", f"{_AAS}:loss=gama"),
            ("LPIPS", _AAS),
        )
    ),
)


def _with_and_without(attack: str) -> tuple[Column, ...]:
    """One line of table 3: as it is, with one factor for all attentions that is best for GAMA, with AAS."""
    manual = "manual:trial_attack=gama"
    return (
        Column("robust", attack, source=_STEP),
        _rescaled("clean + scale", attack, manual, measure="clean"),
        _rescaled("robust + scale", attack, manual),
        _rescaled("clean + AAS", attack, _AAS, measure="clean"),
        _rescaled("robust + AAS", attack, _AAS),
    )


_LINES = Axis("attack", tuple(Value(name, columns=_with_and_without(text)) for name, text in _ATTACKS.items()))


def _pairs(axis: Axis, numbers: Sequence[tuple[float, float]]) -> dict[tuple[str, ...], PublishedAccuracy]:
    return {(label,): PublishedAccuracy(*pair) for label, pair in zip(axis.labels, numbers, strict=True)}


def _lines(
    clean: tuple[float, float, float], robust: Sequence[tuple[float, float, float]]
) -> dict[tuple[str, ...], PublishedAccuracy]:
    """Table 3: the clean accuracies, which all lines share, and the robust ones."""
    return {
        (label,): PublishedAccuracy(
            clean[0],
            plain,
            others={
                "clean + scale": clean[1],
                "robust + scale": scaled,
                "clean + AAS": clean[2],
                "robust + AAS": with_aas,
            },
        )
        for label, (plain, scaled, with_aas) in zip(_ATTACKS, robust, strict=True)
    }


_TABLE1 = {
    "cifar10": ((87.43, 61.10), (86.23, 60.23), (86.79, 60.14), (87.01, 59.43), (87.22, 60.87), (85.71, 66.78)),
    "cifar100": ((62.47, 30.01), (61.13, 28.45), (61.42, 27.76), (61.79, 28.01), (62.04, 28.12), (61.03, 31.78)),
}
_TABLE2 = {
    "cifar10": ((87.43, 61.10), (87.01, 59.43), (86.84, 60.13), (86.47, 59.78), (86.74, 59.85), (87.31, 58.01)),
    "cifar100": ((62.47, 30.01), (61.79, 28.01), (61.48, 29.11), (61.23, 28.46), (61.41, 28.31), (62.03, 27.02)),
}
_TABLE3 = {
    "cifar10": (
        (87.43, 87.01, 87.31),
        (
            (66.48, 63.78, 61.04),
            (63.14, 60.64, 58.21),
            (61.10, 59.43, 58.01),
            (59.98, 58.13, 57.73),
            (60.03, 58.31, 57.94),
            (59.78, 58.16, 57.61),
        ),
    ),
    "cifar100": (
        (62.47, 61.42, 62.03),
        (
            (33.46, 30.78, 28.03),
            (30.78, 28.31, 27.21),
            (30.01, 27.76, 27.02),
            (29.03, 27.08, 26.31),
            (29.21, 26.95, 26.42),
            (28.97, 26.64, 26.08),
        ),
    ),
    "imagenet100": (
        (68.03, 67.36, 67.84),
        (
            (32.06, 29.47, 28.79),
            (30.02, 27.13, 26.41),
            (29.75, 27.03, 26.12),
            (28.69, 26.48, 25.81),
            (28.71, 26.71, 25.90),
            (28.07, 26.15, 25.64),
        ),
    ),
}

_BLOCKS = Axis(
    "blocks",
    (
        Value("0", columns=(Column("robust", _PGD100, source=_STEP),)),
        *(
            Value(str(blocks), columns=(_rescaled("robust", _PGD100, f"{_AAS}:blocks={blocks}"),))
            for blocks in range(2, 13, 2)
        ),
    ),
)
_ITERATIONS = Axis(
    "iterations",
    tuple(
        Value(
            steps,
            columns=(
                Column("robust", f"pgd:steps={steps}", source=_STEP),
                _rescaled("robust + AAS", f"pgd:steps={steps}", _AAS),
            ),
        )
        for steps in ("10", "50", "100", "200", "500", "1000")
    ),
)

# ---------------------------------------------------------------- Jain & Dutta, trained rows

_DEFENSES = Column("PGD-100", _PGD100, source=_STEP), _rescaled("PGD-100 + AAS", _PGD100, _AAS)
_AA = Column("robust", "autoattack")
# the rows of table 5 as they are called there, the recipes' names, and clean, PGD-100, PGD-100 + AAS, AutoAttack
_TABLE5: Mapping[str, tuple[str, Mapping[str, tuple[float, float, float, float]]]] = {
    "PGD-AT": ("at", {"cifar10": (86.14, 59.12, 54.24, 53.14), "cifar100": (60.04, 30.06, 26.31, 25.78)}),
    "PGD-AT + AAS-AT": ("at_aas", {"cifar10": (85.32, 58.12, 57.78, 56.61), "cifar100": (62.06, 29.03, 28.34, 27.71)}),
    "TRADES": ("trades", {"cifar10": (86.31, 60.12, 55.49, 54.03), "cifar100": (61.03, 30.43, 26.94, 26.01)}),
    "TRADES + AAS-AT": (
        "trades_aas",
        {"cifar10": (87.46, 59.01, 58.03, 57.34), "cifar100": (63.06, 29.41, 28.71, 28.06)},
    ),
    "TRADES + AWP": ("trades_awp", {"cifar10": (86.21, 60.48, 56.84, 56.03), "cifar100": (62.78, 31.86, 27.94, 27.03)}),
    "TRADES + AWP + AAS-AT": (
        "trades_awp_aas",
        {"cifar10": (87.10, 59.78, 58.41, 57.73), "cifar100": (63.14, 31.76, 30.43, 29.41)},
    ),
    "MART": ("mart", {"cifar10": (86.19, 59.13, 54.76, 54.12), "cifar100": (62.41, 32.61, 27.12, 26.47)}),
    "MART + AAS-AT": ("mart_aas", {"cifar10": (85.31, 57.87, 56.43, 55.78), "cifar100": (62.84, 28.32, 27.83, 27.01)}),
    "XCiT-S12": ("sgd", {"cifar10": (90.06, 61.48, 57.06, 56.14), "cifar100": (67.34, 37.86, 33.41, 32.17)}),
    "XCiT-S12 + AAS-AT": ("aas", {"cifar10": (90.78, 59.94, 57.84, 57.42), "cifar100": (67.12, 35.35, 33.97, 33.46)}),
    "Mo et al.": ("ard_prm", {"cifar10": (86.43, 60.03, 56.12, 55.03), "cifar100": (61.76, 31.30, 27.84, 27.01)}),
    "Mo et al. + AAS-AT": (
        "ard_prm_aas",
        {"cifar10": (86.71, 58.46, 57.44, 56.79), "cifar100": (61.43, 30.86, 29.16, 28.42)},
    ),
}


def _recipe(row: str, name: str, data: str) -> Callable[[], Recipe]:
    make: Callable[[], Recipe] = getattr(aas, f"{'xcit_s12' if row.startswith('XCiT') else 'vit_b'}_{data}_{name}")
    return make


def _table5(data: str) -> PublishedSweep:
    return PublishedSweep(
        source=_JAIN.format(f"table 5, {_DATA[data]}"),
        about=f"adversarial training with and without AAS-AT, {_DATA[data]}",
        recipe=f"vit-b-{data}-at",
        axes=(
            Axis("method", tuple(Value(row, recipe=_recipe(row, name, data)) for row, (name, _) in _TABLE5.items())),
        ),
        threat=_EPS8,
        attack="AutoAttack",
        rows={
            (row,): PublishedAccuracy(clean, aa, others={"PGD-100": pgd, "PGD-100 + AAS": with_aas})
            for row, (_, numbers) in _TABLE5.items()
            for clean, pgd, with_aas, aa in [numbers[data]]
        },
        columns=(*_DEFENSES, _AA),
        test_images=10000,
        note=f"{_READING} PGD-100 + AAS is the accuracy of the rescaled model.",
    )


_TABLE4 = {
    "PGD-AT": (aas.vit_b_imagenet100_at, 68.32, 25.78),
    "PGD-AT + AAS-AT": (aas.vit_b_imagenet100_at_aas, 68.02, 27.32),
    "TRADES": (aas.vit_b_imagenet100_trades, 65.48, 26.46),
    "TRADES + AAS-AT": (aas.vit_b_imagenet100_trades_aas, 65.26, 28.04),
}
_EPS = (20, 40, 60, 80, 105)

_JAIN_TABLES: dict[str, PublishedSweep] = {
    **{
        f"jain2024-table1-{data}": _jain(
            "table 1", data, "one factor for all attentions", _FACTORS, _pairs(_FACTORS, numbers), "PGD-100"
        )
        for data, numbers in _TABLE1.items()
    },
    **{
        f"jain2024-table2-{data}": _jain(
            "table 2", data, "what the factors maximize", _SEARCHES, _pairs(_SEARCHES, numbers), "PGD-100"
        )
        for data, numbers in _TABLE2.items()
    },
    **{
        f"jain2024-table3-{data}": _jain(
            "table 3", data, "attacks, alone and rescaled", _LINES, _lines(*numbers), "the attack of the row"
        )
        for data, numbers in _TABLE3.items()
    },
    "jain2024-table4": PublishedSweep(
        source=_JAIN.format("table 4"),
        about="adversarial training with and without AAS-AT, ImageNet-100",
        recipe="vit-b-imagenet100-at",
        axes=(Axis("method", tuple(Value(row, recipe=make) for row, (make, *_) in _TABLE4.items())),),
        threat=_EPS8,
        attack="AutoAttack",
        rows={(row,): PublishedAccuracy(clean, robust) for row, (_, clean, robust) in _TABLE4.items()},
        columns=(_AA,),
        test_images=5000,
        note="ImageNet-100: another draw of 100 classes gives other accuracies.",
    ),
    "jain2024-table5-cifar10": _table5("cifar10"),
    "jain2024-table5-cifar100": _table5("cifar100"),
    "jain2024-figure3a": _jain(
        "figure 3a",
        "cifar10",
        "attention blocks that are scaled",
        _BLOCKS,
        dict.fromkeys(((label,) for label in _BLOCKS.labels), _NOTHING),
        "PGD-100",
    ),
    "jain2024-figure4": _jain(
        "figure 4",
        "cifar10",
        "iterations of the attack",
        _ITERATIONS,
        dict.fromkeys(((label,) for label in _ITERATIONS.labels), _NOTHING),
        "PGD",
    ),
    "jain2024-figure5-period": PublishedSweep(
        source=_JAIN.format("figure 5, a and b"),
        about="epochs from one search of AAS-AT to the next, CIFAR-10",
        recipe="vit-b-cifar10-at-aas",
        axes=(Axis.of("objective.period", ("2", "10", "30", "50", "110")),),
        threat=_EPS8,
        attack="PGD-100",
        rows={(period,): _NOTHING for period in ("2", "10", "30", "50", "110")},
        columns=(Column("robust", _PGD100, source=_STEP),),
        test_images=10000,
        note=_NO_NUMBERS,
    ),
    "jain2024-figure5-eps": PublishedSweep(
        source=_JAIN.format("figure 5, c and d"),
        about="radius of PGD-20 without and with AAS, CIFAR-10",
        recipe="vit-b-cifar10-at",
        axes=(
            Axis(
                "method",
                (
                    Value("PGD-AT", recipe=aas.vit_b_cifar10_at),
                    Value("PGD-AT + AAS-AT", recipe=aas.vit_b_cifar10_at_aas),
                ),
            ),
        ),
        threat="linf:20/255",
        attack="PGD-20",
        rows={("PGD-AT",): _NOTHING, ("PGD-AT + AAS-AT",): _NOTHING},
        columns=(
            *(Column(f"PGD-20 at {eps}/255", _PGD20, f"linf:{eps}/255", source=_STEP) for eps in _EPS),
            *(_rescaled(f"+ AAS at {eps}/255", _PGD20, _AAS, threat=f"linf:{eps}/255") for eps in _EPS),
        ),
        test_images=10000,
        note=_NO_NUMBERS,
    ),
}

# ---------------------------------------------------------------- Bhojanapalli et al.

# the models of table 3 that are trained on ImageNet-21k and have public weights; clean, ImageNet-C over 95 cells, R, A,
# shape accuracy on conflict stimuli
_FILE = "timm:{0}@{0}.safetensors"
_21K: Mapping[str, tuple[str, tuple[float, float, float, float, float]]] = {
    "ResNet-50x1": ("resnetv2_50x1_bit.goog_in21k_ft_in1k", (80.10, 52.97, 26.82, 9.92, 30.96)),
    "ResNet-101x1": ("resnetv2_101x1_bit.goog_in21k_ft_in1k", (82.40, 58.08, 30.37, 15.73, 35.54)),
    "ResNet-50x3": ("resnetv2_50x3_bit.goog_in21k_ft_in1k", (84.10, 59.87, 34.04, 20.40, 35.64)),
    "ResNet-101x3": ("resnetv2_101x3_bit.goog_in21k_ft_in1k", (84.50, 63.07, 35.93, 24.97, 42.42)),
    "ResNet-152x4": ("resnetv2_152x4_bit.goog_in21k_ft_in1k", (84.80, 65.31, 39.67, 30.01, 45.34)),
    "ViT-B/32": ("vit_base_patch32_384.augreg_in21k_ft_in1k", (81.27, 62.79, 31.79, 16.29, 48.45)),
    "ViT-B/16": ("vit_base_patch16_384.orig_in21k_ft_in1k", (83.98, 65.83, 37.99, 26.65, 46.58)),
    "ViT-L/32": ("vit_large_patch32_384.orig_in21k_ft_in1k", (81.03, 65.05, 34.33, 19.04, 58.26)),
    "ViT-L/16": ("vit_large_patch16_384.augreg_in21k_ft_in1k", (85.12, 70.03, 40.64, 28.12, 48.27)),
}
# clean on the 1000 images, FGSM, PGD, each of tables 4 and 5
_ATTACKED = {
    "ViT-B/16": (83.4, 31.3, 10.3),
    "ViT-B/32": (81.1, 36.7, 15.9),
    "ViT-L/16": (85.3, 40.5, 16.2),
    "ViT-L/32": (81.9, 41.6, 24.7),
    "ResNet-101x1": (82.1, 33.5, 10.5),
    "ResNet-50x3": (84.4, 42.2, 13.0),
    "ResNet-101x3": (85.8, 44.4, 14.4),
    "ResNet-152x4": (84.6, 47.2, 13.9),
}
_MODELS = Axis("model", tuple(Value(label, model=_FILE.format(name)) for label, (name, _) in _21K.items()))
_WEIGHTS = (
    "The rows are the models trained on ImageNet-21k, whose weights are public: download timm's and place each as "
    "NAME.safetensors in the current folder, or write --model 'ViT-B/16=timm:NAME@FILE'. ViT-B/32 and ViT-L/16 are of "
    "a later training of the same authors (augreg). The weights of the other 18 are not public: --model NAME=MODEL "
    "evaluates one of yours."
)


def _bhojanapalli(
    item: str,
    about: str,
    columns: tuple[Column, ...],
    rows: Mapping[tuple[str, ...], PublishedAccuracy],
    *,
    images: int = 50000,
    note: str = "",
) -> PublishedSweep:
    return PublishedSweep(
        source=_BHOJANAPALLI.format(item),
        about=about,
        recipe="",
        axes=(_MODELS,),
        threat="linf:1/255",
        attack="no attack",
        rows=rows,
        columns=columns,
        note=f"{_WEIGHTS} {note}".strip(),
        test_images=images,
    )


_GROUPS = ("noise", "blur", "weather", "digital")
_BHOJANAPALLI_TABLES: dict[str, PublishedSweep] = {
    "bhojanapalli2021-figure2": _bhojanapalli(
        "figures 2 and 6, table 3",
        "ViTs and ResNets on ImageNet, -C, -R, -A and conflict stimuli",
        (
            Column("clean", "clean"),
            Column("ImageNet-C", "corruptions", measure="mean over 95 cells"),
            Column("ImageNet-R", "imagenet-r"),
            Column("ImageNet-A", "imagenet-a"),
            Column("conflict stimuli", "shape-bias"),
        ),
        {
            (label,): PublishedAccuracy(
                clean,
                None,
                others={"ImageNet-C": c, "ImageNet-R": r, "ImageNet-A": a, "conflict stimuli": shape},
            )
            for label, (_, (clean, c, r, a, shape)) in _21K.items()
        },
        note="`vitadel report` of the rows draws the scatter plots and the fits against the number of parameters.",
    ),
    "bhojanapalli2021-figure3": _bhojanapalli(
        "figure 3, tables 4 and 5",
        "ViTs and ResNets under FGSM and PGD of one gray level, and rotations and translations",
        (
            Column("clean", "clean"),
            Column("FGSM", "gray-level", measure="FGSM at 1 gray level"),
            Column("PGD", "gray-level"),
            Column("spatial", "spatial"),
        ),
        {
            (label,): PublishedAccuracy(
                _ATTACKED[label][0], None, others=dict(zip(("FGSM", "PGD"), _ATTACKED[label][1:], strict=True))
            )
            if label in _ATTACKED
            else _NOTHING
            for label in _21K
        },
        images=1000,
        note="The spatial attack has no printed numbers.",
    ),
    "bhojanapalli2021-figure10": _bhojanapalli(
        "figure 10",
        "ViTs and ResNets by group of corruptions",
        (Column("clean", "clean"), *(Column(group, "corruptions", measure=group) for group in _GROUPS)),
        dict.fromkeys(((label,) for label in _21K), _NOTHING),
        note=_NO_NUMBERS,
    ),
}

# ---------------------------------------------------------------- Wu et al.


def _wu(
    part: str, recipe: str, threat: str, rows: Mapping[str, tuple[Callable[[], Recipe], float, float]]
) -> PublishedSweep:
    return PublishedSweep(
        source=f"Wu et al. 2025, table 6, {part}",
        about=f"our recipes of table 6 and figure 1, {part}",
        recipe=recipe,
        axes=(Axis("model", tuple(Value(label, recipe=make) for label, (make, *_) in rows.items())),),
        threat=threat,
        attack="AutoAttack",
        rows={(label,): PublishedAccuracy(clean, robust) for label, (_, clean, robust) in rows.items()},
        columns=(_AA,),
        test_images=10000,
        note="Figure 1 shows these beside RobustBench's models: --model NAME=MODEL evaluates one of your files.",
    )


_OTHER_TABLES: dict[str, PublishedSweep] = {
    "wu2025-table6-linf": _wu(
        "CIFAR-10, Linf",
        "vit-b2-cifar10",
        _EPS8,
        {
            "WRN-28-10": (wrn.wrn_28_10_cifar10, 92.44, 67.31),
            "ViT-B/2, 2000 epochs": (wrn.vit_b2_cifar10, 94.35, 71.31),
            "ViT-B/2, 6000 epochs": (wrn.vit_b2_cifar10_long, 94.92, 72.52),
            "WRN-70-16": (wrn.wrn_70_16_cifar10, 93.25, 70.69),
            "ViT-L/2, 2000 epochs": (wrn.vit_l2_cifar10, 94.75, 72.17),
            "ViT-L/2, 10000 epochs": (wrn.vit_l2_cifar10_long, 95.76, 74.94),
        },
    ),
    "wu2025-table6-l2": _wu(
        "CIFAR-10, L2",
        "vit-b2-cifar10-l2",
        "l2:0.5",
        {
            "ViT-B/2, 2000 epochs": (wrn.vit_b2_cifar10_l2, 96.53, 85.40),
            "ViT-B/2, 6000 epochs": (wrn.vit_b2_cifar10_l2_long, 96.73, 85.86),
            "ViT-L/2, 2000 epochs": (wrn.vit_l2_cifar10_l2, 96.82, 85.67),
            "ViT-L/2, 6000 epochs": (wrn.vit_l2_cifar10_l2_long, 97.00, 86.06),
        },
    ),
    "wu2025-table6-cifar100": _wu(
        "CIFAR-100, Linf",
        "vit-b2-cifar100",
        _EPS8,
        {
            "ViT-B/2, 2000 epochs": (wrn.vit_b2_cifar100, 77.92, 42.74),
            "ViT-L/2, 6000 epochs": (wrn.vit_l2_cifar100, 82.45, 44.07),
        },
    ),
}

# ---------------------------------------------------------------- Debenedetti, fine-tuning


def _table7(data: str, title: str, numbers: Sequence[tuple[float, float | None]]) -> PublishedSweep:
    makes = {
        f"{model}, {kind}": getattr(light, f"{name}_{data}{'_standard' if kind == 'standard' else ''}")
        for kind in ("standard", "adversarial")
        for model, name in (("XCiT-S12", "xcit_s12"), ("ResNet-50", "resnet50"))
    }
    return PublishedSweep(
        source=f"Debenedetti 2022, thesis, table 7, {title}",
        about=f"fine-tuning from ImageNet to {title}",
        recipe=f"xcit-s12-{data.replace('_', '-')}",
        axes=(Axis("fine-tuning", tuple(Value(label, recipe=make) for label, make in makes.items())),),
        threat=_EPS8,
        attack="AutoAttack",
        rows={(label,): PublishedAccuracy(*pair) for label, pair in zip(makes, numbers, strict=True)},
        columns=(_AA,),
        note="The runs that they start from are trained first: `vitadel recipes NAME` shows model.start.",
    )


_TABLE8 = {
    "fine-tuned from ImageNet": (light.xcit_s12_cifar10, 90.06, 56.14),
    "CIFAR-10 and synthetic data": (light.xcit_s12_cifar10_scratch_synthetic, 80.01, 47.88),
    "only CIFAR-10": (light.xcit_s12_cifar10_scratch, 82.84, 39.49),
}
_THESIS_TABLES: dict[str, PublishedSweep] = {
    "debenedetti2022-table7-caltech101": _table7(
        "caltech101", "Caltech-101", ((90.42, None), (86.97, None), (89.66, 49.66), (83.22, 33.90))
    ),
    "debenedetti2022-table7-flowers102": _table7(
        "flowers102", "Oxford Flowers", ((89.08, None), (82.30, None), (85.01, 29.37), (70.61, 21.52))
    ),
    "debenedetti2022-table8": PublishedSweep(
        source="Debenedetti 2022, thesis, table 8",
        about="CIFAR-10, fine-tuned and from scratch",
        recipe="xcit-s12-cifar10",
        axes=(Axis("training", tuple(Value(label, recipe=make) for label, (make, *_) in _TABLE8.items())),),
        threat=_EPS8,
        attack="AutoAttack",
        rows={(label,): PublishedAccuracy(clean, robust) for label, (_, clean, robust) in _TABLE8.items()},
        columns=(_AA,),
        test_images=10000,
        note="The run on ImageNet that the first row starts from is trained first.",
    ),
}

# ---------------------------------------------------------------- figures of models


def _figure(
    source: str, about: str, recipe: str, axis: Axis, threat: str, studies: tuple[str, ...], note: str = ""
) -> PublishedSweep:
    """A figure that shows something of every model, and prints no numbers."""
    return PublishedSweep(
        source=source,
        about=about,
        recipe=recipe,
        axes=(axis,),
        threat=threat,
        attack="no attack",
        rows=_unprinted(axis),
        studies=studies,
        note=f"{note} `vitadel report` of the rows' study folders shows them side by side.".strip(),
    )


_WU3 = Axis("model", (Value("vit", recipe=wrn.vit_b2_cifar10), Value("wrn", recipe=wrn.wrn_28_10_cifar10_lion)))
_XCIT = Axis(
    "model",
    (
        Value("xcit-s12", recipe=light.xcit_s12_imagenet),
        Value("gelu-resnet-50", recipe=light.resnet50_gelu_imagenet),
    ),
)
_VITS = Axis("model", tuple(value for value in _MODELS.values if value.label.startswith("ViT")))
# "a normally trained" ViT-B/16: that of PGD-AT without its adversary
_JAIN2 = Axis(
    "model",
    (Value("standard", ("objective.attack=null", "selection.attack=null"), recipe=aas.vit_b_imagenet100_at),),
)
_RESNETS33 = ("ResNet-50x3", "ResNet-101x1", "ResNet-101x3")
_FIGURE33 = Axis("model", tuple(value for value in _MODELS.values if value.label in _RESNETS33))
_TORA = Axis("lambda", tuple(Value(weight, (f"objective.weight={weight}",)) for weight in ("0.1", "0.5", "0.9")))

_FIGURES: dict[str, PublishedSweep] = {
    "wu2025-figure3": _figure(
        "Wu et al. 2025, figure 3",
        "EigenCAM of a ViT and a WRN, before and under attack",
        "vit-b2-cifar10",
        _WU3,
        _EPS8,
        ("saliency:methods=eigencam",),
        "The paper shows AutoAttack's images, here it is PGD with 20 steps; it does not name the models' sizes.",
    ),
    "debenedetti2022-figures11-14": _figure(
        "Debenedetti 2022, thesis, figures 11 to 14 and table 9",
        "perturbations and visualized features of robust models",
        "xcit-s12-imagenet",
        _XCIT,
        "linf:4/255",
        ("perturbations", "feature-visualization"),
        "The non-robust models are --model NAME=MODEL. Table 9 needs its three classifiers: --study "
        "perturbation-semantics:classifiers=A+B+C.",
    ),
    "jain2024-figure2": _figure(
        _JAIN.format("figure 2"),
        "gaps between the largest attention scores",
        "vit-b-imagenet100-at",
        _JAIN2,
        _EPS8,
        ("masking-quick",),
        "The model is trained normally, for which the paper gives no settings: here those of PGD-AT. --model "
        "standard=MODEL shows one of yours.",
    ),
    "bhojanapalli2021-figures7-9": _figure(
        _BHOJANAPALLI.format("figures 7, 8, 9, 31, 32 and 34"),
        "correlation of layers, lesions and restricted attention",
        "",
        _VITS,
        "linf:1/255",
        ("correlation", "lesion", "restricted-attention"),
        _WEIGHTS,
    ),
    "bhojanapalli2021-figure33": _figure(
        _BHOJANAPALLI.format("figure 33"),
        "linear CKA between the residual blocks of ResNets",
        "",
        _FIGURE33,
        "linf:1/255",
        ("correlation:measure=cka,biased=true,group=4096",),
        f"On 4096 images: --data imagenet:DIR[:4096]; the paper draws them at random. {_WEIGHTS}",
    ),
    "bhojanapalli2021-figure5": _figure(
        _BHOJANAPALLI.format("figures 1 and 5"),
        "perturbations of one gray level",
        "",
        _MODELS,
        "linf:1/255",
        ("perturbations",),
        _WEIGHTS,
    ),
    "tora-maps": _figure(
        "Li & Xu 2023, slides, visualization of attention maps",
        "weights that the gates give to the adapters",
        "tora-vit-b16-imagenet",
        _TORA,
        "linf:1/255",
        ("tora-gates",),
    ),
}

EVALUATION_TABLES = {**_THESIS_TABLES, **_FIGURES, **_JAIN_TABLES, **_BHOJANAPALLI_TABLES, **_OTHER_TABLES}
