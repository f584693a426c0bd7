"""Every model of the zoo loads, is small, and has its card."""

import tomllib
from pathlib import Path

import pytest
import torch

from vitadel import models
from vitadel.models.loading import ZOO

FILES = sorted(ZOO.glob("*.safetensors"))
PROJECT = Path(__file__).parents[3]


def test_the_zoo_stays_small() -> None:
    sizes = {file.name: file.stat().st_size for file in FILES}
    assert FILES
    assert max(sizes.values()) <= 12e6
    assert sum(sizes.values()) <= 40e6


def test_the_zoo_is_installed_with_the_package() -> None:
    patterns = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["vitadel"]
    package = PROJECT / "src" / "vitadel"
    installed = {file.name for pattern in patterns for file in package.glob(pattern)}
    assert {file.name for file in (PROJECT / "zoo").glob("*.safetensors")} == {file.name for file in FILES}
    assert installed >= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_zoo_models_match_their_cards(file: Path) -> None:
    model = models.load(f"zoo:{file.stem}")
    assert model.spec is not None
    size = model.spec.image_size
    with torch.no_grad():
        z_BK = model(torch.rand(2, 3, size, size))
    assert z_BK.shape == (2, model.spec.num_classes)
    assert z_BK.isfinite().all()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    card = file.with_suffix(".md").read_text()
    for word in ("clean", "robust", "command", "seed", "versions", "%"):
        assert word in card
