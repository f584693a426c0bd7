"""The arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

# the headings under which help lists options
MODEL, DATA, ATTACK, COMPUTE, OUTPUT = "Model", "Data", "Attack", "Compute", "Output"

ModelArgument = Annotated[
    str,
    typer.Argument(help="A run folder, a checkpoint, zoo:NAME, timm:NAME or timm:NAME@WEIGHTS.", metavar="MODEL"),
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        help="digits, cifar10:DIR, imagenet:DIR, folder:DIR, ...; with [:n] its first n images.",
        metavar="DATA",
        rich_help_panel=DATA,
    ),
]
RunOption = Annotated[
    Path,
    typer.Option(
        "--run",
        help="Folder of the run; resumed if it holds the same run.",
        metavar="DIR",
        rich_help_panel=OUTPUT,
    ),
]
ThreatOption = Annotated[
    str,
    typer.Option(
        "--threat", help="Norm and radius: linf:8/255, l2:0.5, l1:12.", metavar="NORM:EPS", rich_help_panel=ATTACK
    ),
]
PreprocessOption = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        help="crop:SIZE[:RESIZE][:bicubic] or squash:SIZE. By default as in the run that trained the model, else crop "
        "for ImageNet and squash for other data.",
        metavar="HOW",
        rich_help_panel=DATA,
    ),
]
NumClassesOption = Annotated[
    int | None,
    typer.Option(
        "--num-classes",
        help="Classes of timm:NAME. A trained head is never replaced by a fresh one.",
        metavar="N",
        rich_help_panel=MODEL,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        help="Side of the images the model takes; positions of another size are resampled.",
        metavar="PIXELS",
        rich_help_panel=MODEL,
    ),
]
PatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--patch-size",
        help="Side of the model's patches; kernels of another size are resampled.",
        metavar="PIXELS",
        rich_help_panel=MODEL,
    ),
]
MeanOption = Annotated[
    str | None,
    typer.Option(
        "--mean",
        help="What the model subtracts from pixels in [0, 1]: a number per channel, with commas.",
        metavar="R,G,B",
        rich_help_panel=MODEL,
    ),
]
StdOption = Annotated[
    str | None,
    typer.Option("--std", help="What the model then divides by; with --mean.", metavar="R,G,B", rich_help_panel=MODEL),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1 or mps. By default the GPU if there is one.",
        metavar="NAME",
        rich_help_panel=COMPUTE,
    ),
]
SplitOption = Annotated[
    str,
    typer.Option("--split", help="Which images: test, holdout or train.", metavar="NAME", rich_help_panel=DATA),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seeds all random numbers.", metavar="N", rich_help_panel=COMPUTE)
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        help="Images at a time, halved if they do not fit into memory. No result depends on it.",
        metavar="N",
        rich_help_panel=COMPUTE,
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Of the search: float32, bf16 or fp16. Success is always judged in float32.",
        metavar="NAME",
        rich_help_panel=COMPUTE,
    ),
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Send the model through torch.compile first.", rich_help_panel=COMPUTE)
]
KeepImagesOption = Annotated[
    bool, typer.Option("--keep-images", help="Keep the adversarial examples, as small deltas.", rich_help_panel=OUTPUT)
]
ScalingOption = Annotated[
    str | None,
    typer.Option(
        "--scaling",
        help="Attack robust images once more with scaled attention: aas, aas-paper, aas-literal or manual, each with "
        "[:KEY=VALUE,...], or a factor such as 0.01.",
        metavar="NAME",
        rich_help_panel=ATTACK,
    ),
]
SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Leave out images that are damaged, missing or out of place, and count them.",
        rich_help_panel=DATA,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON and nothing else.", rich_help_panel=OUTPUT)
]
