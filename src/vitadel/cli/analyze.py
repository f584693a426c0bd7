"""`vitadel analyze`: run a study of a model."""

from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.commands import call
from vitadel.cli.options import (
    ATTACK,
    BatchSizeOption,
    DataOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MeanOption,
    ModelArgument,
    NumClassesOption,
    PatchSizeOption,
    PreprocessOption,
    RunOption,
    SeedOption,
    SkipUnreadableOption,
    SplitOption,
    StdOption,
    option,
)


def analyze(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="NAME[:KEY=VALUE,...] from `vitadel studies`.", metavar="STUDY")],
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    threat: Annotated[
        str | None,
        option(
            "--threat",
            ATTACK,
            "NORM:EPS",
            "Norm and radius, for studies that attack: linf:4/255, l2:0.5. By default linf:8/255.",
        ),
    ] = None,
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
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Analyze a model with a study and write its numbers and figures."""
    from vitadel.api.analyze import analyze

    result = call(analyze, context.params)
    if not json:
        show.line(f"figures: {result.figures[0].parent}" if result.figures else "no figures")
