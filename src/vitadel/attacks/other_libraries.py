"""What to write instead of calls as in torchattacks, foolbox, ART and the AutoAttack package: the texts of errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass

import numpy as np
from torch import Tensor

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import pixel_text
from vitadel.threats import Threat, suggested_threat

# settings that a threat or a goal holds here, and those that have another name here
_ELSEWHERE = {"eps", "norm", "epsilon", "epsilons", "device", "targeted", "y_target"}
_OUR_NAMES = {
    "alpha": "step_size",
    "eps_step": "step_size",
    "abs_stepsize": "step_size",
    "eot_iter": "eot_samples",
    "n_queries": "queries",
    "n_restarts": "restarts",
    "n_target_classes": "targets",
} | dict.fromkeys(("n_iter", "num_steps", "nb_iter", "iters", "max_iter", "iterations"), "steps")

# settings that no attack has here, and what to write instead
_BY_GOAL = 'A goal holds it. Write {name}()(model, x, vd.goals.{goal}, "linf:8/255").'
_PUBLISHED = "It is fixed to the published value. Leave it out."
_ADVICE = {
    "loss": _BY_GOAL.replace("{goal}", "Untargeted(y, vd.losses.dlr)"),
    "criterion": _BY_GOAL.replace("{goal}", "Targeted(classes)"),
    "rel_stepsize": "Steps are in pixel values. Write step_size=rel_stepsize * eps.",
    "bounds": "Pixels lie in [0, 1]. Leave it out.",
    "verbose": "Attacks print nothing. Leave it out.",
} | dict.fromkeys(("rho", "alpha_max", "eta", "beta", "resc_schedule", "rescale_schedule"), _PUBLISHED)

# the order of the arguments after the model, as in torchattacks and the AutoAttack package
_POSITIONAL = {
    "FGSM": ("eps",),
    "PGD": ("eps", "alpha", "steps", "random_start"),
    "APGD": ("norm", "eps", "steps", "n_restarts"),
    "FAB": ("norm", "eps", "steps", "n_restarts"),
    "Square": ("norm", "eps", "n_queries", "n_restarts"),
    "AutoAttack": ("norm", "eps", "version"),
}
_RADIUS = ("eps", "epsilon", "epsilons")

# methods of attacks, and what to write instead; {attack} is the attack with its settings
_CALL = '{attack}(model, x, y, "linf:8/255").x_adv'
_TOWARD_CLASSES = '{attack}(model, x, vd.goals.Targeted(classes), "linf:8/255")'
_EVALUATION = 'vd.robustness(model, x, y, "linf:8/255", {attack})'
_METHODS = {
    "run_standard_evaluation": _EVALUATION,
    "run_standard_evaluation_individual": _EVALUATION,
    "set_mode_default": '{attack}(model, x, y, "linf:8/255")',
    "set_device": "model.to(device)",
    "save": "vd.evaluate(model, data, {attack}, run=DIR, keep_images=True)",
} | dict.fromkeys(("forward", "generate", "perturb", "run", "attack"), _CALL)

# classes of attacks, and the attack to use instead
_SEVERAL_STEPS = 'PGD()(model, x, y, "{norm}:{eps}")'
_CLASSES = {
    "APGDT": "APGD(targets=9)",
    "BIM": "PGD(random_start=False)",
    "CW": 'PGD(steps=100)(model, x, vd.goals.Untargeted(y, vd.losses.margin), "l2:0.5")',
    "DeepFool": "FAB()",
    "EOTPGD": "APGD(eot_samples=20)",
    "FastGradientMethod": "FGSM()",
    "L1PGD": _SEVERAL_STEPS.format(norm="l1", eps="12"),
    "L2PGD": _SEVERAL_STEPS.format(norm="l2", eps="0.5"),
    "L2ProjectedGradientDescentAttack": _SEVERAL_STEPS.format(norm="l2", eps="0.5"),
    "LinfBasicIterativeAttack": "PGD(random_start=False)",
    "LinfFastGradientAttack": 'FGSM()(model, x, y, "linf:8/255")',
    "LinfPGD": _SEVERAL_STEPS.format(norm="linf", eps="8/255"),
    "LinfProjectedGradientDescentAttack": _SEVERAL_STEPS.format(norm="linf", eps="8/255"),
    "PGDL2": _SEVERAL_STEPS.format(norm="l2", eps="0.5"),
    "ProjectedGradientDescent": "PGD()",
    "SquareAttack": "Square()",
    "TPGD": 'PGD()(model, x, vd.goals.Untargeted(y, vd.losses.kl_divergence), "linf:8/255")',
}


class MissingAttributeError(UsageError, AttributeError):
    """An attribute that only attacks of other libraries have; `hasattr` answers False."""


def class_advice(name: str) -> str:
    """The attack to use in place of a class of another library; empty if there is none."""
    return f". Write vd.attacks.{_CLASSES[name]}" if name in _CLASSES else ""


def missing_attribute(attack: object, name: str) -> AttributeError:
    """The error for an attribute that an attack does not have; that of a method of another library has advice."""
    kind = type(attack).__name__
    if name.startswith("set_mode_targeted"):
        instead = _TOWARD_CLASSES
    elif name in _METHODS:
        instead = _METHODS[name]
    else:
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    return MissingAttributeError(f"{kind} has no method {name!r}. Write {instead.format(attack=as_written(attack))}.")


def construction_advice(name: str, known: Sequence[str], args: Sequence[object], settings: Mapping[str, object]) -> str:
    """The error for settings of other libraries, and for an attack that is given a model.

    Args:
        name: The class of the attack.
        known: The names of its settings.
        args: The positional arguments.
        settings: The keyword arguments.
    """
    foreign = sorted(set(settings) - set(known))
    holds_model = bool(args) and callable(args[0])
    wrong = "an attack holds no model" if holds_model else f"{name} has no setting {foreign[0]!r}"
    if holds_model:
        settings = dict(zip(_POSITIONAL.get(name, ()), args[1:], strict=False)) | dict(settings)
    ours = {_OUR_NAMES.get(key, key): value for key, value in settings.items()}
    kept = ", ".join(f"{key}={python_text(value)}" for key, value in ours.items() if key in known)
    if advised := [key for key in foreign if key in _ADVICE]:
        return f"{name} has no setting {advised[0]!r}. {_ADVICE[advised[0]].format(name=name)}"
    if unknown := [key for key in foreign if key not in _ELSEWHERE and _OUR_NAMES.get(key) not in known]:
        return f"{name} has no setting {unknown[0]!r}. {_settings(known)}"
    return f'{wrong}. Write {name}({kept})(model, x, y, "{_threat(settings)}").'


def call_advice(attack: object, model: object, y: object, threat: object, other: Mapping[str, object]) -> str:
    """The error for a call without model, labels or threat, or with arguments of other libraries.

    Args:
        attack: The attack.
        model: Its first argument.
        y: Labels or a goal; None if missing.
        threat: The threat; None if missing.
        other: Keyword arguments that an attack does not have.
    """
    name = type(attack).__name__
    ours = {_OUR_NAMES.get(key, key): value for key, value in other.items()}
    settings = settings_by_name(attack)
    if unknown := [key for key in other if key not in _ELSEWHERE and _OUR_NAMES.get(key, key) not in settings]:
        if unknown[0] in _ADVICE:
            return f"{name}(...) takes no argument {unknown[0]!r}. {_ADVICE[unknown[0]].format(name=name)}"
        known = ("model", "x", "y", "threat", "seed", "index_B")
        return str(unknown_name_error(f"argument of {name}(...)", unknown[0], known))
    if not callable(model):
        wrong = f"an attack takes a model as its first argument, got {type(model).__name__}"
    elif radius := [f"{key}={python_text(other[key])}" for key in ("norm", *_RADIUS) if key in other]:
        wrong = f"an attack takes norm and radius together, got {', '.join(radius)}"
    elif other:
        wrong = f"{name}(...) takes no argument {next(iter(other))!r}"
    else:
        wrong = f"an attack takes a model, images, labels and a threat, got no {'labels' if y is None else 'threat'}"
    changed = {**_changed(attack), **{key: value for key, value in ours.items() if key in settings}}
    within = str(threat) if isinstance(threat, str | Threat) else _threat(other)
    goal = "vd.goals.Targeted(classes)" if {"targeted", "y_target"} & set(other) else "y"
    return f'{wrong}. Write {written_call(name, changed)}(model, x, {goal}, "{within}").'


def as_written(attack: object) -> str:
    """An attack as a user writes it: its class, and the settings that differ from their defaults."""
    return written_call(type(attack).__name__, _changed(attack))


def python_text(value: object) -> str:
    """A setting as it is written in Python; a radius or step size as a fraction of 255, a function by its name."""
    if isinstance(value, float) and math.isfinite(value):
        return pixel_text(value)
    return str(getattr(value, "__name__", None) or repr(value)) if callable(value) else repr(value)


def written_call(name: str, settings: Mapping[str, object]) -> str:
    """The call of a class with these settings, as it is written in Python."""
    return f"{name}({', '.join(f'{key}={python_text(value)}' for key, value in settings.items())})"


def settings_by_name(attack: object) -> dict[str, object]:
    """The settings of an attack by name."""
    if not is_dataclass(attack):
        return {}
    return {one.name: getattr(attack, one.name) for one in fields(attack) if one.init}


def _changed(attack: object) -> dict[str, object]:
    """The settings that differ from their defaults."""
    if not is_dataclass(attack):
        return {}
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(attack)
    }
    return {name: value for name, value in settings_by_name(attack).items() if value != defaults[name]}


def _threat(settings: Mapping[str, object]) -> str:
    """The threat for norm and radius as other libraries take them; of several radii, the first."""
    eps = next((settings[key] for key in _RADIUS if key in settings), None)
    if isinstance(eps, list | tuple | Tensor | np.ndarray) and len(eps):
        eps = float(eps[0])
    return suggested_threat(settings.get("norm"), eps)


def _settings(known: Sequence[str]) -> str:
    return f"Its settings are {', '.join(known)}." if known else "It has none. Leave it out."
