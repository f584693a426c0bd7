"""Everything that takes a seed takes an int of 64 bits with a sign, and refuses anything else in one line."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitadel import models, robustness
from vitadel.analyze import Convergence, study
from vitadel.attacks import FGSM, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors
from vitadel.attacks.attention_scaling.factor_search import maximize_factors
from vitadel.core.errors import UsageError
from vitadel.data import Squash, load
from vitadel.evaluate import SUITES, Context, evaluate_suite, validation_scores
from vitadel.goals import Untargeted
from vitadel.objectives import Adversarial, Standard
from vitadel.recipes import RECIPES, train_recipe
from vitadel.runs import Run
from vitadel.shifts import Corruption
from vitadel.threats import Linf
from vitadel.train import Mixing, PILAugment, Sampler, Trainer
from vitadel.train.input.pil_augment import pil_augmented

X, Y, EPS = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]), Linf(0.1)
TINY = {"depth": 1, "embed_dim": 32, "num_heads": 2}


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10]


def tiny(seed: Any = 0) -> models.Model:
    return models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=4, options=TINY, seed=seed)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], object]]:
    model, recipe = tiny(), RECIPES["digits-standard"]()
    digits = load("digits[:4]", preprocess=Squash(8))
    assert digits.train is not None
    train, plan = digits.train, replace(recipe.plan, epochs=1, warmup_epochs=0, batch_size=2)

    def run() -> Run:
        return Run.claim(tmp_path_factory.mktemp("seeds") / "run", "test", {}, device="cpu")

    def from_recipe(seed: Any) -> object:
        short = replace(recipe, plan=plan, seed=seed)
        return train_recipe(short, tmp_path_factory.mktemp("seeds") / "recipe", data_spec="digits[:4]")

    return {
        "attack": lambda seed: FGSM()(Flat(), X, Untargeted(Y), EPS, seed=seed),
        "craft": lambda seed: FGSM().craft(Flat(), X, Untargeted(Y), EPS, seed=seed),
        "objective": lambda seed: Adversarial(FGSM(), EPS).prepare(Flat(), X, Y, seed=seed),
        "robustness": lambda seed: robustness(Flat(), X, Y, EPS, "clean", seed=seed),
        "evaluate": lambda seed: evaluate_suite(
            SUITES["clean"], Context(Flat(), digits.test, digits, seed=seed), run().results
        ),
        "validation_scores": lambda seed: validation_scores(Flat(), digits.test, None, None, seed=seed),
        "study": lambda seed: study(
            Flat(), X, torch.stack([x.flatten()[:10].argmax() for x in X]), STUDY, threat=EPS, seed=seed
        ),
        "load": tiny,
        "tora": lambda seed: models.tora(model, num_classes=3, seed=seed),
        "search_factors": lambda seed: find_attack_factors(model, X, Y, EPS, SEARCH, seed=seed),
        "maximize_factors": lambda seed: maximize_factors(model, X, Y, SEARCH, seed=seed),
        "corruption": lambda seed: Corruption("fog", 1)(torch.rand(1, 3, 32, 32), torch.tensor([0]), seed=seed),
        "mixing": lambda seed: Mixing(mixup=0.8)(X, Y, 10, seed=seed),
        "host": lambda seed: PILAugment().image(train, 0, seed=seed),
        "pil_augmented": lambda seed: next(
            pil_augmented(train, Sampler(1, 1, 0).batches(range(1)), PILAugment(), seed=seed)
        ),
        "fit": lambda seed: Trainer(tiny(), Standard(), train, plan, run(), seed=seed).fit(),
        "recipe": from_recipe,
    }


SEARCH = Scaling(steps=1, batches=1, batch_size=2, trial_images=2, trial_attack=FGSM())
STUDY = Convergence(steps=(0, 1), restarts=1, images=1, slices=0)
NAMES = (
    *("attack", "craft", "objective", "robustness", "evaluate", "validation_scores", "study", "load", "tora"),
    *("search_factors", "maximize_factors", "corruption", "mixing", "host", "pil_augmented", "fit", "recipe"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1.5, 1.0, None, True, "1", 2**64, 2**63, -(2**63) - 1])
def test_invalid_seeds_are_refused(entries: dict[str, Callable[[Any], object]], name: str, seed: Any) -> None:
    allowed = r"\[-9223372036854775808, 9223372036854775807\]"
    with pytest.raises(UsageError, match=rf"seed must .*lie in {allowed}, got .*\.$"):
        entries[name](seed)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_and_the_last_seed_are_accepted(entries: dict[str, Callable[[Any], object]], name: str) -> None:
    for seed in (-(2**63), 2**63 - 1):
        entries[name](seed)


def test_every_entry_point_is_tested(entries: dict[str, Callable[[Any], object]]) -> None:
    assert set(entries) == set(NAMES)


def test_negative_seeds_differ_from_positive_ones() -> None:
    mixing = Mixing(mixup=0.8)
    assert mixing.parameters(-1, 8, 8) != mixing.parameters(1, 8, 8)
    assert mixing.parameters(3, 8, 8) == mixing.parameters(3, 8, 8)
