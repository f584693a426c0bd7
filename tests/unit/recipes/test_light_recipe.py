"""The thesis's recipes against numbers that the thesis prints and that the authors' code gives."""

import math

import pytest
import torch

from vitadel import models
from vitadel.attacks import FGSM, PGD
from vitadel.objectives import TRADES, Adversarial, ScheduleUnit, Standard, TrainingTime
from vitadel.recipes import RECIPES, Normalize, Selection, leaves, override
from vitadel.threats import Linf
from vitadel.train import SGD, AdamW, Chain, Erase, LRScaling, learning_rate
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


_ABLATIONS = ("xcit-n12-imagenet100", "deit-s-imagenet100", "cait-s12-imagenet100", "xcit-s12-imagenet100")


def sources_of(name: str) -> dict[str, str | None]:
    return {leaf.path: leaf.source for leaf in leaves(RECIPES[name]())}


@pytest.mark.parametrize("name", _ABLATIONS)
def test_the_ablations_have_the_thesis_text_as_twins(name: str) -> None:
    """Thesis 4.1.1: batch 512, "a 5-epochs warm-up from 5e-6", "a final value of 5e-5", 10 epochs of cool-down."""
    plain, twin = RECIPES[name](), RECIPES[f"{name}-thesis"]()
    plan = twin.plan
    assert (plan.batch_size, plan.peak_lr, plan.total_epochs, plan.cooldown_epochs) == (512, 5e-4, 110, 10)
    assert (plan.warmup_epochs, plan.warmup_lr, plan.min_lr) == (5, 5e-6, 5e-5)
    assert plan.lr_scaling is LRScaling.LINEAR
    assert rate(twin.name, 0) == 5e-6
    assert rate(twin.name, 105) == pytest.approx(5e-5)
    assert twin.selection == Selection(FGSM(), Linf(4 / 255)), "the best by FGSM, here on the hold-out"
    assert (twin.objective, twin.data, twin.expect) == (plain.objective, plain.data, plain.expect)
    # the authors' configurations have other ends of the rate, and for XCiT-N12 another batch
    assert (plain.plan.warmup_lr, plain.plan.min_lr) == (1e-6, 1e-5)
    assert plain.plan.batch_size == (1024 if "n12" in name else 512)
    for path in ("plan.batch_size", "plan.warmup_epochs", "plan.warmup_lr", "plan.min_lr"):
        assert str(sources_of(twin.name)[path]).startswith("paper: thesis 4.1.1")
        assert "configs/" in str(sources_of(name)[path]) or (path, "n12" in name) == ("plan.batch_size", False)


def test_layer_scale_of_cait() -> None:
    """Thesis 2.3.3: "0.1 for architectures with up to depth 18"; the authors' models.py has 1.0."""
    code, text = RECIPES["cait-s12-imagenet100"]().model.options, RECIPES["cait-s12-imagenet100-thesis"]().model.options
    assert (code["init_values"], text["init_values"]) == (1.0, 0.1)
    assert {**text, "init_values": 1.0} == code
    path = "model.options.init_values"
    assert str(sources_of("cait-s12-imagenet100")[path]).startswith("authors' code: src/models/models.py")
    assert str(sources_of("cait-s12-imagenet100-thesis")[path]).startswith("paper: thesis 2.3.3")


def test_repeated_augmentation_says_that_it_is_not_that_of_the_thesis() -> None:
    """Thesis 4.1.1: each batch 3 times, "the first one without data augmentations", 3 times the number of epochs."""
    for name in ("deit-s-imagenet100", "cait-s12-imagenet100", "xcit-s12-imagenet100"):
        assert RECIPES[f"{name}-thesis"]().about.endswith("text has it, apart from repeated augmentation")
    assert RECIPES["xcit-n12-imagenet100-thesis"]().about.endswith("text has it")
    source = str(sources_of("deit-s-imagenet100")["plan.repeats"])
    assert source.startswith("our choice: as DeiT's sampler")
    assert "thesis 4.1.1" in source
    assert "once plain and twice augmented, at three times the cost" in source


@pytest.mark.parametrize(("size", "clean"), [("s12", "80.36"), ("m12", "81.71"), ("l12", "82.65")])
def test_standard_training_of_all_sizes(size: str, clean: str) -> None:
    """Thesis 4.1.9: "for 100 epochs, using the recipe from El-Nouby et al. (2021) (apart from repeated augmentations)".

    Their main.py: 5e-4 x batch / 512, decay 0.05, 5 epochs of warm-up from 1e-6 to at least 1e-5, DeiT's augmentation.
    """
    recipe, robust = RECIPES[f"xcit-{size}-imagenet-standard"](), RECIPES[f"xcit-{size}-imagenet"]()
    plan = recipe.plan
    assert recipe.objective == Standard(smoothing=0.1)
    assert recipe.selection == Selection()
    assert recipe.model == robust.model
    assert (plan.total_epochs, plan.repeats, plan.batch_size, plan.peak_lr) == (100, 1, 1024, 1e-3)
    assert (plan.warmup_epochs, plan.warmup_lr, plan.min_lr) == (5, 1e-6, 1e-5)
    assert isinstance(plan.optimizer, AdamW)
    assert plan.optimizer.weight_decay == 0.05
    assert plan.mixing is not None
    assert plan.pil_augment is not None
    assert (plan.mixing.mixup, plan.mixing.cutmix) == (0.8, 1.0)
    assert (plan.pil_augment.rand_augment, plan.pil_augment.erase) == ("rand-m9-mstd0.5-inc1", 0.25)
    assert recipe.expect["published"].startswith(f"{clean}% clean (thesis")


