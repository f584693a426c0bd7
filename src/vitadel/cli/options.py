"""Arguments and options of several commands; their parameters have the same names as in `vitadel.api`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitadel.core.errors import UsageError, short_repr
from vitadel.core.numeric import parse_number

# the headings under which help lists options
MODEL, DATA, TRAINING, EVALUATION = "Model", "Data", "Training", "Evaluation"
ATTACK, COMPUTE, OUTPUT = "Attack", "Compute", "Output"


def option(flag: str, heading: str, metavar: str | None, text: str, **settings: Any) -> Any:
    """An option that help lists under a heading.

    Args:
        flag: The option, such as `--data`.
        heading: One of those above.
        metavar: The placeholder of its value in help; None for a flag without one.
        text: What it does.
        **settings: Further arguments of `typer.Option`.
    """
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=heading, **settings)


def per_channel(
    context: typer.Context, parameter: typer.CallbackParam, text: str | None
) -> float | tuple[float, ...] | None:
    """Parse --mean or --std: `0.5,0.5,0.5` or `0.5+0.5+0.5`, or `0.5` for all three channels."""
    if text is None:
        return None
    flag = f"--{parameter.name}"
    values = tuple(parse_number(part, flag) for part in text.replace("+", ",").split(","))
    if len(values) not in (1, 3):
        raise UsageError(
            f"{flag} needs one number, or three, one per channel, got {short_repr(text)}. Write {flag} 0.5,0.5,0.5."
        )
    return values if len(values) == 3 else values[0]


ModelArgument = Annotated[
    str, typer.Argument(help="A run folder, a checkpoint, zoo:NAME, timm:NAME or timm:NAME@WEIGHTS.", metavar="MODEL")
]
NumClassesOption = Annotated[
    int | None,
    option("--num-classes", MODEL, "N", "Number of classes; must match the head of trained weights."),
]
ImageSizeOption = Annotated[
    int | None,
    option(
        "--image-size",
        MODEL,
        "PIXELS",
        "Input size of the model; position embeddings are interpolated to it.",
    ),
]
PatchSizeOption = Annotated[
    int | None,
    option("--patch-size", MODEL, "PIXELS", "Patch size of the model; the patch-embedding kernel is resampled to it."),
]
MeanOption = Annotated[
    str | None,
    option(
        "--mean",
        MODEL,
        "R,G,B",
        "Mean of pixels in [0, 1]: one number, or one per channel, comma-separated.",
        callback=per_channel,
    ),
]
StdOption = Annotated[
    str | None,
    option("--std", MODEL, "R,G,B", "Standard deviation of pixels, given together with --mean.", callback=per_channel),
]
DataOption = Annotated[
    str,
    option(
        "--data",
        DATA,
        "DATA",
        "digits, cifar10:DIR, imagenet:DIR, folder:DIR, ...; append [:n] for the first n images.",
    ),
]
RecipeDataOption = Annotated[str | None, option("--data", DATA, "DATA", "Data set to use in place of the recipe's.")]
SplitOption = Annotated[str, option("--split", DATA, "NAME", "Split to use: test, holdout or train.")]
PreprocessOption = Annotated[
    str | None,
    option(
        "--preprocess",
        DATA,
        "HOW",
        "crop:SIZE[:RESIZE][:bicubic] or squash:SIZE. By default as in training, or crop for ImageNet and squash for "
        "other data if the training is not known.",
    ),
]
SkipUnreadableOption = Annotated[
    bool,
    option("--skip-unreadable", DATA, None, "Leave out damaged and missing images, and report how many."),
]
ThreatOption = Annotated[str, option("--threat", EVALUATION, "NORM:EPS", "Norm and radius: linf:8/255, l2:0.5, l1:12.")]
ScalingOption = Annotated[
    str | None,
    option(
        "--scaling",
        EVALUATION,
        "NAME",
        "Attack the remaining robust images again with scaled attention: NAME[:KEY=VALUE,...] from `vitadel scalings`, "
        "or a factor such as 0.01. Networks without attention have their logits scaled.",
    ),
]
SeedOption = Annotated[int, option("--seed", COMPUTE, "N", "Seeds all random numbers.")]
BatchSizeOption = Annotated[
    int | None,
    option(
        "--batch-size",
        COMPUTE,
        "N",
        "Batch size; halved automatically if memory runs out. Does not affect results.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    option(
        "--precision",
        COMPUTE,
        "NAME",
        "Precision of the search: float32, bf16 or fp16. Success is judged by the unmodified model.",
    ),
]
CompileOption = Annotated[bool, option("--compile", COMPUTE, None, "Compile the model with torch.compile.")]
DeviceOption = Annotated[
    str | None,
    option("--device", COMPUTE, "NAME", "cpu, cuda, cuda:1 or mps. By default the GPU if available."),
]
RunOption = Annotated[
    Path, option("--run", OUTPUT, "DIR", "Run folder; an unfinished run with the same settings resumes.")
]
KeepImagesOption = Annotated[
    bool, option("--keep-images", OUTPUT, None, "Save the adversarial examples, as differences from the images.")
]
JsonOption = Annotated[bool, option("--json", OUTPUT, None, "Print the result as JSON and nothing else.")]
