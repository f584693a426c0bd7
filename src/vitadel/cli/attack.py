"""`vitadel attack`: one attack on a model, one row per image."""

from typing import Annotated

import typer

from vitadel.cli.arguments import (
    BatchOption,
    ClassesOption,
    CompileOption,
    DataOption,
    ImageSizeOption,
    JsonOption,
    KeepOption,
    MeanOption,
    ModelArgument,
    ModelOptions,
    PatchSizeOption,
    PrecisionOption,
    PreprocessOption,
    RunOption,
    ScalingOption,
    SeedOption,
    SplitOption,
    StdOption,
    ThreatOption,
    read_attack,
    read_engine,
    read_scaling,
)
from vitadel.cli.evaluate import Subject, judge


def attack(
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    attack: Annotated[str, typer.Option("--attack", help="NAME[:key=value,...], such as pgd:steps=40,loss=margin")],
    threat: ThreatOption = "linf:8/255",
    preprocess: PreprocessOption = None,
    classes: ClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    keep_images: KeepOption = False,
    scaling: ScalingOption = None,
    json: JsonOption = False,
) -> None:
    """Attack a model with one attack of your making."""
    from vitadel.evaluate import Suite

    judge(
        "attack",
        [Suite("attack", attack, (read_attack(attack),))],
        Subject(model, data, preprocess, ModelOptions(classes, image_size, patch_size, mean, std), split),
        threat=threat,
        run=run,
        seed=seed,
        engine=read_engine(batch, precision, compile),
        keep_images=keep_images,
        scaling=read_scaling(scaling),
        json=json,
    )
