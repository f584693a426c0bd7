"""Errors about the command line itself: what to write instead of an option that a command does not have."""

from collections.abc import Sequence
from typing import Any

from vitadel.core.errors import short_repr

# settings of a training, as other programs name their options
_TRAINING = {
    "--epochs": "plan.epochs",
    "--batch-size": "plan.batch_size",
    "--bs": "plan.batch_size",
    "--lr": "plan.optimizer.lr",
    "--learning-rate": "plan.optimizer.lr",
    "--weight-decay": "plan.optimizer.weight_decay",
    "--opt": "plan.optimizer",
    "--seed": "seed",
    "--image-size": "model.image_size",
    "--img-size": "model.image_size",
    "--patch-size": "model.patch_size",
    "--threat": "objective.threat",
    "--precision": "plan.precision",
}
_OTHER_NAMES = {
    "--bs": "--batch-size",
    "--n-classes": "--num-classes",
    "--img-size": "--image-size",
    "--input-size": "--image-size",
    "--dataset": "--data",
    "--data-dir": "--data",
    "--output": "--run",
    "--output-dir": "--run",
    "--attacks": "--attack",
    "--suites": "--suite",
    "--gpu": "--device",
}
_NORM, _RADIUS = ("--norm",), ("--eps", "--epsilon", "--epsilons")


def sentence(error: Any, words: Sequence[str]) -> str:
    """An error of typer as full sentences, with what to write instead and the help to read.

    Args:
        error: It has `format_message`, and usually the context `ctx` of the command.
        words: The arguments of the command line.
    """
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", None) or "vitadel"
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and isinstance(option, str):
        known = [name for one in context.command.params for name in one.opts] if context is not None else []
        name = command.removeprefix("vitadel").strip()
        text = f"{name} has no option {short_repr(option)}." if name else f"there is no option {short_repr(option)}."
        advice = _advice(command, option, known, words, getattr(error, "possibilities", None) or ())
    else:
        text, advice = error.format_message().strip(), ""
        text = text if text.endswith((".", "!", "?")) else f"{text}."
    return " ".join(filter(None, (text, advice, f"See `{command} --help`.")))


def _advice(command: str, option: str, known: Sequence[str], words: Sequence[str], similar: Sequence[str]) -> str:
    """The words to write instead of an unknown option; empty if there are none."""
    name = option.replace("_", "-").lower()
    value = _value(option, words)
    if name in known:
        return f"Write {name} {value}." if value else f"Write {name}."
    if name in (*_NORM, *_RADIUS):
        return _threat(command, known, words)
    if command.endswith((" train", " sweep")) and name in _TRAINING:
        return f"Write --set {_TRAINING[name]}={value or 'VALUE'}."
    renamed = _OTHER_NAMES.get(name, name)
    if renamed == "--device":
        number = value.rpartition(":")[2] if value.rpartition(":")[2].isdecimal() else "1"
        if "--device" not in known:
            chosen = "" if value == "cpu" else number
            return f"Training uses the GPU if available. Write CUDA_VISIBLE_DEVICES={chosen} {command} ..."
        return f"Write --device {value if not value.isdecimal() else f'cuda:{value}'}."
    if renamed in known:
        return f"Write {renamed} {value or 'VALUE'}."
    if name == "--attack" and "--suite" in known:
        return f"Write --suite {value or 'NAME'}."
    return f"Did you mean {' or '.join(sorted(similar))}?" if similar else ""


def _threat(command: str, known: Sequence[str], words: Sequence[str]) -> str:
    from vitadel.core.errors import UsageError
    from vitadel.core.numeric import parse_number
    from vitadel.threats import suggested_threat

    given = {word.partition("=")[0].replace("_", "-").lower(): _value(word.partition("=")[0], words) for word in words}
    norm = next((given[name] for name in _NORM if given.get(name)), None)
    eps: float | None = None
    for text in (given[name] for name in _RADIUS if given.get(name)):
        try:
            eps = parse_number(text, "eps")
        except UsageError:  # a usual radius is suggested
            continue
    threat = suggested_threat(norm, eps)
    if "--threat" in known:
        return f"Norm and radius are written together: write --threat {threat}."
    if command.endswith(" train"):
        return f"Norm and radius are written together: write --set objective.threat={threat}."
    return ""


def _value(option: str, words: Sequence[str]) -> str:
    """The value that the user wrote after an option; empty if there is none."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            following = words[number + 1] if number + 1 < len(words) else ""
            return value if equals else "" if following.startswith("--") else following
    return ""
