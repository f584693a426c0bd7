"""Default settings of everything with a name: the same name has the same budget in every version."""

import dataclasses
import enum
from pathlib import Path

import pytest
from on_record import check  # type: ignore[import-not-found]

from vitadel.analyze import STUDIES
from vitadel.attacks import ATTACKS, SCALINGS
from vitadel.evaluate import SUITES
from vitadel.objectives import ARDPRM, AWP, MART, TRADES, Adversarial, AttentionScaling, Standard, TORATraining
from vitadel.threats import THREATS, Linf
from vitadel.train import SGD, AdamW, Lion, Mixing, PILAugment, TrainingConfig

RECORD = Path(__file__).with_name("defaults.json")
THREAT = Linf(0.1)


def made() -> dict[str, object]:
    """Everything with a name, with its default settings."""
    return {
        **{f"suite {name}": suite for name, suite in SUITES.items()},
        **{f"study {name}": make() for name, make in STUDIES.items()},
        **{f"attack {name}": make() for name, make in ATTACKS.items()},
        **{f"scaling {name}": make() for name, make in SCALINGS.items()},
        **{f"threat {name}": kind(0.1) for name, kind in THREATS.items()},
        **{f"objective {kind.__name__}": kind(None, THREAT) for kind in (Adversarial, TRADES, MART, TORATraining)},
        **{f"objective {kind.__name__}": kind(Standard()) for kind in (AWP, AttentionScaling)},
        "objective ARDPRM": ARDPRM(Adversarial(None, THREAT)),
        **{f"optimizer {kind.__name__}": kind(lr=0.1) for kind in (SGD, AdamW, Lion)},
        "plan": TrainingConfig(epochs=10, batch_size=8, optimizer=SGD(lr=0.1)),
        "mixing": Mixing(),
        "pil-augment": PILAugment(),
    }


NAMES = list(made())


def as_json(value: object) -> object:
    """Settings as JSON, however deep; classes and functions by their name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", str(value))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_on_record(name: str) -> None:
    settings = as_json(made()[name])
    if isinstance(settings, dict):
        for text in ("about", "title"):
            settings.pop(text, None)
    check(RECORD, name, settings)