@pytest.mark.parametrize(
    ("name", "clean", "robust"),
    [
        ("xcit-s12-caltech101", 89.66, 49.66),
        ("xcit-s12-flowers102", 85.01, 29.37),
        ("resnet50-caltech101", 83.22, 33.90),
        ("resnet50-flowers102", 70.61, 21.52),
        ("xcit-s12-caltech101-standard", 90.42, None),
        ("xcit-s12-flowers102-standard", 89.08, None),
        ("resnet50-caltech101-standard", 86.97, None),
        ("resnet50-flowers102-standard", 82.30, None),
    ],
)
def test_all_rows_of_table_7(name: str, clean: float, robust: float | None) -> None:
    recipe, adversarial = RECIPES[name](), RECIPES[name.removesuffix("-standard")]()
    numbers = f"{clean:.2f}% clean" + ("" if robust is None else f", {robust:.2f}% robust")
    assert recipe.expect["published"].startswith(f"{numbers} (thesis, table 7)")
    assert isinstance(recipe.objective, Standard if robust is None else Adversarial)
    # "with the same set-ups for both standard and adversarial training"
    assert (recipe.plan, recipe.model, recipe.data) == (adversarial.plan, adversarial.model, adversarial.data)
    assert recipe.plan == RECIPES["xcit-s12-caltech101"]().plan
    if name.startswith("resnet50"):
        assert recipe.model.start.startswith("timm:resnet50@")
        assert recipe.model.normalize is Normalize.MODEL


def test_the_gelu_resnet_quotes_the_row_of_table_6() -> None:
    """Thesis, table 6: 67.38 and 35.51, those of Bai et al.; the authors' README has 66.54 and 35.12 of their own."""
    published = RECIPES["resnet50-gelu-imagenet"]().expect["published"]
    assert published.startswith("67.38% clean, 35.51% robust (thesis, table 6, from Bai et al. 2021")
    assert "66.54% and 35.12% (the authors' README)" in published


def test_erasing_is_said_to_come_from_the_configuration_alone() -> None:
    augment = RECIPES["xcit-s12-cifar10-scratch"]().plan.augment
    assert isinstance(augment, Chain)
    assert augment.steps[1] == Erase(0.2)
    sources = sources_of("xcit-s12-cifar10-scratch")
    assert str(sources["plan.augment.steps.0.scale"]).startswith("paper: thesis 4.2.1")
    assert "in the configuration alone" in str(sources["plan.augment.steps.1.probability"])


@pytest.mark.parametrize(("batch", "peak"), [(512, 5e-4), (8192, 8e-3), (16384, 16e-3)])
def test_the_peak_learning_rate_scales_with_the_batch(batch: int, peak: float) -> None:
    plan = override(RECIPES["xcit-m12-imagenet"](), [f"plan.batch_size={batch}"]).plan
    assert plan.peak_lr == pytest.approx(peak)


@pytest.mark.parametrize("name", _IMAGENET)
def test_eps_grows_in_steps_after_a_clean_epoch(name: str) -> None:
    recipe = RECIPES[name]()
    objective = recipe.objective
    assert isinstance(objective, Adversarial)
    assert recipe.plan.total_epochs == 110
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
        ("cait-s12-imagenet100-thesis", 25.61),
        ("xcit-m12-imagenet-standard", 46.40),
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
    assert RECIPES["xcit-s12-cifar10"]().plan.total_epochs == 22


@pytest.mark.parametrize(
    ("name", "epochs"),
    [("xcit-s12-cifar10-thesis", 20), ("xcit-s12-cifar10-scratch", 300), ("xcit-s12-cifar10-scratch-synthetic", 300)],
)
def test_cifar_trainings_are_as_long_as_the_thesis_says(name: str, epochs: int) -> None:
    """Thesis 4.2.1: "we fine-tune for 20 epochs", "without pre-training for 300 epochs"."""
    assert RECIPES[name]().plan.total_epochs == epochs
    assert sources_of(name)["plan.cooldown_epochs"] == f"paper: thesis 4.2.1; {epochs} epochs in all"


@pytest.mark.parametrize("name", ["xcit-s12-caltech101", "xcit-s12-flowers102"])
def test_fine_tuning_at_full_size_has_no_warm_up_of_eps(name: str) -> None:
    recipe = RECIPES[name]()
    assert isinstance(recipe.objective, Adversarial)
    assert recipe.objective.at(TrainingTime(0.1, 30)) is recipe.objective
    assert (recipe.plan.peak_lr, recipe.plan.epochs, recipe.plan.cooldown_epochs) == (5e-5, 20, 10)
    # thesis 4.2.1: "for 20 epochs"; the cool-down is in the authors' configuration
    twin = RECIPES[f"{name}-thesis"]()
    assert (twin.plan.peak_lr, twin.plan.total_epochs, twin.selection.attack) == (5e-5, 20, FGSM())
    # "the same training recipe as the one used for pre-training", whose warm-up is from 5e-6
    assert (recipe.plan.warmup_lr, twin.plan.warmup_lr, rate(twin.name, 0)) == (1e-6, 5e-6, 5e-6)
    assert sources_of(name)["plan.cooldown_epochs"] == "authors' code: configs/xcit-adv-finetuning-hi-res.yaml"
    assert sources_of(twin.name)["plan.cooldown_epochs"] == "paper: thesis 4.2.1; 20 epochs in all"


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
