"""The description of a model from which it can be built again, without its weights."""

import json
import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from typing import Any

from vitadel.core.errors import UsageError
from vitadel.core.files import parse_json
from vitadel.models.tora import AdapterConfig

SPEC_KEY = "vitadel.model"  # of the header of a checkpoint

Option = str | int | float | bool

# larger than anything published (timm: 21,843 classes, 1024 pixels, patches of 64), and small enough for any memory
MOST = {"num_classes": 2**16, "kept_classes": 2**16, "image_size": 4096, "patch_size": 128}
# timm's longest name has 60 characters
_LONGEST_NAME = 200
# beyond these bounds, pixels in [0, 1] become only zeros and infinities in float32
_MOST_MEAN, _LEAST_STD, _MOST_STD = 1e6, 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class Normalization:
    """The mean that a model subtracts from pixels in [0, 1], and the standard deviation that it divides them by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        means = all(math.isfinite(mean) and abs(mean) <= _MOST_MEAN for mean in self.mean)
        stds = all(_LEAST_STD <= std <= _MOST_STD for std in self.std)
        if len(self.mean) != len(self.std) or not self.mean or not means or not stds:
            raise UsageError(
                f"a normalization needs one mean and one positive std per channel, "
                f"got {self.mean!r:.100} and {self.std!r:.100}. Write for example mean=0.5, std=0.5."
            )

    @classmethod
    def of(cls, mean: float | Sequence[float], std: float | Sequence[float]) -> "Normalization":
        """From one number per channel, or one for all of them."""
        channels = next((len(value) for value in (mean, std) if isinstance(value, Sized)), 3)
        each = (value if isinstance(value, Sized) else (value,) * channels for value in (mean, std))
        return cls(*(tuple(map(float, one)) for one in each))

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return not any(self.mean) and set(self.std) == {1.0}


RAW_PIXELS = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How to build a model: architecture, geometry, normalization.

    Args:
        name: `timm:NAME` or `vitadel:NAME`.
        num_classes: Outputs of the head, or of the heads that adapters have.
        image_size: Side of the images in pixels.
        patch_size: Side of a patch in pixels; None for networks without patches.
        normalization: What is applied to pixels first.
        options: Further arguments of the architecture's constructor, such as `depth`.
        tuning: Adapters on a frozen network of this architecture (TORA-ViT); None for a plain model.
        kept_classes: With `tuning`, outputs of the frozen network's own head.
    """

    name: str
    num_classes: int
    image_size: int
    patch_size: int | None
    normalization: Normalization
    options: Mapping[str, Option] = field(default_factory=dict)
    tuning: AdapterConfig | None = None
    kept_classes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > _LONGEST_NAME:
            raise UsageError(
                f"the name of a model has up to {_LONGEST_NAME} characters, got {self.name!r:.80}. Shorten it."
            )
        for what, most in MOST.items():
            value = getattr(self, what)
            if value is None and what in ("patch_size", "kept_classes"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise UsageError(f"{what} must be a whole number from 1 to {most}, got {value!r:.60}. Change it.")
        if len(self.normalization.mean) != 3:
            raise UsageError(
                f"images have 3 channels, got a normalization of {len(self.normalization.mean)}. Write one number each."
            )

    @property
    def output_classes(self) -> int:
        """The number of logits that the model returns: of the head that `tuning.head` chooses, if it has several."""
        own = self.kept_classes if self.tuning is not None and self.tuning.head == "kept" else None
        return self.num_classes if own is None else own

    def to_json(self) -> str:
        """The text that a checkpoint has in its header."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Read a text of `to_json` from a file that may be damaged.

        The options are checked later, when the network is built and its family is known.
        """
        try:
            values: Any = parse_json(text)
            if "normalisation" in values:  # as earlier versions spelled it
                values["normalization"] = values.pop("normalisation")
            mean, std = (tuple(map(float, values["normalization"][key])) for key in ("mean", "std"))
            tuning = values.get("tuning")
            if tuning is not None:
                old = {"answer": "head"}  # as earlier versions spelled it
                tuning = AdapterConfig(**{old.get(key, key): value for key, value in tuning.items()})
            if not isinstance(values.get("options", {}), dict):
                raise TypeError("its options are not a mapping")
            return cls(**{**values, "normalization": Normalization(mean, std), "tuning": tuning})
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError, UsageError) as error:
            raise UsageError(
                f"the model description in the file is damaged ({error!s:.200}). Use an intact file."
            ) from error
