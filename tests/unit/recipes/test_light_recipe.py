"""The thesis's recipes against numbers that the thesis prints and that the authors' code gives."""

import math

import pytest
import torch

from vitadel import models
from vitadel.attacks import PGD
from vitadel.objectives import TRADES, Adversarial, ScheduleUnit, TrainingTime
from vitadel.recipes import RECIPES, Normalize, override
from vitadel.train import SGD, AdamW, learning_rate
from vitadel.train.optim import Decay

_IMAGENET = [f"xcit-{size}12-imagenet{kind}" for size in "sml" for kind in ("", "-thesis", "-eps8")]


def rate(name: str, epoch: int, *settings: str) -> float:
    """The learning rate at the beginning of an epoch, whatever the number of updates in one."""
    plan = override(RECIPES[name](), settings).plan
    first, last = learning_rate(plan, epoch * 7, 7), learning_rate(plan, epoch * 7 + 6, 7)
    assert first == last, "timm's schedule moves once an epoch"
    return first


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 1e-6), (1, 5.09e-5), (9, 4.501e-4), (10, 4.880e-4), (50, 2.55e-4), (105, 1e-5)]
)
def test_the_learning_rate_of_the_authors(epoch: int, expected: float) -> None:
    assert rate("xcit-s12-imagenet", epoch) == pytest.approx(expected, rel=1e-3)


def test_the_learning_rate_of_the_authors_never_reaches_its_peak() -> None:
    assert max(rate("xcit-s12-imagenet", epoch) for epoch in range(110)) == pytest.approx(4.880e-4, rel=1e-3)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 5e-6), (4, 4.01e-4), (99, 5.011e-5), (105, 5e-5)])
def test_the_learning_rate_of_the_thesis(epoch: int, expected: float) -> None:
    assert rate("xcit-s12-imagenet-thesis", epoch) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("batch", "peak"), [(512, 5e-4), (8192, 8e-3), (16384, 16e-3)])
def test_the_peak_learning_rate_scales_with_the_batch(batch: int, peak: float) -> None:
    plan = override(RECIPES["xcit-m12-imagenet"](), [f"plan.batch_size={batch}"]).plan
    assert plan.peak_lr == pytest.approx(peak)


@pytest.mark.parametrize("name", _IMAGENET)
def test_eps_grows_in_steps_after_a_clean_epoch(name: str) -> None:
    recipe = RECIPES[name]()
    objective = recipe.objective
    assert isinstance(objective, Adversarial)
    assert recipe.plan.all_epochs == 110
    full = objective.threat.eps
    for epoch in range(12):
        # the first and the last update of an epoch alike
        for within in (0.01, 1.0):
            now = objective.at(TrainingTime(epoch + within, 110))
            if epoch == 0:
                assert now.attack is None
            else:
                assert now.threat.eps == pytest.approx(min(1.0, epoch / 10) * full)
                assert isinstance(now.attack, PGD)
                assert isinstance(objective.attack, PGD)
                assert now.attack.step_size == objective.attack.step_size, "the step is the final radius's throughout"


@pytest.mark.parametrize(
    ("name", "eps", "steps", "step_size"),
    [
        ("xcit-s12-imagenet", 4, 1, 6),
        ("xcit-m12-imagenet", 4, 1, 6),
        ("xcit-l12-imagenet", 4, 2, 3),
        ("xcit-l12-imagenet-thesis", 4, 1, 6),
        ("xcit-s12-imagenet-eps8", 8, 2, 6),
        ("xcit-l12-imagenet-eps8", 8, 2, 6),
        ("xcit-n12-imagenet100", 4, 1, 6),
        ("resnet50-gelu-imagenet", 4, 1, 6),
        ("xcit-s12-caltech101", 8, 1, 12),
        ("xcit-s12-cifar10", 8, 10, 1.2),
        ("xcit-s12-cifar10-scratch", 8, 10, 1.2),
    ],
)
def test_attacks(name: str, eps: int, steps: int, step_size: float) -> None:
    objective = RECIPES[name]().objective
    assert isinstance(objective, Adversarial | TRADES)
    assert isinstance(objective.attack, PGD)
    assert objective.threat.eps == eps / 255
    assert (objective.attack.steps, objective.attack.keep_best, objective.attack.random_start) == (steps, False, True)
    assert objective.attack.step_size == pytest.approx(step_size / 255)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("xcit-n12-imagenet100", 3.05),
        ("xcit-s12-imagenet", 26.25),
        ("xcit-m12-imagenet", 46.40),
        ("xcit-l12-imagenet", 103.79),
        ("deit-s-imagenet", 22.05),
        ("cait-s12-imagenet100", 25.61),
        ("resnet50-gelu-imagenet", 25.56),
    ],
)
def test_models_have_the_published_size(name: str, millions: float) -> None:
    choice = RECIPES[name]().model
    with torch.device("meta"):
        model = models.load(choice.start, num_classes=1000, image_size=224, options=choice.options)
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("name", ["xcit-s12-imagenet", "xcit-m12-imagenet", "xcit-l12-imagenet"])
def test_xcit_has_twelve_blocks_layer_scale_one_and_stochastic_depth(name: str) -> None:
    choice = RECIPES[name]().model
    with torch.device("meta"):
        net = models.load(choice.start, num_classes=10, image_size=224, options=choice.options).net
    assert len(net.blocks) == 12  # type: ignore[arg-type]
    assert len(net.cls_attn_blocks) == 2  # type: ignore[arg-type]
    assert net.blocks[0].drop_path1.drop_prob == 0.05  # type: ignore[index,union-attr]
    assert choice.options.get("eta", 1.0) == 1.0
    assert choice.normalize is Normalize.NONE


