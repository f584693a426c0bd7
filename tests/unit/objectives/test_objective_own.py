"""The objective of CONTRIBUTING.md: its closed form, and a training with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vitadel.attacks import PGD
from vitadel.objectives import AdversarialObjective, Objective
from vitadel.recipes import RECIPES, override, train_recipe
from vitadel.runs import Run
from vitadel.threats import Linf

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def alp() -> type[AdversarialObjective]:
    (code,) = (block for block in CONTRIBUTING.read_text("utf-8").split("```") if "class ALP" in block)
    names: dict[str, Any] = {}
    exec(code.removeprefix("python"), names)  # noqa: S102
    result: type[AdversarialObjective] = names["ALP"]
    return result


def test_the_loss_is_the_sum_of_its_terms(alp: type[AdversarialObjective]) -> None:
    torch.manual_seed(0)
    model, x, y = (
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4)),
        torch.rand(5, 3, 2, 2),
        torch.arange(5),
    )
    y %= 4
    objective = alp(PGD(steps=3, keep_best=False), Linf(0.1))
    x_adv = objective.prepare(model, x, y, seed=1).x_adv
    output = objective(model, x, y, seed=1)
    pairing = (model(x) - model(x_adv)).square().mean()
    assert 0 < float((x_adv - x).abs().max()) <= 0.1 + 1e-6
    torch.testing.assert_close(output.loss, F.cross_entropy(model(x_adv), y) + 0.5 * pairing)
    torch.testing.assert_close(output.logs["pairing"], pairing)


def test_a_recipe_trains_with_it(alp: type[AdversarialObjective], tmp_path: Path) -> None:
    settings = {"plan.epochs": 1, "plan.log_every_steps": 1, "selection.images": 8}
    recipe = override(RECIPES["digits-adversarial"](), settings)
    objective: Objective = alp(PGD(steps=1, step_size=0.1, keep_best=False), Linf(0.1), eps_warmup=0.5)
    train_recipe(replace(recipe, objective=objective), tmp_path / "run", data_spec="digits[:48]")
    pairings = [entry["pairing"] for entry in Run.open(tmp_path / "run").read_log("step")]
    assert pairings
    assert min(pairings) > 0
