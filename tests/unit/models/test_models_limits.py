"""The largest values that a description of a model may have, and the first ones beyond them."""

from typing import Any

import pytest

from vitadel.core.errors import UsageError
from vitadel.models import ModelSpec, Normalization, Option
from vitadel.models.options import check_options

RAW = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def spec(**values: Any) -> ModelSpec:
    return ModelSpec(
        **{"name": "timm:vit", "num_classes": 2, "image_size": 8, "patch_size": 2, **values, "normalization": RAW}
    )


@pytest.mark.parametrize(
    ("name", "largest"),
    [("num_classes", 65_536), ("kept_classes", 65_536), ("image_size", 4096), ("patch_size", 128)],
)
def test_sizes_are_limited(name: str, largest: int) -> None:
    for value in (1, largest):
        assert getattr(spec(**{name: value}), name) == value
    for refused in (0, largest + 1, 2.0, True):
        with pytest.raises(UsageError, match=f"{name} must be a whole number from 1 to {largest}"):
            spec(**{name: refused})


@pytest.mark.parametrize("name", ["num_classes", "image_size"])
def test_sizes_that_every_model_has_are_not_none(name: str) -> None:
    assert (spec(patch_size=None).patch_size, spec().kept_classes) == (None, None)
    with pytest.raises(UsageError, match=f"{name} must be"):
        spec(**{name: None})


def test_a_name_has_up_to_200_characters() -> None:
    assert spec(name="m" * 200).name == "m" * 200
    with pytest.raises(UsageError, match="up to 200 characters"):
        spec(name="m" * 201)


@pytest.mark.parametrize(
    ("mean", "std", "fits"),
    [
        (1e6, 1.0, True),
        (-1e6, 1.0, True),
        (1.1e6, 1.0, False),
        (-1.1e6, 1.0, False),
        (0.0, 1e-6, True),
        (0.0, 0.9e-6, False),
        (0.0, 1e6, True),
        (0.0, 1.1e6, False),
        (0.0, -1.0, False),
        (float("nan"), 1.0, False),
        (0.0, float("nan"), False),
    ],
)
def test_normalizations_fit_into_float32(mean: float, std: float, fits: bool) -> None:
    if fits:
        assert Normalization.of(mean, std) == Normalization((mean,) * 3, (std,) * 3)
    else:
        with pytest.raises(UsageError, match="a normalization needs one mean and one positive std per channel"):
            Normalization.of(mean, std)


@pytest.mark.parametrize(
    ("option", "allowed", "refused"),
    [
        ("depth", (1, 256), (0, 257, 2.0, True, "2")),
        ("embed_dim", (1, 65_536), (0, 65_537, 2.0)),
        ("num_heads", (1, 1024), (0, 1025, 65_536, 2.0)),
        ("width_factor", (1, 1024), (0, 1025)),
        ("reg_tokens", (0, 65_536), (-1, 65_537)),
        ("drop_rate", (0, 0.5, 1), (-0.1, 1.1, float("nan"), True)),
        ("init_values", (0, 1e-5, 1000), (-1e-9, 1001, float("inf"))),
        ("qkv_bias", (True, False), (1, 0, "true")),
        ("act_layer", ("gelu", "", "a" * 32), ("a" * 33, "GELU", 1)),
    ],
)
def test_options_are_limited(option: str, allowed: tuple[Option, ...], refused: tuple[Option, ...]) -> None:
    for value in allowed:
        check_options("timm:vit", {option: value})
    for value in refused:
        with pytest.raises(UsageError, match=option):
            check_options("timm:vit", {option: value})
