"""Invariants of every attack: state of the caller is unchanged, and the same seed gives the same pixels.

Shape letters: B images.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vitadel.attacks import FAB, FGSM, PGD, Attack, Engine, IterativeAttack
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Diverge, Targeted, Untargeted
from vitadel.threats import L1, L2, Linf, Threat

Pixels = Callable[[int, torch.dtype], Tensor]
MakeNet = Callable[[torch.dtype], nn.Module]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class InjectedError(Exception):
    """The model's own failure."""


class FailsAtSecondCall(nn.Module):
    """Passes its input on, and fails at its second call."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.calls = net, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise InjectedError
        return self.net(x)


class RandomBuffers(nn.Module):
    """Draws from Python's and numpy's generators, updates its normalizations, counts its calls; fails at the last."""

    calls: Tensor
    mean: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, net: nn.Module, calls: int = -1) -> None:
        super().__init__()
        self.net, self.left = net, calls
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.drawn: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().float().mean((0, 2, 3))
        # batch normalization writes to its running means without counting versions
        nn.functional.batch_norm(x.detach().float(), self.running_mean, self.running_var, training=True)
        self.net[1].train()  # type: ignore[index]
        self.drawn.append(random.random() + np.random.random())  # noqa: S311
        if self.calls == self.left:
            raise InjectedError
        return self.net(x) + 1e-3 * self.drawn[-1]


def labels(batch: int) -> Tensor:
    return torch.arange(batch) % 4


def mixed(net: nn.Module) -> nn.Module:
    """A net in the middle of someone's training: one norm frozen, one weight frozen, some gradients there."""
    net[1].eval()  # type: ignore[index]
    parameters = list(net.parameters())
    parameters[0].requires_grad_(False)
    parameters[1].grad = torch.full_like(parameters[1], 3.0)
    return net


def state_of(model: nn.Module) -> dict[str, object]:
    return {
        "modes": [module.training for module in model.modules()],
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "tensors": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "hooks": [len(getattr(module, name)) for module in model.modules() for name in HOOKS],
    }


def test_attacks_leave_model_and_caller_unchanged(
    attack: Attack, threat: Threat, dtype: torch.dtype, pixels: Pixels, net: MakeNet
) -> None:
    model, x0, label_B = mixed(net(dtype)), pixels(2, dtype), labels(2)
    state, images, generator = state_of(model), x0.clone(), torch.get_rng_state()
    result = attack(model, x0, Untargeted(label_B), threat, seed=5)
    assert state_of(model) == state
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(x0, images)
    assert torch.equal(label_B, labels(2))
    assert not result.x_adv.requires_grad
    assert result.x_adv.data_ptr() != x0.data_ptr()


