"""`vd.robustness`: clean and robust accuracy of a model on images in memory."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitadel.api.arguments import check_arguments, check_norm_and_eps, check_types, progress_of
from vitadel.api.data import default_preprocess, load_data
from vitadel.api.evaluate import DEFAULT_THREAT
from vitadel.api.models import load_model
from vitadel.api.results import Robustness
from vitadel.attacks import Engine, NamedAttack, Scaling
from vitadel.attacks.parsing import parse_scaling
from vitadel.core.errors import UsageError, short_repr
from vitadel.core.numeric import check_seed
from vitadel.core.progress import ProgressCallback
from vitadel.data import DataSet, Split
from vitadel.evaluate import AttackSuite, Context, MemoryStore, TensorImages, evaluate_suite
from vitadel.evaluate.adversarial_images import IMAGES
from vitadel.evaluate.attack_runner import is_randomized
from vitadel.evaluate.parsing import SuiteLike, as_suites
from vitadel.evaluate.scaled_suites import factors_of
from vitadel.threats import Threat, as_threat

_ELSEWHERE = {
    "version": 'suite="autoattack", "autoattack-plus" or "autoattack-rand"',
    "attacks_to_run": 'suite=[vd.attacks.APGD(), "square"]',
    "bs": "batch_size=...",
    "steps": 'suite="pgd:steps=..."',
    "attack": "suite=...",
    "n_examples": "robustness(model, x[:n], y[:n])",
    "device": "model.to(device): the attack runs where the model is",
    "labels": "robustness(model, images, labels)",
    "verbose": "progress=True or progress=False",
    "notify": "progress=...",
}


def robustness(
    model: str | Path | nn.Module,
    x: object,
    y: object = None,
    threat: str | Threat | None = None,
    suite: "SuiteLike | Sequence[SuiteLike]" = "autoattack",
    *,
    seed: int = 0,
    batch_size: int | None = None,
    precision: str | None = None,
    compile: bool = False,
    engine: Engine | None = None,
    scaling: str | Scaling | None = None,
    progress: bool | ProgressCallback | None = None,
    **other: object,
) -> Robustness:
    """Attack images with pixels in [0, 1] and report clean and robust accuracy; AutoAttack by default.

    The attacks run on the device of the model. Success is judged by the unmodified model in the precision of its
    weights; logits are compared in float32.

    Args:
        model: Takes pixels in [0, 1] and returns logits; or anything that `load_model` takes.
        x: Images [n, channels, height, width] as a tensor or an array. Or, without `y`, a `DataLoader`, a split, or a
            data set or its name as `load_data` takes it, whose test images are used.
        y: Labels [n].
        threat: The threat model, such as `linf:8/255`, `l2:0.5` or `l1:12`; `linf:8/255` by default.
        suite: A name from `vitadel suites`, an attack such as `vd.attacks.PGD(steps=20)` or `pgd:steps=20`, or several
            attacks, one after the other on the images that are still robust.
        seed: Seeds all random numbers.
        batch_size: Batch size; halved automatically if memory runs out. Does not affect results.
        precision: The precision of the search: `float32`, `bf16` or `fp16`.
        compile: Compile the model with `torch.compile`.
        engine: An `Engine` with batch size, precision and compilation, in place of the three arguments above.
        scaling: Attack the remaining robust images again with scaled attention: `aas`, `aas-paper`, a factor such as
            `0.01`, ...
        progress: None shows bars on a terminal, False shows nothing; or a callback.

    Returns:
        Accuracies with intervals, per image the attack that broke it, adversarial examples, costs and flags; a short
        table when printed.

    Raises:
        UsageError: If images, labels, model and threat do not match.

    Example:
        >>> result = robustness(model, x, y, "linf:8/255")
        >>> print(f"{result.robust_accuracy:.1%}")
        41.3%
    """
    if isinstance(y, str) or (y is not None and not hasattr(y, "__len__") and not isinstance(y, Iterable)):
        if threat is not None:
            raise UsageError(f"robustness takes one threat, got {y!s} and {threat!s}. Leave one of them out.")
        y, threat = None, as_threat(y)  # type: ignore[arg-type]
    threat = check_norm_and_eps("robustness", threat, other) or threat
    check_arguments(robustness, other, _ELSEWHERE)
    check_seed(seed)
    within = as_threat(threat or DEFAULT_THREAT)
    check_types(robustness, locals())
    net = model if isinstance(model, nn.Module) else load_model(model, keep_head=True, device=None)
    images, attacks = TensorImages(*_tensors(net, x, y)), _one_suite(suite)
    chosen = _engine(engine, {"batch_size": batch_size, "precision": precision, "compile": compile or None})
    wanted = parse_scaling(scaling) if isinstance(scaling, str) else scaling
    stores: dict[str, MemoryStore] = defaultdict(MemoryStore)
    with progress_of(progress) as notify:
        ctx = Context(net, images, threat=within, seed=seed, engine=chosen, progress=notify)
        record, *paper = evaluate_suite(attacks, ctx, stores.__getitem__, scaling=wanted)
    store, rows = stores[record.name], stores[record.name].read_verified()[1]
    worst = rows["worst"] if is_randomized(attacks.stages(within)) else None
    return Robustness(
        record,
        rows["broken_by"],
        rows["prediction"],
        rows["distance"],
        _adversarial_images(images, store.read(IMAGES), worst),
        factors_of(record.scaling) if record.scaling else None,
        paper[0].robust if paper else None,
    )


def _engine(engine: Engine | None, settings: Mapping[str, Any]) -> Engine:
    """The given engine, or one with these settings; giving both is refused."""
    given = {name: value for name, value in settings.items() if value is not None}
    if engine is None:
        return Engine(**given)
    if given:
        names = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise UsageError(f"the engine holds batch_size, precision and compile, got {names} as well. Leave one out.")
    return engine


def _adversarial_images(
    images: TensorImages, attempts: Mapping[str, Sequence[Any]], worst: Sequence[int] | None
) -> Tensor:
    """The last attempt on each image; for a randomized model the worst, which may be the image itself."""
    x_adv = images.pixels.detach().float().cpu().clone()
    of_image: dict[int, list[Tensor]] = defaultdict(list)
    for index, x in zip(attempts.get("index", ()), attempts.get("x_adv", ()), strict=True):
        of_image[index].append(x)
    for index, several in of_image.items():
        if worst is None or worst[index] >= 0:
            x_adv[index] = several[-1 if worst is None else worst[index]]
    return x_adv


def _one_suite(suite: object) -> AttackSuite:
    """One suite with all the attacks, at one radius."""
    several: Any = suite if isinstance(suite, list | tuple) else [suite]
    suites = [
        one for item in several for one in as_suites([item])
    ]  # one at a time, because every single attack makes a suite called `attack`
    if others := [one.name for one in suites if not isinstance(one, AttackSuite)]:
        raise UsageError(
            f"robustness attacks images, and {others[0]} is not an attack. Write vd.evaluate(..., {others[0]!r})."
        )
    attacks = [one for one in suites if isinstance(one, AttackSuite)]
    chosen = (
        attacks[0]
        if len(attacks) == 1
        else AttackSuite("attacks", "", _numbered([a for one in attacks for a in one.attacks]))
    )
    if len(chosen.eps_scales) > 1:
        raise UsageError(
            f"robustness attacks at one radius, and the suite {chosen.name!r} has several. Use `evaluate`."
        )
    return chosen


def _numbered(attacks: Sequence[NamedAttack]) -> tuple[NamedAttack, ...]:
    """The attacks with distinct names: a second `pgd` becomes `pgd-2`."""
    times: Counter[str] = Counter()
    numbered = []
    for attack in attacks:
        times[attack.name] += 1
        number = times[attack.name]
        numbered.append(attack if number == 1 else replace(attack, name=f"{attack.name}-{number}"))
    return tuple(numbered)


def _tensors(model: nn.Module, x: object, y: object) -> tuple[Tensor, Tensor]:
    """Images and labels as tensors, from any of the accepted types."""
    if isinstance(x, str | Path | DataSet | Split | DataLoader) and y is not None:
        raise UsageError(f"a {type(x).__name__} of images holds labels already, got y as well. Leave y out.")
    if isinstance(x, Path):
        x = str(x)
    if isinstance(x, str):
        spec = getattr(model, "spec", None)
        x = load_data(x, preprocess=default_preprocess(x, None if spec is None else spec.image_size)).test
    if isinstance(x, DataSet):
        x = x.test
    if isinstance(x, Split):
        return x.images(torch.arange(len(x))), x.labels
    if y is None:
        return _collected(x)
    return _as_tensor(x, floating=True), _as_tensor(y, floating=False)


def _collected(batches: object) -> tuple[Tensor, Tensor]:
    """All batches of a loader."""
    if not isinstance(batches, Iterable) or isinstance(batches, Tensor) or not _are_pairs(parts := list(batches)):
        raise UsageError(
            f"without labels, robustness takes a DataLoader of (images, labels), got {type(batches).__name__}. "
            "Write robustness(model, x, y, threat)."
        )
    images, labels = zip(*parts, strict=True)
    return torch.cat([_as_tensor(one, floating=True) for one in images]), torch.cat(
        [_as_tensor(one, floating=False) for one in labels]
    )


def _are_pairs(parts: list[object]) -> "TypeGuard[list[tuple[object, object]]]":
    return bool(parts) and all(isinstance(part, tuple | list) and len(part) == 2 for part in parts)


def _as_tensor(values: object, *, floating: bool) -> Tensor:
    """A tensor unchanged, an array as a tensor; float64 images of an array become float32, as models are."""
    if isinstance(values, Tensor):
        return values
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        what = "images as a tensor [n, channels, height, width]" if floating else "labels as a tensor [n]"
        raise UsageError(
            f"robustness takes {what}, or what torch.as_tensor can convert, got {short_repr(values)}. Convert it first."
        ) from None
    if floating:
        return tensor.float() if tensor.dtype is torch.float64 else tensor
    return tensor.long() if not tensor.is_floating_point() and tensor.dtype is not torch.bool else tensor