def test_attention_temperature_has_weight_decay() -> None:
    recipe = RECIPES["xcit-s12-imagenet"]()
    assert isinstance(recipe.plan.optimizer, AdamW)
    assert (recipe.plan.optimizer.weight_decay, recipe.plan.optimizer.decay) == (0.5, Decay.DIMENSIONS)
    choice = recipe.model
    small = {"depth": 1, "embed_dim": 32, "num_heads": 2, "cls_attn_layers": 1}
    net = models.load(choice.start, num_classes=10, image_size=32, options=small).net
    spared, decayed = recipe.plan.optimizer.build(net).param_groups
    kept = {id(weight) for weight in decayed["params"]}
    decay = {name: id(weight) in kept for name, weight in net.named_parameters()}
    assert (spared["weight_decay"], decayed["weight_decay"]) == (0.0, 0.5)
    assert decay["blocks.0.attn.temperature"]
    assert not decay["blocks.0.norm1.weight"]


def test_fine_tuning_scales_the_learning_rate_by_the_root_of_the_batch() -> None:
    assert RECIPES["xcit-s12-cifar10"]().plan.peak_lr == pytest.approx(2.83e-4, abs=5e-7)
    assert RECIPES["xcit-s12-cifar10-thesis"]().plan.peak_lr == 2e-4
    assert rate("xcit-s12-cifar10", 0) == 1e-6
    assert rate("xcit-s12-cifar10", 21) == 5e-6
    assert RECIPES["xcit-s12-cifar10"]().plan.all_epochs == 22


@pytest.mark.parametrize("name", ["xcit-s12-caltech101", "xcit-s12-flowers102"])
def test_fine_tuning_at_full_size_has_no_warm_up_of_eps(name: str) -> None:
    recipe = RECIPES[name]()
    assert isinstance(recipe.objective, Adversarial)
    assert recipe.objective.at(TrainingTime(0.1, 30)) is recipe.objective
    assert (recipe.plan.peak_lr, recipe.plan.epochs, recipe.plan.cooldown_epochs) == (5e-5, 20, 10)


def test_the_resnet_has_the_learning_rate_of_the_authors() -> None:
    name = "resnet50-gelu-imagenet"
    assert isinstance(RECIPES[name]().plan.optimizer, SGD)
    assert override(RECIPES[name](), ["plan.batch_size=8192"]).plan.peak_lr == pytest.approx(3.2)
    for epoch, factor in ((0, 1.0), (29, 1.0), (30, 0.1), (60, 0.01), (99, 0.001)):
        assert rate(name, epoch, "plan.batch_size=8192") == pytest.approx(3.2 * factor)


def test_the_ablation_warms_eps_up_over_twenty_epochs() -> None:
    recipe = RECIPES["xcit-n12-imagenet100"]()
    assert isinstance(recipe.objective, Adversarial)
    assert recipe.objective.warmup_unit is ScheduleUnit.EPOCH
    assert recipe.objective.at(TrainingTime(11, 110)).threat.eps == pytest.approx(4 / 255 / 2)
    assert recipe.plan.peak_lr == 5e-4
    assert recipe.data.endswith("@imagenet100.txt")


def test_the_architecture_ablation_is_deits_own_training() -> None:
    for name in ("deit-s-imagenet100", "cait-s12-imagenet100", "xcit-s12-imagenet100"):
        recipe = RECIPES[name]()
        plan = recipe.plan
        assert plan.pil_augment is not None
        assert plan.mixing is not None
        assert (plan.mixing.mixup, plan.mixing.cutmix, plan.pil_augment.erase, plan.repeats) == (0.8, 1.0, 0.25, 3)
        assert plan.pil_augment.rand_augment == "rand-m9-mstd0.5-inc1"
        assert isinstance(recipe.objective, Adversarial)
        assert recipe.objective.eps_warmup == 0
    assert RECIPES["deit-s-imagenet"]().plan.repeats == 1


def test_half_of_a_batch_is_generated() -> None:
    recipe = RECIPES["xcit-s12-cifar10-scratch-synthetic"]()
    assert recipe.synthetic is not None
    assert recipe.synthetic.share == 0.5
    assert recipe.plan.epochs == 300
    assert not math.isclose(recipe.plan.epochs, RECIPES["xcit-s12-cifar10"]().plan.epochs)
