"""Attacks and attention scalings by name: `pgd:steps=40,loss=margin`, `aas:blocks=4`."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitadel.attacks.apgd import APGD
from vitadel.attacks.attention_scaling.config import SCALINGS, Scaling
from vitadel.attacks.autoattack import VERSIONS, AutoAttack, AutoAttackPlus, AutoAttackRand
from vitadel.attacks.base import Attack
from vitadel.attacks.fab import FAB
from vitadel.attacks.fgsm import FGSM
from vitadel.attacks.gama import GAMA
from vitadel.attacks.pgd import PGD, SCHEDULES, Schedule
from vitadel.attacks.square import Square
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import parse_number
from vitadel.core.settings import Notation, Reader, one_of, split_name, with_settings
from vitadel.goals import TARGETS, Target
from vitadel.losses import LOSSES, Loss, kl_divergence
from vitadel.threats import Threat, parse_threat

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "apgd": APGD,
    "fab": FAB,
    "square": Square,
    "gama": GAMA,
    "autoattack": AutoAttack,
    "autoattack-plus": AutoAttackPlus,
    "autoattack-rand": AutoAttackRand,
}

# the losses that `loss=` chooses from
NAMED_LOSSES: dict[str, Loss] = {**LOSSES, "kl": kl_divergence}


def parse_attack(text: str) -> Attack:
    """The attack described by a text such as `pgd:steps=40,step_size=2/255`.

    Args:
        text: `NAME[:key=value,...]` with a name from `vitadel attacks`.

    Returns:
        The attack. Its loss and its target are not among its settings, since a goal holds them.

    Raises:
        UsageError: If there is no such attack or setting, or a value that it cannot have.

    Example:
        >>> attack = parse_attack("pgd:steps=40,step_size=2/255")
        >>> attack.steps
        40
        >>> result = attack(model, x, y, "linf:8/255")
        >>> result.x_adv.shape == x.shape
        True
    """
    return _parse(text, goal_settings=False)[0]


def parse_attack_and_goal(text: str) -> tuple[Attack, Loss, Target | None]:
    """An attack with the loss it maximizes and the class it targets: `pgd:steps=40,loss=margin,target=runner-up`.

    Raises:
        UsageError: As `parse_attack`.
    """
    return _parse(text, goal_settings=True)


def parse_scaling(text: str) -> Scaling:
    """The attention scaling described by `aas:loss=margin,blocks=4`; a number is one factor for all attention layers.

    Raises:
        UsageError: If there is no such scaling or setting, or a value that it cannot have.
    """
    name = text.partition(":")[0]
    if name not in SCALINGS:
        if not name[:1].isdigit():
            raise unknown_name_error("scaling", name, SCALINGS)
        return Scaling.manual(parse_number(text, "scaling"))
    return with_settings(SCALINGS[name](), split_name(text)[1], notation(name))


def notation(owner: str) -> Notation:
    """The notation of the settings in `NAME:key=value,...`."""
    return Notation(prefix=f"{owner}:", owner=owner, readers=READERS)


def _parse(text: str, *, goal_settings: bool) -> tuple[Attack, Loss, Target | None]:
    name = text.partition(":")[0]
    if name not in ATTACKS:
        raise unknown_name_error("attack", name, ATTACKS)
    kind, settings = ATTACKS[name], split_name(text)[1]
    _check_version(name, settings)
    # AutoAttack has its own losses and targets
    about_goal = ("loss", "target") if goal_settings and not issubclass(kind, AutoAttack) else ()
    if (wanted := [key for key, _ in settings if key in ("loss", "target")]) and not goal_settings:
        raise UsageError(
            f"{text!r} is for settings only, and a goal holds the {wanted[0]}. Leave it out, and attack with "
            "vd.goals.Untargeted(y, loss) or vd.goals.Targeted(classes)."
        )
    goal = {key: str(value) for key, value in settings if key in about_goal}
    rest = [(key, value) for key, value in settings if key not in about_goal]
    attack = with_settings(kind(), rest, notation(name), also=about_goal)
    if goal and attack.has_own_objective:
        key, value = next(iter(goal.items()))
        raise UsageError(f"{text!r} has an objective of its own, got {key}={value} as well. Leave {key}= out.")
    loss = one_of("loss", NAMED_LOSSES)(goal["loss"], "") if "loss" in goal else attack.goal_loss
    target = one_of("target", TARGETS)(goal["target"], "") if "target" in goal else None
    return attack, loss, target  # type: ignore[return-value]


def _check_version(name: str, settings: Sequence[tuple[str, object]]) -> None:
    """Refuse `autoattack:version=rand`: an attack of the same name has the same budget."""
    if not issubclass(ATTACKS[name], AutoAttack) or (version := dict(settings).get("version")) is None:
        return
    if version not in VERSIONS:
        raise unknown_name_error("version of AutoAttack", str(version), VERSIONS)
    meant = "autoattack" if version == "standard" else f"autoattack-{version}"
    raise UsageError(
        f"each version of AutoAttack is an attack of its own, got {name}:version={version}. Write {meant}."
    )


def _read_scaling(text: str, what: str) -> Scaling:
    name = text.partition(":")[0]
    if name not in SCALINGS and not name[:1].isdigit():
        raise unknown_name_error(what, name, SCALINGS)
    return parse_scaling(text)


READERS: Mapping[Any, Reader] = {
    Attack: lambda text, what: parse_attack(text),
    Loss: one_of("loss", NAMED_LOSSES),
    Scaling: _read_scaling,
    Schedule: one_of("schedule", SCHEDULES),
    Target: one_of("target", TARGETS),
    Threat: lambda text, what: parse_threat(text),
}
