"""What a model is, apart from its weights: enough to build it again."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from vitadel.errors import UsageError
from vitadel.models.tora import Tuning

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Normalisation:
    """The shift and scale a model applies to pixels in [0, 1] before its first layer."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise UsageError(
                f"a normalisation needs one mean and one positive std per channel, got {self.mean} and {self.std}."
            )

    @property
    def identity(self) -> bool:
        return not any(self.mean) and set(self.std) == {1.0}


RAW_PIXELS = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The architecture by name, its geometry, its normalisation, and what it was built with beyond the name.

    With `tuning`, that architecture is frozen, with a head of `kept_classes`, and has adapters and heads of their own.
    """

    name: str
    num_classes: int
    image_size: int
    patch_size: int | None
    normalisation: Normalisation
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: Tuning | None = None
    kept_classes: int | None = None

    @property
    def answers(self) -> int:
        """How many classes the model chooses among; the frozen network's own, if that one answers."""
        own = self.kept_classes if self.tuning is not None and self.tuning.answer == "kept" else None
        return self.num_classes if own is None else own

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Read what `to_json` wrote; the text comes from a file, so nothing about it is taken for granted."""
        try:
            values = json.loads(text)
            spec = cls(**values)
            sizes = (spec.num_classes, spec.image_size, 1 if spec.patch_size is None else spec.patch_size)
            if not all(isinstance(size, int) for size in sizes):
                raise ValueError(f"sizes are {sizes}")
            mean, std = (tuple(map(float, values["normalisation"][key])) for key in ("mean", "std"))
            tuning = None if values.get("tuning") is None else Tuning(**values["tuning"])
            return replace(
                spec,
                name=str(spec.name),
                normalisation=Normalisation(mean, std),
                options=dict(spec.options),
                tuning=tuning,
            )
        except (TypeError, KeyError, ValueError) as error:
            raise UsageError(f"the model description in the file is damaged ({error}). Use an intact file.") from error
