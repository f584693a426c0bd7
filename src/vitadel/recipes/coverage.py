"""Every table and figure of the five papers: the commands that reproduce it, or why it cannot be reproduced.

An item that one sweep reproduces is a `PublishedSweep` of the same name; all others are listed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from vitadel.recipes.published_tables import SWEEPS


class Status(Enum):
    """How a table or a figure is reproduced."""

    ONE = "one command"
    SEVERAL = "several commands"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Coverage:
    """A table or a figure of a paper.

    Args:
        paper: The paper.
        item: Its tables and figures, as the paper numbers them.
        status: How it is reproduced.
        commands: The commands that reproduce it; RUN, MODEL, DIR and DATA are placeholders.
        why: What is missing, or a note.
    """

    paper: str
    item: str
    status: Status
    commands: tuple[str, ...] = ()
    why: str = ""


_THESIS = "Debenedetti 2022, thesis"
_JAIN = "Jain & Dutta 2024"
_BHOJANAPALLI = "Bhojanapalli et al. 2021"
_LI_XU = "Li & Xu 2023"
_WU = "Wu et al. 2025"
# the paper of a sweep, by the beginning of its name
_PAPERS = {"debenedetti": _THESIS, "jain": _JAIN, "bhojanapalli": _BHOJANAPALLI, "tora": _LI_XU, "wu": _WU}
_DRAWING = "It is a drawing of the method and measures nothing."
_SUPPLEMENT = "The supplement is not available, so its numbers and settings are not known."

_OTHERS: Mapping[str, Coverage] = {
    "debenedetti2022-figures1-7": Coverage(_THESIS, "figures 1 to 7", Status.IMPOSSIBLE, (), _DRAWING),
    "debenedetti2022-figures8-10": Coverage(
        _THESIS,
        "figures 8 to 10: MixUp, CutMix, RandAugment, erasing",
        Status.ONE,
        ("vitadel data show imagenet:DIR --out augmentation.png",),
    ),
    "debenedetti2022-table9": Coverage(
        _THESIS,
        "table 9: perturbations classified by other models",
        Status.ONE,
        (
            "vitadel sweep debenedetti2022-figures11-14 --model xcit-s12=RUN --model standard=MODEL --data DATA "
            "--study perturbation-semantics:classifiers=CONVNEXT+BEIT+SWIN --run DIR",
        ),
        "The weights of the three classifiers are files of yours.",
    ),
    "jain2024-figure1": Coverage(
        _JAIN,
        "figure 1: gains by scaling, for a ViT and a CNN",
        Status.SEVERAL,
        (
            "vitadel sweep jain2024-table3-cifar10 --data cifar10:DIR --run DIR",
            "vitadel sweep --model RUN-OF-WRN --attack fgsm --attack pgd:steps=100 --data cifar10:DIR --run DIR",
            "vitadel attack RUN-OF-WRN --attack pgd:steps=100 --scaling 0.1 --data cifar10:DIR --run DIR",
        ),
        "The bars of the ViT are differences of table 3; those of the CNN scale its logits, one factor a command. "
        "The paper's CNN is a WRN-28-10 by PGD-AT, for which there is no recipe: the run is yours; wrn-28-10-cifar10 "
        "is TRADES with generated images. Part a is a drawing.",
    ),
    "jain2024-figure3b": Coverage(
        _JAIN,
        "figure 3b: models with 8 to 20 attention blocks",
        Status.SEVERAL,
        (
            "vitadel sweep vit-b-cifar10-at-awp --axis model.options.depth=8,12,16,20 --attack pgd:steps=100 "
            "--data cifar10:DIR --run DIR",
            "vitadel attack DIR/depth=8 --attack pgd:steps=100 --scaling aas-paper --data cifar10:DIR --run DIR",
        ),
        "Pretrained weights exist for 12 blocks only, so that other depths start from scratch: set model.start.",
    ),
    "jain2024-supplement": Coverage(_JAIN, "tables and figures of the supplement", Status.IMPOSSIBLE, (), _SUPPLEMENT),
    "bhojanapalli2021-table1": Coverage(
        _BHOJANAPALLI,
        "table 1: architectures and parameters",
        Status.SEVERAL,
        ("vitadel models timm:vit_base_patch16_224", "vitadel models timm:resnetv2_50x1_bit"),
        "One command for each model.",
    ),
    "bhojanapalli2021-table2": Coverage(
        _BHOJANAPALLI,
        "table 2, and the columns of tables 4 and 5 across models: transfer",
        Status.SEVERAL,
        ("vitadel evaluate VIT --suite transfer:sources=RESNET --data DATA[:1000] --threat linf:1/255 --run DIR",),
        "One command for each pair. The models of table 2 are trained on JFT-300M and not public.",
    ),
    "bhojanapalli2021-figure4": Coverage(
        _BHOJANAPALLI,
        "figure 4: scaling, models trained on JFT-300M",
        Status.IMPOSSIBLE,
        (),
        "The weights are not public. Figure 30 is the same for ImageNet-21k.",
    ),
    "bhojanapalli2021-figure30": Coverage(
        _BHOJANAPALLI,
        "figure 30: scaling, models trained on ImageNet-21k",
        Status.SEVERAL,
        (
            "vitadel sweep bhojanapalli2021-figure2 --data imagenet:DIR --test-data imagenet-r:DIR --test-data "
            "imagenet-a:DIR --test-data cue-conflict:DIR --run DIR",
            "vitadel report DIR --out page.html",
        ),
        "The report fits the error against the number of parameters.",
    ),
    "bhojanapalli2021-figures11-29": Coverage(
        _BHOJANAPALLI,
        "figures 11 to 29: each corruption at each severity",
        Status.SEVERAL,
        (
            "vitadel sweep bhojanapalli2021-figure10 --data imagenet:DIR --run DIR",
            "vitadel report DIR --out page.html",
        ),
        "The evaluations of figure 10 hold every cell, and the report shows them.",
    ),
    "bhojanapalli2021-jft": Coverage(
        _BHOJANAPALLI,
        "rows of models trained on JFT-300M or on ILSVRC-2012 alone",
        Status.IMPOSSIBLE,
        (),
        "Their weights are not public. --model NAME=MODEL evaluates models of yours with the same columns.",
    ),
    "tora-figures": Coverage(_LI_XU, "drawings of the architecture", Status.IMPOSSIBLE, (), _DRAWING),
    "tora-quoted": Coverage(
        _LI_XU,
        "table 1: rows of other networks",
        Status.SEVERAL,
        ("vitadel sweep tora-table1 --model NAME=MODEL --data imagenet:DIR --run DIR",),
        "The paper quotes them; the weights are files of yours.",
    ),
    "wu2025-table1": Coverage(
        _WU,
        "table 1: summary of table 6",
        Status.SEVERAL,
        tuple(f"vitadel sweep wu2025-table6-{part} --data DATA --run DIR" for part in ("linf", "l2", "cifar100")),
    ),
    "wu2025-table6-others": Coverage(
        _WU,
        "table 6: WideResNets of Wang et al. 2023, CIFAR-10 L2 and CIFAR-100",
        Status.SEVERAL,
        (
            "vitadel sweep wu2025-table6-l2 --model WRN=MODEL --data cifar10:DIR --run DIR",
            "vitadel sweep wu2025-table6-cifar100 --model WRN=MODEL --data cifar100:DIR --run DIR",
        ),
        "The paper quotes these rows, and there are no recipes for them; the weights are files of yours.",
    ),
    "wu2025-figure1": Coverage(
        _WU,
        "figure 1: clean and robust accuracy of leading models",
        Status.ONE,
        (
            "vitadel sweep wu2025-table6-linf --model 'ViT-L/2, 10000 epochs=RUN' --model NAME=MODEL --data DATA "
            "--run DIR",
        ),
        "Without --model, our six models are trained. RobustBench's models are files of yours; those of Peng et al. "
        "(RaWRN) have an architecture that is not here, and years of publication are not shown.",
    ),
    "wu2025-figure2": Coverage(_WU, "figure 2", Status.IMPOSSIBLE, (), _DRAWING),
}


# further commands of tables whose sweep does not fill every row
_FURTHER: Mapping[str, tuple[str, ...]] = {
    "debenedetti2022-table6": (
        "vitadel sweep debenedetti2022-table6 --model wide-resnet-50-2=timm:wide_resnet50_2@FILE --data DATA --run DIR",
    ),
}


def _of_sweep(name: str) -> Coverage:
    table = SWEEPS[name]
    paper = next(paper for prefix, paper in _PAPERS.items() if name.startswith(prefix))
    command = f"vitadel sweep {name} --data DATA --run DIR"
    further = _FURTHER.get(name, ())
    return Coverage(paper, table.about, Status.SEVERAL if further else Status.ONE, (command, *further), table.note)


def coverage() -> dict[str, Coverage]:
    """All tables and figures, by paper; those of one command have the names of their sweeps."""
    every = {**{name: _of_sweep(name) for name in SWEEPS}, **_OTHERS}
    return {name: one for paper in _PAPERS.values() for name, one in every.items() if one.paper == paper}
