"""`vitadel attack`: one attack on a model, one row per image."""

from typing import Annotated

import typer

from vitadel.cli import show
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
    SplitOption,
    StdOption,
    ThreatOption,
)
from vitadel.cli.parsing import command_line, mean_and_std


def attack(
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            help="NAME[:KEY=VALUE,...] from `vitadel attacks`, such as pgd:steps=40,loss=margin.",
            metavar="NAME",
            rich_help_panel=ATTACK,
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

    means, stds = mean_and_std(mean, std)
    with show.progress(quiet=json) as notify:
        result = evaluate(
            model,
            data,
            attack_suite(attack),
            run=run,
            threat=threat,
            scaling=scaling,
            num_classes=num_classes,
            image_size=image_size,
            patch_size=patch_size,
            mean=means,
            std=stds,
            split=split,
            preprocess=preprocess,
            seed=seed,
            batch_size=batch_size,
            precision=precision,
            compile=compile,
            device=device,
            keep_images=keep_images,
            progress=notify,
            command=command_line(),
        )
    show.result(result, as_json=json)
