"""Suites of attacks with rescaled attention: factors are searched once, then every attack runs plain and rescaled."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from vitadel.attacks import Engine, Factors, NamedAttack, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors, rescale_attack
from vitadel.attacks.attention_scaling.rescaled_model import logit_scaling_flags, require_taps
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.evaluate.context import Context
from vitadel.evaluate.images import Images
from vitadel.runs.typed_json import from_json

# suffix of the names of attacks with gradients of the rescaled model
SCALED = "+scaled"
# the paper's protocol: the rescaled model is attacked and scored instead of the model itself
PAPER_PROTOCOL = "paper-protocol"
RESCALED = Flag(
    "rescaled-model",
    "these are the numbers of the rescaled model: the paper's protocol, not the model's accuracy",
    {},
)
_FACTORS, _EVALUATED = "factors", "evaluated"


@dataclass(frozen=True, slots=True)
class _Search:
    """What is stored of a search."""

    factors: Factors
    tried: Sequence[Factors]
    split: str
    images: int


def with_scaled(attacks: tuple[NamedAttack, ...], factors: Factors) -> tuple[NamedAttack, ...]:
    """Every attack plain; then every attack once more with gradients of the rescaled model."""
    rescaled = (replace(one, name=one.name + SCALED, attack=rescale_attack(one.attack, factors)) for one in attacks)
    return (*attacks, *rescaled)


def in_float32(engine: Engine) -> Engine:
    """The engine for a rescaled search: float32, since half precision underflows where scaling restores gradients."""
    if engine.precision not in (None, "float32"):
        raise UsageError(f"scaled attacks search in float32, got precision={engine.precision!r}. Leave it out.")
    if engine.compile:
        raise UsageError("scaled attacks reach into attention, and compiled code does not see taps. Leave compile out.")
    return replace(engine, precision="float32")


def factors_record(ctx: Context, scaling: Scaling) -> dict[str, Any]:
    """The record of a search for factors on the first images; searched once, then read."""

    def search() -> dict[str, object]:
        assert ctx.threat is not None
        images, split = _searched_images(ctx, scaling)
        count = min(len(images), max(scaling.batches * scaling.batch_size, scaling.trial_images))
        batch = replace(ctx, images=images).batch(torch.arange(count))
        search = find_attack_factors(ctx.model, batch.x, batch.y, ctx.threat, scaling, seed=ctx.seed)
        tried = [asdict(one) for one in search.tried]
        costs = {"forwards": search.forwards, "backwards": search.backwards}
        return {_FACTORS: asdict(search.best), "tried": tried, "split": split, "images": count, **costs}

    record = ctx.compute_once(_FACTORS, search)
    source = f"{ctx.store.folder}/parts/{_FACTORS}.json"
    from_json(_Search, record, source, "Delete the file to have the factors searched again.")
    return record


def _searched_images(ctx: Context, scaling: Scaling) -> tuple[Images, str]:
    """The training images, as in lines 1 and 2 of Algorithm 1, or the evaluated images; with the name of the choice."""
    train = None if ctx.data is None else ctx.data.train
    if scaling.split == "train" and train is not None and train is not ctx.images:
        return train, "train"
    return ctx.images, _EVALUATED


def search_flags(record: Mapping[str, Any], model: object) -> list[Flag]:
    """Flags if logits were scaled instead of attention, and if factors were selected on evaluated images."""
    flags = list(logit_scaling_flags(require_taps(model)))
    if record["split"] != _EVALUATED or len(record["tried"]) < 2:  # nothing to select from
        return flags
    count = record["images"]
    sentence = (
        f"the factors were searched on {count} of the evaluated images, where the paper searches on training images"
    )
    return [*flags, Flag("factors-of-evaluated-images", sentence, {"images": count})]


def factors_of(record: Mapping[str, Any]) -> Factors:
    """The factors in a record of an evaluation with attention scaling."""
    return from_json(
        Factors, record.get(_FACTORS), _FACTORS, "Delete the record of the evaluation, and evaluate again."
    )
