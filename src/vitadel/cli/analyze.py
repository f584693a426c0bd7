"""`vitadel analyze`: a study of a model."""

from typing import Annotated

import typer

from vitadel.cli import show
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
    SplitOption,
    StdOption,
)
from vitadel.cli.parsing import command_line, mean_and_std


def analyze(
    study: Annotated[str, typer.Argument(help="NAME[:KEY=VALUE,...] from `vitadel studies`.", metavar="STUDY")],
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat",
            help="Norm and radius of a study that attacks: linf:4/255, l2:0.5. By default linf:8/255.",
            metavar="NORM:EPS",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    num_classes: NumClassesOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    split: SplitOption = "test",
    preprocess: PreprocessOption = None,
    seed: SeedOption = 0,
    batch_size: BatchSizeOption = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Explain a model with a study: measurements, figures, findings."""
    from vitadel.api.analyze import analyze

    means, stds = mean_and_std(mean, std)
    with show.progress(quiet=json) as notify:
        result = analyze(
            model,
            data,
            study,
            run=run,
            threat=threat,
            num_classes=num_classes,
            image_size=image_size,
            patch_size=patch_size,
            mean=means,
            std=stds,
            split=split,
            preprocess=preprocess,
            seed=seed,
            batch_size=batch_size,
            device=device,
            progress=notify,
            command=command_line(),
        )
    show.result(result, as_json=json)
    if not json:
        show.line(f"figures: {result.figures[0].parent}" if result.figures else "no figures")
