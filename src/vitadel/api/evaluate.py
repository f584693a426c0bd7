"""`vd.evaluate`: suites on a model, one row per image in a run folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from torch import nn

from vitadel import threats
from vitadel.api.arguments import progress_of
from vitadel.api.job import Job, refuse_options
from vitadel.api.models import ModelOptions
from vitadel.api.results import Evaluation
from vitadel.attacks import Engine, Scaling
from vitadel.attacks.parsing import parse_scaling
from vitadel.core.errors import UsageError, spelled
from vitadel.core.numeric import check_seed
from vitadel.core.progress import ProgressCallback
from vitadel.data import DataSet, Preprocess
from vitadel.evaluate import (
    AttackSuite,
    Context,
    Suite,
    SuiteWithFiles,
    evaluate_suite,
    refuse_suite,
    refuse_unwritable_names,
)
from vitadel.evaluate.parsing import SuiteLike, as_suites
from vitadel.runs import Run
from vitadel.runs.schema import SuiteRecord
from vitadel.threats import Threat

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_THREAT = "linf:8/255"
# data whose labels are not the model's classes, and the suite that knows them
_OWN_LABELS = {"cue-conflict": "shape-bias"}


def evaluate(
    model: str | Path | nn.Module,
    data: str | DataSet,
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
    """Evaluate a model into a run folder; interrupted at any time, the same call resumes.

    Args:
        model: Anything that `load_model` takes, or a model.
        data: Anything that `load_data` takes, at the model's size, or a data set.
        suites: Names from `vitadel suites`, also with settings (`corruptions:severities=1+3`), several with commas or
            as a list; suites; or attacks, as objects or text (`pgd:steps=40,loss=margin`).
        run: The run folder; one of another run is refused.
        threat: The threat model of suites that attack.
        split: Which images: `test`, `holdout` or `train`.
        seed: Seeds all random numbers.
        batch_size: Images at a time; halved if they do not fit into memory. No result depends on it.
        precision: The precision of the search: `float32`, `bf16` or `fp16`. Success is always judged in float32.
        compile: Send the model through `torch.compile`.
        keep_images: Save the adversarial examples in the run folder.
        scaling: Attack robust images once more with scaled attention: `aas`, `aas-paper`, a factor such as `0.01`, ...
        preprocess: How images are prepared; by default as in the run that trained the model.
        skip_unreadable: Leave out images that cannot be read, and count them.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifest records as the command.
        **options: How a model given as text is loaded: `num_classes`, `image_size`, `patch_size`, `mean`, `std`,
            `device`.

    Returns:
        The records of all suites, as a short table when printed.

    Raises:
        UsageError: If model, data, suites and threat do not go together, or the folder belongs to another run.

    Example:
        >>> evaluate("runs/vit", "cifar10:DIR[:1000]", ["autoattack", "corruptions"], run="runs/vit-eval")
    """
    refuse_options(evaluate, options)
    check_seed(seed)
    chosen = as_suites(suites)
    chosen_scaling = parse_scaling(scaling) if isinstance(scaling, str) else scaling
    if keep_images or scaling is not None:
        _refuse_without_attacks(chosen, spelled("keep_images") if keep_images else spelled("scaling", scaling))
    engine = Engine(batch_size=batch_size, precision=precision, compile=compile)
    threat = threats.as_threat(threat)
    job = Job.prepare(model, data, split=split, preprocess=preprocess, skip_unreadable=skip_unreadable, **options)
    _check(chosen, job, threat, chosen_scaling)
    kind = "attack" if all(suite.name == "attack" for suite in chosen) else "evaluate"
    within = _identifying_threat(chosen, threat, Path(run))
    claimed = job.claim(run, kind, _parts(chosen, job, within, seed, chosen_scaling, keep_images), command)
    records: list[SuiteRecord] = []
    with progress_of(progress) as notify:
        if job.assumption:
            notify(job.assumption, 0, 0, {})
        ctx = Context(job.model, job.images, job.data, threat, seed, engine, job.ranks, progress=notify)
        for suite in chosen:
            if isinstance(suite, AttackSuite) and keep_images:
                suite = replace(suite, keep_images=True)
            records += evaluate_suite(suite, ctx, claimed.results, scaling=chosen_scaling)
    return Evaluation(Path(run), job.name, tuple(records), job.assumption)


def _refuse_without_attacks(suites: Sequence[Suite], option: str) -> None:
    # `clean` is a suite of attacks too, of none
    if not any(isinstance(suite, AttackSuite) and suite.attacks for suite in suites):
        names = ", ".join(suite.name for suite in suites)
        raise UsageError(f"{option} is about suites of attacks, and there is none among: {names}. Leave it out.")


def _check(suites: Sequence[Suite], job: Job, threat: Threat, scaling: Scaling | None) -> None:
    """Refuse suites, data, threat and model that do not go together, before anything is written."""
    refuse_unwritable_names(job.data, job.split)
    own = _OWN_LABELS.get(job.data.spec.partition(":")[0])
    for suite in suites:
        if own is not None and suite.name != own:
            raise UsageError(
                f"the labels of {job.data.spec} are not the classes of a model, so {suite.name} does not apply to "
                f"them. Write {own!r} as the suite (--suite {own})."
            )
        refuse_suite(suite, job.model, job.data, threat=threat, split=job.split, scaling=scaling)


def _identifying_threat(suites: Sequence[Suite], threat: Threat, run: Path) -> object:
    """The threat, if a suite attacks within it; otherwise what a run has recorded that was begun by earlier versions.

    They recorded a threat in every run, and such a run is resumed whatever it is.
    """
    if any(suite.needs_threat for suite in suites):
        return threat
    return Run.open(run).manifest.parts.get("threat") if (run / "manifest.json").exists() else None


def _parts(
    suites: Sequence[Suite], job: Job, threat: object, seed: int, scaling: Scaling | None, keep_images: bool
) -> dict[str, object]:
    """What identifies this evaluation, in addition to model and data."""
    named = [suite for suite in suites if isinstance(suite, SuiteWithFiles)]
    # a run that resumes with another file of the same name would be another run
    files: Mapping[str, object] = {suite.name: suite.named_files(job.data, job.split) for suite in named}
    files = {name: hashes for name, hashes in files.items() if hashes}
    return {
        "suite": list(suites),
        **({} if threat is None else {"threat": threat}),
        "seed": seed,
        **({} if scaling is None else {"scaling": scaling}),
        **({"keep_images": True} if keep_images else {}),  # begun without it, a run could keep only the rest
        **({"files": files} if files else {}),
    }
