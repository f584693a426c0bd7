"""`vitadel evaluate` and `vitadel attack`: suites of attacks, or one attack, with one row per image."""

import inspect
from typing import Annotated, Any

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


AttackOption = Annotated[
    str,
    option(
        "--attack", ATTACK, "NAME", "NAME[:KEY=VALUE,...] from `vitadel attacks`, such as pgd:steps=40,loss=margin."
    ),
]


def attack(**options: Any) -> None:
    """Attack a model with a single attack and settings of your own, one row per image."""
    from vitadel.api.evaluate import evaluate
    from vitadel.evaluate.parsing import attack_suite

    given = options["context"].params
    call(evaluate, given, suites=attack_suite(given["suites"]))


def _parameters_of_attack() -> inspect.Signature:
    """Those of `evaluate`, with one attack, which must be named, in place of suites."""
    signature = inspect.signature(evaluate)
    one = {"suites": inspect.Parameter("suites", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=AttackOption)}
    return signature.replace(parameters=list({**signature.parameters, **one}.values()))


attack.__signature__ = _parameters_of_attack()  # type: ignore[attr-defined]
attack.__annotations__ = {name: one.annotation for name, one in _parameters_of_attack().parameters.items()}
