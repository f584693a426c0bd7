"""`vitadel evaluate` and `vitadel attack`: suites of attacks, or one attack, with one row per image."""

from typing import Annotated

import typer

from vitadel.cli.options import (
    ATTACK,
    BatchSizeOption,
    CompileOption,
    DataOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    KeepImagesOption,
    MeanOption,
    ModelArgument,
    NumClassesOption,
    PatchSizeOption,
    PrecisionOption,
    PreprocessOption,
    RunOption,
    ScalingOption,
    SeedOption,
    SkipUnreadableOption,
    SplitOption,
    StdOption,
    ThreatOption,
    option,
)
from vitadel.cli.parsing import call


def evaluate(
    context: typer.Context,
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suites: Annotated[
        str, option("--suite", ATTACK, "NAMES", "NAME[:KEY=VALUE,...] from `vitadel suites`, several with commas.")
    ] = "quick",
    threat: ThreatOption = "linf:8/255",
    scaling: ScalingOption = None,
    num_classes: NumClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    preprocess: PreprocessOption = None,
    skip_unreadable: SkipUnreadableOption = False,
    seed: SeedOption = 0,
    batch_size: BatchSizeOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = None,
    keep_images: KeepImagesOption = False,
    json: JsonOption = False,
) -> None:
    """Evaluate a model with suites of attacks, corruptions and other shifts, one row per image."""
    from vitadel.api.evaluate import evaluate

    call(evaluate, context.params)


def attack(
    context: typer.Context,
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suites: Annotated[
        str,
        option(
            "--attack",
            ATTACK,
            "NAME",
            "NAME[:KEY=VALUE,...] from `vitadel attacks`, such as pgd:steps=40,loss=margin.",
        ),
    ],
    threat: ThreatOption = "linf:8/255",
    scaling: ScalingOption = None,
    num_classes: NumClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    preprocess: PreprocessOption = None,
    skip_unreadable: SkipUnreadableOption = False,
    seed: SeedOption = 0,
    batch_size: BatchSizeOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = None,
    keep_images: KeepImagesOption = False,
    json: JsonOption = False,
) -> None:
    """Attack a model with a single attack and settings of your own, one row per image."""
    from vitadel.api.evaluate import attack_suite, evaluate

    call(evaluate, context.params, suites=attack_suite(context.params["suites"]))
