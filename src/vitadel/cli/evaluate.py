"""`vitadel evaluate`: suites on a model, one row per image."""

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
    SkipOption,
    SplitOption,
    StdOption,
    ThreatOption,
)
from vitadel.cli.parsing import command_line, mean_and_std


def evaluate(
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suite: Annotated[
        str,
        typer.Option(
            "--suite",
            help="NAME[:KEY=VALUE,...] from `vitadel suites`, several with commas.",
            metavar="NAMES",
            rich_help_panel=ATTACK,
        ),
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
    skip_unreadable: SkipOption = False,
    seed: SeedOption = 0,
    batch_size: BatchSizeOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = None,
    keep_images: KeepImagesOption = False,
    json: JsonOption = False,
) -> None:
    """Evaluate a model with suites of attacks and of other images, one row per image."""
    from vitadel.api.evaluate import evaluate

    means, stds = mean_and_std(mean, std)
    with show.progress(quiet=json) as notify:
        result = evaluate(
            model,
            data,
            suite,
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
            skip_unreadable=skip_unreadable,
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
