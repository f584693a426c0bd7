"""The arguments and options that several commands share; the names of their parameters are those of `vitadel.api`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitadel.core.errors import UsageError, short_repr
from vitadel.core.numeric import parse_number

# the headings under which help lists options
MODEL, DATA, TRAINING, ATTACK, COMPUTE, OUTPUT = "Model", "Data", "Training", "Attack", "Compute", "Output"


def option(flag: str, heading: str, metavar: str | None, text: str, **settings: Any) -> Any:
    """An option that help lists under a heading.

    Args:
        flag: As it is typed, such as `--data`.
        heading: One of those above.
        metavar: The placeholder of its value in help; None for a flag without one.
        text: What it does.
        **settings: Further arguments of `typer.Option`.
    """
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=heading, **settings)


def _per_channel(
    context: typer.Context, parameter: typer.CallbackParam, text: str | None
) -> float | tuple[float, ...] | None:
    """The numbers of --mean or --std: `0.5,0.5,0.5`, or `0.5` for all three channels."""
    if text is None:
        return None
    flag = f"--{parameter.name}"
    values = tuple(parse_number(part, flag) for part in text.split(","))
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
    option("--num-classes", MODEL, "N", "Classes of timm:NAME; an error if a trained head has another number."),
]
ImageSizeOption = Annotated[
    int | None,
    option(
        "--image-size",
        MODEL,
        "PIXELS",
        "Side of the model's images; position embeddings are interpolated to this size.",
    ),
]
PatchSizeOption = Annotated[
    int | None,
    option("--patch-size", MODEL, "PIXELS", "Side of the model's patches; the patch-embedding kernel is resampled."),
]
MeanOption = Annotated[
    str | None,
    option(
        "--mean",
        MODEL,
        "R,G,B",
        "Mean subtracted from pixels in [0, 1]: one number, or one per channel, with commas.",
        callback=_per_channel,
    ),
]
StdOption = Annotated[
    str | None,
    option("--std", MODEL, "R,G,B", "Standard deviation used for normalization; needs --mean.", callback=_per_channel),
]
DataOption = Annotated[
    str,
    option("--data", DATA, "DATA", "digits, cifar10:DIR, imagenet:DIR, folder:DIR, ...; with [:n] its first n images."),
]
RecipeDataOption = Annotated[str | None, option("--data", DATA, "DATA", "Data in place of the recipe's.")]
SplitOption = Annotated[str, option("--split", DATA, "NAME", "Which images: test, holdout or train.")]
PreprocessOption = Annotated[
    str | None,
    option(
        "--preprocess",
        DATA,
        "HOW",
        "crop:SIZE[:RESIZE][:bicubic] or squash:SIZE. By default as in the run that trained the model, else crop for "
        "ImageNet and squash for other data.",
    ),
]
SkipUnreadableOption = Annotated[
    bool,
    option("--skip-unreadable", DATA, None, "Leave out images that are damaged or missing, and count them."),
]
ThreatOption = Annotated[str, option("--threat", ATTACK, "NORM:EPS", "Norm and radius: linf:8/255, l2:0.5, l1:12.")]
ScalingOption = Annotated[
    str | None,
    option(
        "--scaling",
        ATTACK,
        "NAME",
        "Attack robust images once more with scaled attention: NAME[:KEY=VALUE,...] from `vitadel scalings`, or a "
        "factor such as 0.01. For a network without attention, the logits are scaled.",
    ),
]
SeedOption = Annotated[int, option("--seed", COMPUTE, "N", "Seeds all random numbers.")]
BatchSizeOption = Annotated[
    int | None,
    option(
        "--batch-size",
        COMPUTE,
        "N",
        "Images at a time, halved if they do not fit into memory. No result depends on it.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    option(
        "--precision",
        COMPUTE,
        "NAME",
        "Precision of the search: float32, bf16 or fp16. Success is always judged in float32.",
    ),
]
CompileOption = Annotated[bool, option("--compile", COMPUTE, None, "Send the model through torch.compile first.")]
DeviceOption = Annotated[
    str | None,
    option("--device", COMPUTE, "NAME", "cpu, cuda, cuda:1 or mps. By default the GPU if there is one."),
]
RunOption = Annotated[Path, option("--run", OUTPUT, "DIR", "Folder of the run; resumed if it holds the same run.")]
KeepImagesOption = Annotated[
    bool, option("--keep-images", OUTPUT, None, "Save the adversarial examples (as differences from the images).")
]
JsonOption = Annotated[bool, option("--json", OUTPUT, None, "Print the result as JSON and nothing else.")]
