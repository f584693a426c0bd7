"""`vitadel evaluate` and `vitadel attack`: evaluate a model with suites, or with one attack."""

import inspect
from typing import Annotated, Any

import typer

from vitadel.cli.commands import call
from vitadel.cli.options import (
    EVALUATION,
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


def evaluate(
    context: typer.Context,
    model: ModelArgument,
    data: DataOption,
    run: RunOption,
    suites: Annotated[
        str, option("--suite", EVALUATION, "NAMES", "NAME[:KEY=VALUE,...] from `vitadel suites`, comma-separated.")
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
    """Evaluate a model with suites of attacks, corruptions and other shifts."""
    from vitadel.api.evaluate import evaluate

    call(evaluate, context.params)


AttackOption = Annotated[
    str,
    option(
        "--attack", EVALUATION, "NAME", "NAME[:KEY=VALUE,...] from `vitadel attacks`, such as pgd:steps=40,loss=margin."
    ),
]


def attack(**options: Any) -> None:
    """Evaluate a model with a single attack."""
    from vitadel.api.evaluate import evaluate
    from vitadel.evaluate.parsing import attack_suite

    given = options["context"].params
    call(evaluate, given, suites=attack_suite(given["suites"]))


def _parameters_of_attack() -> inspect.Signature:
    """The parameters of `evaluate`, with a required `--attack` in place of `--suite`."""
    signature = inspect.signature(evaluate)
    one = {"suites": inspect.Parameter("suites", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=AttackOption)}
    return signature.replace(parameters=list({**signature.parameters, **one}.values()))


attack.__signature__ = _parameters_of_attack()  # type: ignore[attr-defined]
attack.__annotations__ = {name: one.annotation for name, one in _parameters_of_attack().parameters.items()}
