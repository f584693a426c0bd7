"""What a model is, apart from its weights: enough to build it again."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitadel.core.errors import UsageError
from vitadel.core.files import parse_json
from vitadel.models.tora import Tuning

Option = str | int | float | bool

# beyond anything published (timm: 21,843 classes, 1024 pixels, patches of 64), and within what a machine can hold
MOST = {"num_classes": 2**16, "kept_classes": 2**16, "image_size": 4096, "patch_size": 128}
# timm's longest name has 60 characters
_LONGEST_NAME = 200
# pixels lie in [0, 1]; outside these bounds float32 makes nothing of them but zeros and infinities
_MOST_MEAN, _LEAST_STD, _MOST_STD = 1e6, 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class Normalization:
    """The shift and scale a model applies to pixels in [0, 1] before its first layer."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        means = all(math.isfinite(mean) and abs(mean) <= _MOST_MEAN for mean in self.mean)
        stds = all(_LEAST_STD <= std <= _MOST_STD for std in self.std)
        if len(self.mean) != len(self.std) or not self.mean or not means or not stds:
            raise UsageError(
                f"a normalization needs one mean and one positive std per channel, "
                f"got {self.mean!r:.100} and {self.std!r:.100}."
            )

    @property
    def identity(self) -> bool:
        return not any(self.mean) and set(self.std) == {1.0}


RAW_PIXELS = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The architecture by name, its geometry, its normalization, and what it was built with beyond the name.

    With `tuning`, that architecture is frozen, with a head of `kept_classes`, and has adapters and heads of their own.
    """

    name: str
    num_classes: int
    image_size: int
    patch_size: int | None
    normalization: Normalization
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: Tuning | None = None
    kept_classes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > _LONGEST_NAME:
            raise UsageError(f"the name of a model has up to {_LONGEST_NAME} characters, got {self.name!r:.80}.")
        for what, most in MOST.items():
            value = getattr(self, what)
            if value is None and what in ("patch_size", "kept_classes"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise UsageError(f"{what} must be a whole number from 1 to {most}, got {value!r:.60}.")
        if len(self.normalization.mean) != 3:
            raise UsageError(f"images have 3 channels, got a normalization of {len(self.normalization.mean)}.")

    @property
    def answers(self) -> int:
        """How many classes the model chooses among; the frozen network's own, if that one answers."""
        own = self.kept_classes if self.tuning is not None and self.tuning.answer == "kept" else None
        return self.num_classes if own is None else own

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Read what `to_json` wrote; the text comes from a file, so nothing about it is taken for granted.

        The options are checked where a network is built, which is where it is known what its family takes.
        """
        try:
            values: Any = parse_json(text)
            if "normalisation" in values:  # as earlier versions spelled it
                values["normalization"] = values.pop("normalisation")
            mean, std = (tuple(map(float, values["normalization"][key])) for key in ("mean", "std"))
            tuning = None if values.get("tuning") is None else Tuning(**values["tuning"])
            if not isinstance(values.get("options", {}), dict):
                raise TypeError("its options are no mapping")
            return cls(**{**values, "normalization": Normalization(mean, std), "tuning": tuning})
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError, UsageError) as error:
            raise UsageError(
                f"the model description in the file is damaged ({error!s:.200}). Use an intact file."
            ) from error
