"""`vd.evaluate`: evaluate a model with suites and write one row per image."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from torch import nn

from vitadel import threats
from vitadel.api.arguments import check_types, progress_of
from vitadel.api.inputs import Inputs, check_model_options
from vitadel.api.models import ModelOptions
from vitadel.api.results import Evaluation
from vitadel.attacks import Engine, Scaling
from vitadel.attacks.parsing import parse_scaling
from vitadel.core.errors import UsageError, spelled
from vitadel.core.numeric import check_seed
from vitadel.core.progress import ProgressCallback
from vitadel.data import DataSet, Preprocess
from vitadel.evaluate import (
    Context,
    Suite,
    SuiteWithFiles,
    SuiteWithRadii,
    attacks_of,
    check_suite,
    check_writable_names,
    evaluate_suite,
)
from vitadel.evaluate.parsing import SuiteLike, as_suites
from vitadel.runs import Run
from vitadel.runs.schema import SuiteRecord
from vitadel.threats import Threat

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_THREAT = "linf:8/255"
# data sets whose labels are not classes of a model, and the suite for them
_OWN_LABELS = {"cue-conflict": "shape-bias"}


def evaluate(
    model: str | Path | nn.Module,
    data: str | Path | DataSet,
    suites: "SuiteLike | Sequence[SuiteLike]" = "quick",
    *,
    run: str | Path,
    threat: str | Threat = DEFAULT_THREAT,
    split: str = "test",
    seed: int = 0,
    batch_size: int | None = None,
    precision: str | None = None,
    compile: bool = False,
    keep_images: bool = False,
    scaling: str | Scaling | None = None,
    preprocess: str | Preprocess | None = None,
    skip_unreadable: bool = False,
    progress: bool | ProgressCallback | None = None,
    command: str | None = None,
    **options: Unpack[ModelOptions],
) -> Evaluation:
    """Evaluate a model and write the results into a run folder. Repeat the call to resume an interrupted run.

    Args:
        model: Anything that `load_model` takes, or a model.
        data: Anything that `load_data` takes, at the model's size, or a data set.
        suites: Suites or attacks, as objects or text: names from `vitadel suites`, also with settings
            (`corruptions:severities=1+3`), or attacks such as `pgd:steps=40,loss=margin`. Several as a list, or, if
            they are names of suites, separated by commas.
        run: The run folder; a folder of a different run is refused.
        threat: The threat model of suites that attack.
        split: The split to use: `test`, `holdout` or `train`.
        seed: Seeds all random numbers.
        batch_size: Batch size; halved automatically if memory runs out. Does not affect results.
        precision: The precision of the search: `float32`, `bf16` or `fp16`. Success is judged by the unmodified model
            in the precision of its weights; logits are compared in float32.
        compile: Compile the model with `torch.compile`.
        keep_images: Save the adversarial examples in the run folder.
        scaling: Attack the remaining robust images again with scaled attention: `aas`, `aas-paper`, a factor such as
            `0.01`, ...
        preprocess: The preprocessing; by default that of the run that trained the model.
        skip_unreadable: Leave out unreadable images, and report how many.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: The command line, for the manifest.
        **options: Options of `load_model` for a model given as text: `num_classes`, `image_size`, `patch_size`, `mean`,
            `std`, `device`.

    Returns:
        The records of all suites; a short table when printed.

    Raises:
        UsageError: If model, data, suites and threat do not match, or the folder belongs to a different run.

    Example:
        >>> evaluate("runs/vit", "cifar10:DIR[:1000]", ["autoattack", "corruptions"], run="runs/vit-eval")
    """
    check_model_options(evaluate, options)
    check_seed(seed)
    chosen, threat = as_suites(suites), threats.as_threat(threat)
    check_types(evaluate, locals())
    chosen_scaling = parse_scaling(scaling) if isinstance(scaling, str) else scaling
    if keep_images or scaling is not None:
        _check_has_attacks(chosen, spelled("keep_images") if keep_images else spelled("scaling", scaling))
    engine = Engine(batch_size=batch_size, precision=precision, compile=compile)
    inputs = Inputs.prepare(model, data, split=split, preprocess=preprocess, skip_unreadable=skip_unreadable, **options)
    _check(chosen, inputs, threat, chosen_scaling)
    kind = "attack" if all(suite.name == "attack" for suite in chosen) else "evaluate"
    identifying = _identifying_threat(chosen, threat, Path(run))
    claimed = inputs.claim_run(
        run, kind, _parts(chosen, inputs, identifying, seed, chosen_scaling, keep_images), command
    )
    records: list[SuiteRecord] = []
    with progress_of(progress) as notify:
        if inputs.assumption:
            notify(inputs.assumption, 0, 0, {})
        ctx = Context(inputs.model, inputs.images, inputs.data, threat, seed, engine, inputs.ranks, progress=notify)
        for suite in chosen:
            if isinstance(suite, SuiteWithRadii) and keep_images:
                suite = suite.with_kept_images()
            records += evaluate_suite(suite, ctx, claimed.results, scaling=chosen_scaling)
    return Evaluation(Path(run), inputs.name, tuple(records), inputs.assumption)


def _check_has_attacks(suites: Sequence[Suite], option: str) -> None:
    if not any(attacks_of(suite) for suite in suites):  # `clean` is a suite of no attacks
        names = ", ".join(suite.name for suite in suites)
        raise UsageError(f"{option} is about suites of attacks, and there is none among: {names}. Leave it out.")


def _check(suites: Sequence[Suite], inputs: Inputs, threat: Threat, scaling: Scaling | None) -> None:
    """Refuse suites, data, threat and model that do not match, before anything is written."""
    check_writable_names(inputs.data, inputs.split)
    own = _OWN_LABELS.get(inputs.data.spec.partition(":")[0])
    for suite in suites:
        if own is not None and suite.name != own:
            raise UsageError(
                f"the labels of {inputs.data.spec} are not the classes of a model, so {suite.name} does not apply to "
                f"them. Write {own!r} as the suite (--suite {own})."
            )
        check_suite(suite, inputs.model, inputs.data, threat=threat, split=inputs.split, scaling=scaling)


def _identifying_threat(suites: Sequence[Suite], threat: Threat, run: Path) -> object:
    """The threat if a suite attacks; otherwise the one that an existing run has recorded.

    Earlier versions recorded a threat in every run; without an attack such a run resumes whatever its threat.
    """
    if any(suite.needs_threat for suite in suites):
        return threat
    return Run.open(run).manifest.parts.get("threat") if (run / "manifest.json").exists() else None


def _parts(
    suites: Sequence[Suite], inputs: Inputs, threat: object, seed: int, scaling: Scaling | None, keep_images: bool
) -> dict[str, object]:
    """What identifies this evaluation, in addition to model and data."""
    named = [suite for suite in suites if isinstance(suite, SuiteWithFiles)]
    # with a different file of the same name it would be a different run
    files: Mapping[str, object] = {suite.name: suite.named_files(inputs.data, inputs.split) for suite in named}
    files = {name: hashes for name, hashes in files.items() if hashes}
    return {
        "suite": list(suites),
        **({} if threat is None else {"threat": threat}),
        "seed": seed,
        **({} if scaling is None else {"scaling": scaling}),
        **({"keep_images": True} if keep_images else {}),  # a run started without it has already discarded images
        **({"files": files} if files else {}),
    }
