"""TORA's objective: the order of its phases, the trained parts, and the losses in closed form."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.goals import Untargeted
from vitadel.models import AdaptedViT, AdapterConfig, Model, Option, load, tora, with_head
from vitadel.objectives import AWP, Adversarial, Objective, Order, Output, Standard, TORATraining, TrainingTime
from vitadel.threats import Linf

ATTACK, THREAT = PGD(steps=2, step_size=0.05, keep_best=False), Linf(0.1)
OBJECTIVE = TORATraining(ATTACK, THREAT, smoothing=0.1, weight=0.3)
TORA, FUSION, SINGLE, HEAD = (
    AdapterConfig(),
    AdapterConfig(gate="per-token"),
    AdapterConfig(tuning="single"),
    AdapterConfig(tuning="head"),
)


def base(depth: int = 3) -> Model:
    options: dict[str, Option] = {"embed_dim": 32, "depth": depth, "num_heads": 2}
    return load("timm:vit_tiny_patch16_224", num_classes=5, image_size=8, patch_size=2, options=options)


def adapted(tuning: AdapterConfig = TORA) -> Model:
    """With no weights at zero, so that every part has an effect."""
    model = tora(base(), tuning).train()
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=rng))
    return model


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])


def update(objective: Objective, number: int, of: int = 8) -> Objective:
    """The objective at update `number` of a training of two epochs, counted from 0."""
    return objective.at(TrainingTime((number + 1) / (of // 2), 2, of // 2))


def moved(model: Model, objective: Objective, batch: tuple[Tensor, Tensor]) -> set[str]:
    """The names of the weights that get a gradient; flags and gradients are as before afterwards."""
    flags = [weight.requires_grad for weight in model.parameters()]
    step = objective(model, *batch, seed=3)
    step.loss.backward()
    step.undo()
    assert [weight.requires_grad for weight in model.parameters()] == flags
    result = {name for name, weight in model.net.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return result


def names(model: Model, *parts: str) -> set[str]:
    """The weights of some parts, by their names."""
    return {name for name, _ in model.net.named_parameters() if name.startswith(parts)}


# the fusion after the last block works for a block that is not there: it reaches the kept head alone
LEARNING_FUSION = ("fusions.0.", "fusions.1.")


@pytest.mark.parametrize("tuning", [TORA, FUSION], ids=["tora", "adapter fusion"])
def test_exactly_the_named_parts_are_trained(tuning: AdapterConfig, batch: tuple[Tensor, Tensor]) -> None:
    model = adapted(tuning)
    rob = names(model, "tokens.rob", "adapters.rob.", "heads.rob.", *LEARNING_FUSION)
    acc = names(model, "tokens.acc", "adapters.acc.", "heads.acc.", *LEARNING_FUSION)
    for number, expected in enumerate([rob, acc, rob, acc, *[names(model, *LEARNING_FUSION)] * 4]):
        assert moved(model, update(OBJECTIVE, number), batch) == expected, number
    heads = replace(OBJECTIVE, heads_learn=True)
    assert moved(model, update(heads, 6), batch) == names(model, "heads.", *LEARNING_FUSION)
    assert moved(model, update(heads, 0), batch) == rob


def test_without_a_fusion_phase_2_trains_all_added_parts(batch: tuple[Tensor, Tensor]) -> None:
    heads = adapted(HEAD)
    learned = [moved(heads, update(OBJECTIVE, number), batch) for number in (0, 1, 4, 5)]
    assert learned == [names(heads, part) for part in ("heads.rob.", "heads.acc.", "heads.", "heads.")]
    single, at_once = adapted(SINGLE), replace(OBJECTIVE, independent=0.0)
    for number in (0, 1, 7):
        assert moved(single, update(at_once, number), batch) == names(single, "tokens.", "adapters.", "heads.")


@pytest.mark.parametrize(
    ("independent", "updates", "turns"),
    [
        (0.5, 8, "rarajjjj"),
        (0.0, 8, "jjjjjjjj"),
        (1.0, 8, "rararara"),
        (0.25, 8, "rajjjjjj"),
        (0.5, 6, "rarjjj"),
        (0.3, 10, "rarjjjjjjj"),
    ],
)
def test_phases_change_at_their_update(independent: float, updates: int, turns: str) -> None:
    objective = replace(OBJECTIVE, independent=independent)
    result = [update(objective, number, updates) for number in range(updates)]
    letters = "".join("j" if isinstance(one, TORATraining) else str(getattr(one, "name"))[0] for one in result)  # noqa: B009
    assert letters == turns


def test_alternation_continues_across_epochs_of_odd_length() -> None:
    objective = replace(OBJECTIVE, independent=1.0)
    times = [TrainingTime((number + 1) / 3, 3, 3) for number in range(9)]
    assert "".join(getattr(objective.at(time), "name")[0] for time in times) == "rarararar"  # noqa: B009


def test_sequential_phases_train_the_robust_adapter_first() -> None:
    objective = replace(OBJECTIVE, order=Order.SEQUENTIAL)
    for independent, updates, turns in ((0.5, 8, "rraajjjj"), (1.0, 6, "rrraaa"), (0.5, 6, "rrajjj"), (0.0, 4, "jjjj")):
        now = [update(replace(objective, independent=independent), number, updates) for number in range(updates)]
        assert "".join(getattr(one, "name", "j")[0] for one in now) == turns


def attacked(model: Model, head: str, x: Tensor, y: Tensor) -> Tensor:
    """The adversarial examples of the attack on one output."""
    return ATTACK.craft(with_head(model, head), x, Untargeted(y), THREAT, seed=3)


@pytest.mark.parametrize("loss_of", list(Output))
@pytest.mark.parametrize("attack_of", list(Output))
def test_losses_match_their_formulas(batch: tuple[Tensor, Tensor], attack_of: Output, loss_of: Output) -> None:
    x, y = batch
    model = adapted()
    x_adv = attacked(model, "rob" if attack_of is Output.OWN else "joint", x, y)

    def loss(head: str, images: Tensor) -> Tensor:
        output = with_head(model, head if loss_of is Output.OWN else "joint")
        return F.cross_entropy(output(images), y, label_smoothing=0.1)

    first = replace(OBJECTIVE, phase1_attack=attack_of, phase1_loss=loss_of)
    second = replace(OBJECTIVE, phase2_attack=attack_of, phase2_loss=loss_of)
    chosen = {0: first, 1: first, 6: second}
    steps = {number: update(objective, number)(model, x, y, seed=3) for number, objective in chosen.items()}
    for step in steps.values():
        step.undo()
    torch.testing.assert_close(steps[0].loss, loss("rob", x_adv))
    torch.testing.assert_close(steps[1].loss, loss("acc", x))
    torch.testing.assert_close(steps[6].loss, 0.3 * loss("rob", x_adv) + 0.7 * loss("acc", x))
    assert {number: sorted(step.logs) for number, step in steps.items()} == {
        0: ["adversarial_accuracy", "adversarial_loss"],
        1: ["clean_accuracy", "clean_loss"],
        6: ["adversarial_accuracy", "adversarial_loss", "clean_accuracy", "clean_loss"],
    }
    assert len({round(step.loss.item(), 4) for step in steps.values()}) == 3
    net = model.net
    assert isinstance(net, AdaptedViT)
    assert net.tuning == TORA


@pytest.mark.parametrize(
    ("weight", "plain"),
    [(0.0, Standard(smoothing=0.1)), (1.0, Adversarial(ATTACK, THREAT, smoothing=0.1))],
    ids=["clean", "adversarial"],
)
def test_at_the_ends_of_lambda_it_trains_one_output(
    weight: float, plain: Objective, batch: tuple[Tensor, Tensor]
) -> None:
    model = adapted()
    passes: list[bool] = []
    handle = model.register_forward_hook(lambda module, args, out: passes.append(args[0].requires_grad))
    step = replace(OBJECTIVE, weight=weight)(model, *batch, seed=3)
    step.undo()
    # the half without weight costs nothing
    assert passes == ([False] if weight == 0 else [True, True, False])
    handle.remove()
    own = with_head(model, "acc" if weight == 0 else "rob")
    assert torch.equal(step.loss, plain(own, *batch, seed=3).loss)
    on_joint = replace(OBJECTIVE, weight=weight, phase2_attack=Output.JOINT, phase2_loss=Output.JOINT)
    step = on_joint(model, *batch, seed=3)
    step.undo()
    assert torch.equal(step.loss, plain(model, *batch, seed=3).loss)


def test_passes_are_counted(batch: tuple[Tensor, Tensor]) -> None:
    model = adapted()
    seen: list[bool] = []
    model.register_forward_hook(lambda module, args, out: seen.append(args[0].requires_grad))
    for number, passes in ((0, 2 * 2 + 2), (1, 2), (6, 2 * 2 + 4)):
        seen.clear()
        now = update(OBJECTIVE, number)
        now(model, *batch, seed=3).undo()
        # there and back, to pixels in the attack and to what learns in the loss
        assert now.passes == passes == 2 * len(seen)
    assert OBJECTIVE.passes == ((6 + 2) / 2 + 8) / 2
    assert replace(OBJECTIVE, weight=0.0).passes == ((6 + 2) / 2 + 2) / 2


def test_the_radius_is_warmed_up_in_both_phases() -> None:
    warmed = replace(OBJECTIVE, eps_warmup=1.0)
    radii = []
    for number in (0, 3, 5, 7):
        now = update(warmed, number)
        whole = getattr(now, "whole", now)  # a step of phase 1 refers to the whole objective
        assert isinstance(whole, TORATraining)
        radii.append(whole.threat.eps)
    assert radii == pytest.approx([0.1 / 8, 0.1 / 2, 0.1 * 6 / 8, 0.1])


class InjectedError(Exception):
    pass


def test_flags_and_head_are_restored_after_an_error(batch: tuple[Tensor, Tensor]) -> None:
    model = adapted()
    flags = [weight.requires_grad for weight in model.parameters()]

    def fail(module: nn.Module, args: object) -> None:
        raise InjectedError

    for number in (1, 6):
        now = update(OBJECTIVE, number)
        examples = now.prepare(model, *batch, seed=3)
        with pytest.raises(InjectedError), model.net.get_submodule("fusions.1").register_forward_pre_hook(fail):
            now.loss(model, examples)
        assert [weight.requires_grad for weight in model.parameters()] == flags
        assert isinstance(model.net, AdaptedViT)
        assert model.net.tuning == TORA


def test_awp_perturbs_the_trained_weights_only(batch: tuple[Tensor, Tensor]) -> None:
    model = adapted()
    before = {name: weight.detach().clone() for name, weight in model.net.named_parameters()}
    flags = [weight.requires_grad for weight in model.parameters()]
    objective = AWP(OBJECTIVE, gamma=0.1)
    assert objective.trains_subsets
    for number, parts in ((0, ("adapters.rob.", "heads.rob.", *LEARNING_FUSION)), (6, LEARNING_FUSION)):
        step = update(objective, number)(model, *batch, seed=3)
        elsewhere = {name for name, weight in model.net.named_parameters() if not torch.equal(weight, before[name])}
        matrices = {name for name in names(model, *parts) if name.endswith("weight") and before[name].ndim > 1}
        assert elsewhere == matrices
        step.loss.backward()
        step.undo()
        assert all(torch.equal(weight, before[name]) for name, weight in model.net.named_parameters())
        assert [weight.requires_grad for weight in model.parameters()] == flags


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight": -0.1}, r"TORATraining.weight must lie in \[0, 1\], got -0.1. It is lambda of the robust loss"),
        ({"weight": 1.1}, r"TORATraining.weight must lie in \[0, 1\], got 1.1"),
        ({"independent": 2.0}, r"TORATraining.independent must lie in \[0, 1\], got 2.0. It is a share of training"),
        ({"smoothing": 1.0}, r"TORATraining.smoothing must lie in \[0, 1\)"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TORATraining(ATTACK, THREAT, **settings)  # type: ignore[arg-type]


def test_models_without_trainable_parts_are_refused() -> None:
    with pytest.raises(UsageError, match="this VisionTransformer has none. Set model.tuning.tuning=tora in the recipe"):
        OBJECTIVE.prepare_model(base())
    with pytest.raises(UsageError, match="this Linear has none"):
        OBJECTIVE.prepare_model(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="the output of this model is its head 'acc'. Leave out the head"):
        OBJECTIVE.prepare_model(with_head(adapted(), "acc"))
    with pytest.raises(UsageError, match="cannot take turns with another. Set objective.independent=0"):
        OBJECTIVE.prepare_model(adapted(SINGLE))
    shallow = tora(base(depth=1))
    OBJECTIVE.prepare_model(tora(base(depth=1), AdapterConfig(recursion="fusion")))
    with pytest.raises(UsageError, match="this network has one block only"):
        OBJECTIVE.prepare_model(shallow)
    for model, objective in [
        (adapted(), OBJECTIVE),
        (adapted(HEAD), OBJECTIVE),
        (adapted(SINGLE), replace(OBJECTIVE, independent=0.0)),
        (shallow, replace(OBJECTIVE, heads_learn=True)),
        (shallow, replace(OBJECTIVE, independent=1.0)),
    ]:
        objective.prepare_model(model)
