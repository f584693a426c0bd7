"""Recipes: every one can be built and described, and one value deep inside can be changed."""

import json
import sys
from pathlib import Path

import pytest
from torch import nn

from vitadel import data, models
from vitadel.data import Split
from vitadel.errors import UsageError
from vitadel.objectives import Adversarial
from vitadel.recipes import RECIPES, override
from vitadel.runs import describe
from vitadel.train import Precision


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_complete(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert json.loads(json.dumps(describe(recipe)))["plan"]["epochs"] >= 1
    assert recipe.sources, "every value says where it comes from"
    choice = recipe.model
    model = models.load(
        choice.start, image_size=choice.image_size, patch_size=choice.patch_size, options=choice.options, num_classes=10
    )
    assert model.spec is not None
    assert model.spec.image_size == choice.image_size


def test_selection_uses_the_hold_out_unless_the_recipe_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitadel.recipes import carry_out as room

    seen: list[tuple[str, ...]] = []

    def spy(model: nn.Module, split: Split, *args: object, **values: object) -> dict[str, float]:
        seen.append(split.ids)
        return {"clean": 0.5}

    monkeypatch.setattr(sys.modules["vitadel.recipes.carry_out"], "quick_scores", spy)
    digits = data.load("digits[:64]", preprocess=data.Squash(8))
    assert digits.holdout is not None
    for name, split in (("holdout", digits.holdout), ("test", digits.test)):
        settings = ["plan.epochs=1", "plan.warmup_epochs=0", f"selection.split={name}", "selection.images=20"]
        room(override(RECIPES["digits-standard"](), settings), tmp_path / name, data_spec="digits[:64]")
        assert seen.pop() == split.ids[:20]
    assert RECIPES["digits-standard"]().selection.split == "holdout"


def test_one_value_changes_and_nothing_else() -> None:
    before = RECIPES["digits-adversarial"]()
    settings = ["plan.epochs=3", "objective.threat.eps=4/255", "plan.ema=0.99", "plan.precision=bf16", "seed=5"]
    after = override(before, settings)
    assert (after.plan.epochs, after.plan.ema, after.plan.precision, after.seed) == (3, 0.99, Precision.BF16, 5)
    assert isinstance(after.objective, Adversarial)
    assert after.objective.threat.eps == 4 / 255
    assert override(after, ["plan.ema=null"]).plan.ema is None
    assert override(before, []) == before
    assert before == RECIPES["digits-adversarial"]()


def test_settings_are_applied_together_whatever_their_order() -> None:
    # two warm-up epochs of two would be refused on the way
    for settings in (["plan.epochs=2", "plan.warmup_epochs=1"], ["plan.warmup_epochs=1", "plan.epochs=2"]):
        plan = override(RECIPES["digits-standard"](), settings).plan
        assert (plan.epochs, plan.warmup_epochs) == (2, 1)
    assert override(RECIPES["digits-standard"](), ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("plan.epochs", "Write path=value, such as plan.epochs=3"),
        ("plan.epoch=3", "unknown setting of Plan 'epoch'. Did you mean 'epochs'"),
        ("plan.epochs=three", "--set plan.epochs wants a whole number, got 'three'"),
        ("plan.epochs.x=3", "there is nothing below a int"),
        ("objective.threat=l2", "stands for a whole Linf"),
        ("plan.clip_norm=wide", "is not a number: got 'wide'"),
        ("objective.threat.eps=8", "write 8/255, not 8"),
        ("plan.precision=fp8", "unknown value of plan.precision 'fp8'"),
        ("objective.attack.random_start=yes", "wants true or false, got 'yes'"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        override(RECIPES["digits-adversarial"](), [setting])
