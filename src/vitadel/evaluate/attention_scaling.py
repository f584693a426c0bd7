"""Suites of attacks with rescaled attention: factors found once, then every attack plain and once more rescaled."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from vitadel.attacks import Engine, Factors, NamedAttack, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors, rescale_attack
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.evaluate.context import Context

# how the name of an attack ends that learned from the rescaled model
SCALED = "+scaled"
# what the paper reports: the rescaled model, attacked and scored in the place of the model itself
PAPER_PROTOCOL = "paper-protocol"
RESCALED = Flag(
    "rescaled-model",
    "these are the numbers of the rescaled model, which nobody deploys: the paper's protocol, not the model's accuracy",
    {},
)
_FACTORS = "factors"


def with_scaled(attacks: tuple[NamedAttack, ...], factors: Factors) -> tuple[NamedAttack, ...]:
    """Every attack as it is; then every attack once more, learning from the rescaled model."""
    again = (replace(one, name=one.name + SCALED, attack=rescale_attack(one.attack, factors)) for one in attacks)
    return (*attacks, *again)


def in_float32(engine: Engine) -> Engine:
    """The engine for a rescaled search: what scaling brings back is what lower precision would lose again."""
    if engine.precision not in (None, "float32"):
        raise UsageError(f"scaled attacks search in float32, got precision={engine.precision!r}. Leave it out.")
    if engine.compile:
        raise UsageError("scaled attacks reach into attention, and compiled code does not see taps. Leave compile out.")
    return replace(engine, precision="float32")


def find_factors_once(ctx: Context, scaling: Scaling) -> dict[str, Any]:
    """The record of a search for factors on the first images, whose order is fixed; searched once, then read."""

    def search() -> dict[str, object]:
        assert ctx.threat is not None
        count = min(len(ctx.images), max(scaling.batches * scaling.batch_size, scaling.trial_images))
        batch = ctx.batch(torch.arange(count))
        found = find_attack_factors(ctx.model, batch.x, batch.y, ctx.threat, scaling, seed=ctx.seed)
        tried = [asdict(one) for one in found.tried]
        return {_FACTORS: asdict(found.best), "tried": tried, "forwards": found.forwards, "backwards": found.backwards}

    record = ctx.once(_FACTORS, search)
    try:
        factors_of(record)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{_FACTORS} in {ctx.store.folder} are not as a search writes them ({error!r}). "
            "Delete the folder to have them searched again."
        ) from error
    return record


def factors_of(record: Mapping[str, Any]) -> Factors:
    """The factors that were found."""
    found = record[_FACTORS]
    assert isinstance(found, dict)
    return Factors(**{**found, "attentions": tuple(found["attentions"])})
