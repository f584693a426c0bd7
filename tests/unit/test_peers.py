"""Our models in other libraries, and their attacks against ours; skipped where the extra `peers` is not installed."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from vitadel import models
from vitadel.attacks import APGD, FAB, FGSM, PGD, IterativeAttack, State, StepContext
from vitadel.attacks.oracle import Oracle
from vitadel.attacks.square import window_sides
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, TowardClass, Untargeted, top_other_classes
from vitadel.losses import cross_entropy, dlr, logit_difference, targeted_dlr
from vitadel.threats import L1, L2, Linf, Threat
from vitadel.threats.square_proposals import L1_PATTERNS, L2_PATTERNS

PATTERNS = {"l2": L2_PATTERNS, "l1": L1_PATTERNS}


@pytest.fixture
def model() -> models.Model:
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    net = models.load("timm:test_vit", num_classes=10, image_size=16, patch_size=4, options=options).double()
    with torch.no_grad():  # an untrained head is nearly zero, and its gradients with it
        net.net.get_parameter("head.weight").mul_(50)
    return net


@pytest.fixture
def batch(model: models.Model) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, model(x).argmax(1)


def test_pgd_matches_torchattacks(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    x, y = batch
    threat, ours = Linf(8 / 255), PGD(steps=7, step_size=2 / 255, random_start=False, keep_best=False)
    theirs = torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=7, random_start=False)(x, y)
    torch.testing.assert_close(ours(model, x, Untargeted(y), threat, seed=0).x_adv, theirs, rtol=0, atol=1e-9)
    theirs = torchattacks.FGSM(model, eps=8 / 255)(x, y)
    torch.testing.assert_close(FGSM()(model, x, Untargeted(y), threat, seed=0).x_adv, theirs, rtol=0, atol=1e-9)


def test_pgd_matches_foolbox(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    foolbox = pytest.importorskip("foolbox")
    x, y = batch
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2 / 255, steps=7, random_start=False)
    _, result, _ = attack(theirs, x, y, epsilons=8 / 255)
    ours = PGD(steps=7, step_size=2 / 255, random_start=False, keep_best=False)
    torch.testing.assert_close(ours(model, x, Untargeted(y), Linf(8 / 255), seed=0).x_adv, result, rtol=0, atol=1e-9)
    # in L2 both take the same steps until the ball is left; there they rescale and clip, we project exactly
    attack = foolbox.attacks.L2PGD(abs_stepsize=0.05, steps=7, random_start=False)
    _, result, _ = attack(theirs, x * 0.5 + 0.25, y, epsilons=0.5)
    ours = PGD(steps=7, step_size=0.05, random_start=False, keep_best=False)
    inside = ours(model, x * 0.5 + 0.25, Untargeted(y), L2(0.5), seed=0).x_adv
    torch.testing.assert_close(inside, result, rtol=0, atol=1e-6)


def test_autoattack_runs_on_our_model(model: models.Model, batch: tuple[Tensor, Tensor]) -> None:
    pyautoattack = pytest.importorskip("pyautoattack")
    x, y = batch
    with torch.random.fork_rng(devices=[]):  # it reseeds the global generator
        judge = pyautoattack.AutoAttack(model.float(), version="custom", attacks=["apgd-ce"], eps=16 / 255, seed=0)
        result, *_ = judge.run_standard_evaluation(x.float(), y, batch_size=6)
    assert (result - x.float()).abs().max() <= 16 / 255 + 1e-6


# ------------------------------------------- AutoAttack's parts, step by step


def small_net(classes: int = 5, dtype: torch.dtype = torch.float64) -> Callable[[Tensor], Tensor]:
    """Smooth, with enough local maxima for steps to be halved."""
    generator = torch.Generator().manual_seed(7)
    inner = torch.randn(48, 24, dtype=torch.float64, generator=generator).to(dtype)
    outer = torch.randn(24, classes, dtype=torch.float64, generator=generator).to(dtype)
    return lambda x: (x.flatten(1) @ inner).sin() @ outer


def images_away_from_the_box(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Images that no attack here takes to the edge of the box, and their labels."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 + 0.4 * torch.rand(6, 3, 4, 4, dtype=torch.float64, generator=generator).to(dtype)
    return x, small_net(dtype=dtype)(x).argmax(1)


def our_points(attack: IterativeAttack, x0: Tensor, goal: Goal, threat: Threat, steps: int, start: Tensor) -> Tensor:
    """The points the attack queries from `start` on."""
    none_B = torch.zeros(len(x0), dtype=torch.int64)
    oracle = Oracle(small_net(dtype=x0.dtype))
    items = StepContext(x0, goal, threat, RandomStreams.of(0, torch.arange(len(x0))), none_B, none_B)
    state: State = attack.start(oracle, items)
    state = {key: start if key in ("x", "x_old", "best") else value for key, value in state.items()}
    points = []
    for step in range(steps + 1):
        query, moved = attack.step(oracle, replace(items, step_B=none_B + step), state)
        state = {**state, **moved}
        points.append(query.x)
    return torch.stack(points)


def their_apgd(norm: str, eps: float, loss: str, steps: int, start: Tensor, **settings: Any) -> Tensor:
    """The same from pyautoattack."""
    base = pytest.importorskip("pyautoattack.autopgd_base")
    x0, label_B = images_away_from_the_box()
    queries: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        queries.append(x.detach().clone())
        return small_net()(x)

    kind = base.APGDAttack_targeted if loss == "dlr-targeted" else base.APGDAttack
    options = {} if loss == "dlr-targeted" else {"loss": loss}
    attack = kind(model, n_iter=steps, norm=norm, eps=eps, device=torch.device("cpu"), **options, **settings)
    attack.init_hyperparam(x0)
    attack.y_target = top_other_classes(small_net()(x0), label_B, 1).squeeze(1)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(torch, "zeros", partial(torch.zeros, dtype=torch.float64))  # else it compares losses in float32
    try:
        attack.attack_single_run(x0, label_B, x_init=start)
    finally:
        monkeypatch.undo()
    return torch.stack(queries)


@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-targeted"])
@pytest.mark.parametrize(("norm", "threat"), [("Linf", Linf(1 / 16)), ("L2", L2(0.5))])
def test_apgd_matches_autoattack(norm: str, threat: Threat, loss: str) -> None:
    x0, label_B = images_away_from_the_box()
    if loss == "dlr":  # behind two other classes it is exactly 1, and rounding decides the direction of its gradient
        threat = threat.with_eps(threat.eps / 16)
    toward = TowardClass(label_B, top_other_classes(small_net()(x0), label_B, 1).squeeze(1), targeted_dlr)
    untargeted = Untargeted(label_B, dlr if loss == "dlr" else cross_entropy)
    goal: Goal = toward if loss == "dlr-targeted" else untargeted
    start = threat.sample(x0, RandomStreams.of(1, torch.arange(6)))
    theirs = their_apgd(norm, threat.eps, loss, 50, start)
    ours = our_points(APGD(steps=50), x0, goal, threat, 50, start)
    # the first window has 11 steps; theirs compares its first objective with 0 instead of the start's
    objectives = torch.stack([goal.objective(small_net()(x)) for x in theirs[:12]])
    increases_B = (objectives.diff(dim=0) > 0).sum(0)
    counted_B = increases_B - (objectives[1] > objectives[0]).int() + (objectives[1] > 0).int()
    same_B = (increases_B <= 0.75 * 11) == (counted_B <= 0.75 * 11)
    assert same_B.sum().item() >= 4
    torch.testing.assert_close(ours[:, same_B], theirs[:, same_B], rtol=0, atol=5e-5)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("norm", "threat"), [("Linf", Linf(0.1)), ("L2", L2(0.5)), ("L1", L1(2.0))])
def test_fab_matches_autoattack(norm: str, threat: Threat, targeted: bool) -> None:
    fab_pt = pytest.importorskip("pyautoattack.fab_pt")
    x0, label_B = images_away_from_the_box(torch.float32)
    net = small_net(dtype=torch.float32)
    attack = fab_pt.FABAttack_PT(net, norm=norm, n_iter=8, eps=threat.eps, targeted=targeted, device=x0.device)
    attack.target_class = 2
    judge, queries = attack._get_predicted_label, []

    def judged(x: Tensor) -> Tensor:
        queries.append(x.clone())
        return judge(x)

    attack._get_predicted_label = judged
    with torch.no_grad():
        attack.attack_single_run(x0, label_B, is_targeted=targeted)
    other_B = top_other_classes(net(x0), label_B, 1).squeeze(1)
    goal: Goal = TowardClass(label_B, other_B, logit_difference) if targeted else Untargeted(label_B)
    ours = our_points(FAB(steps=8, targets=int(targeted)), x0, goal, threat, 8, x0)
    torch.testing.assert_close(ours, torch.stack(queries), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [8, 32, 224])
def test_square_window_sides_match_autoattack(size: int) -> None:
    square = pytest.importorskip("pyautoattack.square")
    attack = square.SquareAttack(None, n_queries=5000, eps=0.1, p_init=0.8, resc_schedule=False)
    theirs = [max(round(math.sqrt(attack.p_selection(query) * size * size)), 1) for query in range(5000)]
    assert window_sides(0.8, 5000, size, size, 1, torch.device("cpu"))[:5000].tolist() == theirs


@pytest.mark.parametrize("norm", ["L2", "L1"])
def test_square_patterns_match_autoattack(norm: str) -> None:
    square = pytest.importorskip("pyautoattack.square")
    attack = square.SquareAttack(None, norm=norm, eps=0.1, device=torch.device("cpu"))
    ours = PATTERNS[norm.lower()].table(29, torch.float32, torch.device("cpu"))
    turned = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for side in (3, 5, 6, 7, 11, 15, 21, 29):
            for _ in range(4):
                theirs = attack.eta(side)
                upright = torch.allclose(theirs, ours[side, :side, :side], rtol=1e-4, atol=1e-6)
                turned.add(upright)
                if not upright:
                    torch.testing.assert_close(theirs, ours[side, :side, :side].T, rtol=1e-4, atol=1e-6)
    assert turned == {True, False}