def test_errors_leave_model_and_caller_unchanged(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = FailsAtSecondCall(mixed(net(torch.float32))), pixels(2, torch.float32)
    state, images, generator = state_of(model), x0.clone(), torch.get_rng_state()
    with pytest.raises(InjectedError):
        attack(model, x0, Untargeted(labels(2)), threat, seed=5)
    assert model.calls == 2
    assert state_of(model) == state
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(x0, images)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("fails_at", [-1, 2], ids=["whole", "fails"])
def test_attacks_leave_buffers_and_generators_of_a_random_model_unchanged(
    attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet, fails_at: int
) -> None:
    model, x0 = RandomBuffers(mixed(net(torch.float32)), fails_at), pixels(2, torch.float32)
    state, of_torch = state_of(model), torch.get_rng_state()
    of_python, of_numpy = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for _ in range(2):
        with pytest.raises(InjectedError) if fails_at > 0 else nullcontext():
            attack(model, x0, Untargeted(labels(2)), threat, seed=2**40 + 5)
    assert state_of(model) == state
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert random.getstate() == of_python
    assert np.random.get_state()[1].tolist() == of_numpy  # type: ignore[index]
    half = len(model.drawn) // 2
    assert model.drawn[:half] == model.drawn[half:]  # the seed determines the random numbers of the model


def test_crafting_leaves_buffers_of_a_random_model_unchanged(attack: Attack, pixels: Pixels, net: MakeNet) -> None:
    model = RandomBuffers(mixed(net(torch.float32)))
    state = state_of(model)
    attack.craft(model, pixels(2, torch.float32), Untargeted(labels(2)), Linf(0.1), seed=5)
    assert model.drawn
    assert state_of(model) == state


def test_buffers_can_be_restored_while_a_graph_needs_them(net: MakeNet, pixels: Pixels) -> None:
    """A normalization in evaluation mode saves its running mean for the backward pass."""
    model, x0 = net(torch.float32).eval(), pixels(2, torch.float32)
    x = x0.clone().requires_grad_()
    before = torch.autograd.grad(model(x).sum(), x)[0]
    z_BK = model(x)

    def learn(module: nn.Module, args: object) -> None:
        module.train()

    model[1].register_forward_pre_hook(learn)  # type: ignore[index]
    FGSM()(model, x0, Untargeted(labels(2)), Linf(0.1), seed=0)
    assert torch.equal(torch.autograd.grad(z_BK.sum(), x)[0], before)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("own_pixels", [True, False], ids=["own", "float32"])
def test_models_of_any_precision_can_be_attacked(
    attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet, precision: torch.dtype, own_pixels: bool
) -> None:
    """Pixels stay in float32 or float64; the verdict is of the unmodified model, on pixels rounded to its precision."""
    model, x0 = net(precision).eval(), pixels(2, torch.float32).to(precision if own_pixels else torch.float32)
    result = attack(model, x0, Untargeted(labels(2)), threat, seed=3)
    assert result.x_adv.dtype == (torch.float64 if x0.dtype == torch.float64 else torch.float32)
    assert bool((threat.distance(result.x_adv, x0.to(result.x_adv.dtype)) <= threat.eps * (1 + 1e-5)).all())
    with torch.no_grad():
        prediction_B = model(result.x_adv.to(precision)).argmax(1)
    assert torch.equal(result.prediction, prediction_B)
    assert torch.equal(result.success, prediction_B != labels(2))


def test_invalid_batches_are_refused_in_one_line(net: MakeNet, pixels: Pixels) -> None:
    model, x0 = net(torch.float32), pixels(2, torch.float32)
    for y, message in (
        ([0, 1], r"takes labels as a tensor, got list\. Write torch\.tensor\(labels\)"),
        (labels(2).int(), r"class numbers in torch\.int64, got torch\.int32\. Write labels\.long\(\)"),
        (labels(2).float(), r"class numbers in torch\.int64, got torch\.float32"),
    ):
        with pytest.raises(UsageError, match=message):
            FGSM()(model, x0, Untargeted(y), Linf(0.1), seed=0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"images as a tensor, got ndarray\. Write torch\.as_tensor\(images\)"):
        FGSM()(model, x0.numpy(), Untargeted(labels(2)), Linf(0.1), seed=0)  # type: ignore[arg-type]


def test_crafting_leaves_the_model_unchanged(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = mixed(net(torch.float32)), pixels(2, torch.float32)
    state, generator = state_of(model), torch.get_rng_state()
    attack.craft(model, x0, Untargeted(labels(2)), threat, seed=5)
    broken = FailsAtSecondCall(model)
    broken.calls = 1  # a single step has a single forward
    broken_state = state_of(broken)
    with pytest.raises(InjectedError):
        attack.craft(broken, x0, Untargeted(labels(2)), threat, seed=5)
    assert state_of(model) == state
    assert state_of(broken) == broken_state
    assert torch.equal(torch.get_rng_state(), generator)


def test_attacked_models_are_in_evaluation_mode_without_weight_gradients(
    attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet
) -> None:
    model = net(torch.float32)
    seen: list[bool] = []
    model.register_forward_pre_hook(
        lambda module, _: seen.append(
            any(m.training for m in module.modules()) or any(p.requires_grad for p in module.parameters())
        )
    )
    attack(model, pixels(2, torch.float32), Untargeted(labels(2)), threat, seed=0)
    assert seen
    assert not any(seen)


def test_only_generators_that_are_restored_are_seeded(
    attack: Attack, pixels: Pixels, net: MakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.manual_seed` would seed every device of the machine, and a caller on the CPU gets none of them back."""

    def refuse(seed: int) -> None:
        raise AssertionError("the generators of all devices were seeded")

    model, x0 = net(torch.float32), pixels(2, torch.float32)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    attack(model, x0, Untargeted(labels(2)), Linf(0.1), seed=0)


def test_images_that_require_gradients_get_none(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    x0 = pixels(2, torch.float32).requires_grad_()
    result = attack(net(torch.float32), x0, Untargeted(labels(2)), threat, seed=0)
    assert x0.requires_grad
    assert x0.grad is None
    assert not result.x_adv.requires_grad


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("goal", ["untargeted", "targeted", "diverge"])
def test_attacks_under_no_grad_give_the_same_pixels(
    any_goal_attack: Attack, goal: str, caller: Callable[[], AbstractContextManager[None]], pixels: Pixels, net: MakeNet
) -> None:
    """Images, labels and reference logits are all made inside the caller's mode."""
    model = net(torch.float64).eval()

    def run() -> Tensor:
        x0 = pixels(2, torch.float64)
        if goal == "diverge":
            return any_goal_attack(model, x0, Diverge(model(x0).detach()), L2(0.6), seed=1).x_adv
        kind = Untargeted if goal == "untargeted" else Targeted
        return any_goal_attack(model, x0, kind(labels(2)), L2(0.6), seed=1).x_adv

    expected = run()
    with caller():
        result = run()
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_untargeted_only_attacks_under_no_grad_give_the_same_pixels(
    untargeted_only_attack: Attack,
    threat: Threat,
    caller: Callable[[], AbstractContextManager[None]],
    pixels: Pixels,
    net: MakeNet,
) -> None:
    """Labels the model agrees with and a small radius, so that the search is not over at once."""
    model, threat = net(torch.float64).eval(), threat.with_eps(threat.eps / 8)

    def run() -> Tensor:
        x0 = pixels(2, torch.float64)
        return untargeted_only_attack(model, x0, Untargeted(model(x0).argmax(1)), threat, seed=1).x_adv

    expected = run()
    with caller():
        result = run()
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_a_plain_function_can_be_attacked(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = net(torch.float64).eval(), pixels(2, torch.float64)
    with_module = attack(model, x0, Untargeted(labels(2)), threat, seed=3)
    with_function = attack(lambda x: model(x), x0, Untargeted(labels(2)), threat, seed=3)
    assert torch.equal(with_function.x_adv, with_module.x_adv)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_layout_in_memory_does_not_matter(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = net(torch.float64), pixels(2, torch.float64)
    plain = attack(model, x0, Untargeted(labels(2)), threat, seed=3)
    last = attack(model, x0.contiguous(memory_format=torch.channels_last), Untargeted(labels(2)), threat, seed=3)
    torch.testing.assert_close(last.x_adv, plain.x_adv, rtol=0, atol=1e-9)


def test_same_seed_same_pixels_whatever_the_global_random_state(
    attack: Attack, threat: Threat, dtype: torch.dtype, pixels: Pixels, net: MakeNet
) -> None:
    model, x0 = net(dtype), pixels(7, dtype)
    first = attack(model, x0, Untargeted(labels(7)), threat, seed=4)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        second = attack(model, x0, Untargeted(labels(7)), threat, seed=4)
    assert torch.equal(first.x_adv, second.x_adv)
    assert torch.equal(first.success, second.success)


def test_the_seed_matters_exactly_for_randomized_attacks(attack: Attack, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = net(torch.float64), pixels(2, torch.float64)
    one, other = (attack(model, x0, Untargeted(labels(2)), L2(0.6), seed=seed).x_adv for seed in (0, 1))
    # FAB starts at the image itself, and the second time, if needed, at a random one
    is_randomized = attack.random_start if isinstance(attack, FGSM | PGD) else not isinstance(attack, FAB)
    assert torch.equal(one, other) is not is_randomized


def test_a_randomized_model_draws_the_same_for_the_same_seed(
    attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet
) -> None:
    model, x0 = net(torch.float64), pixels(2, torch.float64)

    def noisy(x: Tensor) -> Tensor:
        return model(x + 0.1 * torch.randn_like(x))

    model.eval()
    one, two = (attack(noisy, x0, Untargeted(labels(2)), threat, seed=6).x_adv for _ in range(2))
    assert torch.equal(one, two)


def test_results_do_not_depend_on_the_batch(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0, label_B = net(torch.float64), pixels(7, torch.float64), labels(7)
    index_B = torch.tensor([3, 141, 59, 26, 5, 35, 8979])
    whole = attack(model, x0, Untargeted(label_B), threat, seed=2, index_B=index_B)
    for rows in ([0], [1], [2], [3], [4], [5], [6], [6, 0, 3], [5, 1]):
        part = attack(model, x0[rows], Untargeted(label_B[rows]), threat, seed=2, index_B=index_B[rows])
        assert torch.equal(part.success, whole.success[rows])
        torch.testing.assert_close(part.x_adv, whole.x_adv[rows], rtol=0, atol=1e-9)


def test_results_do_not_depend_on_the_batch_size(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    """With rows for two images of seven, the others wait, and are admitted while the other row is busy."""
    if not isinstance(attack, IterativeAttack):
        return
    model, x0, threat = net(torch.float64).eval(), pixels(7, torch.float64), threat.with_eps(threat.eps / 8)
    with torch.no_grad():
        prediction_B = model(x0).argmax(1)
    # some are misclassified at the start, the others need many steps
    goal, rng = (
        Untargeted(torch.where(torch.arange(7) % 3 == 0, labels(7), prediction_B)),
        RandomStreams.of(2, torch.arange(7)),
    )
    rows = 2 * attack.num_branches(4) + 1
    whole, queued = (Engine(n).search(attack, Oracle(model), x0, goal, threat, rng) for n in (256, rows))
    torch.testing.assert_close(queued, whole, rtol=0, atol=1e-9)
    patient = Engine(rows, sync_interval=3).search(attack, Oracle(model), x0, goal, threat, rng)
    with torch.no_grad():
        verdicts = [goal.success(model(threat.project(x, x0))).tolist() for x in (whole, patient)]
    assert verdicts[0] == verdicts[1]


def test_crafted_images_equal_the_returned_ones(attack: Attack, threat: Threat, pixels: Pixels, net: MakeNet) -> None:
    model, x0 = net(torch.float64), pixels(7, torch.float64)
    crafted = attack.craft(model, x0, Untargeted(labels(7)), threat, seed=2)
    judged = attack(model, x0, Untargeted(labels(7)), threat, seed=2)
    assert torch.equal(crafted, judged.x_adv)
    assert torch.equal(model.eval()(crafted).argmax(1), judged.prediction)
    assert torch.equal(judged.prediction != labels(7), judged.success)
    torch.testing.assert_close(threat.distance(crafted, x0), judged.distance)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.sampled_from((1, 2, 7)),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    seed=st.integers(0, 2**40),
    share=st.floats(-5, 0),
    corner=st.booleans(),
)
def test_results_are_inside_ball_and_box(
    attack: Attack, threat: Threat, net: MakeNet, batch: int, dtype: torch.dtype, seed: int, share: float, corner: bool
) -> None:
    values = 3 * 5 * 7
    diameter = values if isinstance(threat, L1) else values**0.5 if isinstance(threat, L2) else 1.0
    threat = threat.with_eps(diameter * 10**share)
    x0 = torch.rand(batch, 3, 5, 7, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    x0 = x0.round() if corner else x0
    result = attack(net(dtype), x0, Untargeted(labels(batch)), threat, seed=seed)
    assert result.x_adv.shape == x0.shape
    assert result.x_adv.dtype == dtype
    assert bool((result.x_adv >= 0).all())
    assert bool((result.x_adv <= 1).all())
    distance = (result.x_adv - x0).double().flatten(1)
    order = 1.0 if isinstance(threat, L1) else 2.0 if isinstance(threat, L2) else float("inf")
    size_B = distance.norm(p=order, dim=1)
    assert size_B.max().item() <= threat.eps * (1 + 1e-5) + diameter * torch.finfo(dtype).eps
    torch.testing.assert_close(result.distance.double(), size_B, rtol=1e-5, atol=0)
