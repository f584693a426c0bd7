"""PGD keeps the best iterate, follows its schedule and refuses invalid settings.

Shape letters: B images.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from vitadel.attacks import FGSM, PGD, SCHEDULES, Attack, constant, cosine, linear
from vitadel.core.errors import UsageError
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy, margin
from vitadel.threats import L2, Linf

ZERO = torch.tensor([0])


def gray(batch: int = 1) -> Tensor:
    return torch.full((batch, 1, 1, 1), 0.5, dtype=torch.float64)


def along(table: list[tuple[float, list[float]]]) -> Callable[[Tensor], Tensor]:
    """Logits read off a table by the value of the one pixel; their gradient always points to brighter pixels."""

    def model(x: Tensor) -> Tensor:
        pixel_B = x.flatten(1)[:, 0]
        at_B = torch.tensor([min(range(len(table)), key=lambda i: abs(table[i][0] - v)) for v in pixel_B.tolist()])
        level_BK = torch.tensor([row for _, row in table], dtype=x.dtype)[at_B]
        rising = (pixel_B - pixel_B.detach())[:, None] * torch.tensor([-1.0] + [1.0] * (level_BK.shape[1] - 1))
        return level_BK + rising

    return model


def test_a_better_iterate_is_preferred_to_the_last() -> None:
    """The objective increases to 0.7 and decreases beyond, where the gradient is still positive."""
    model = along([(0.5, [5.0, 0.0]), (0.6, [4.0, 0.0]), (0.7, [2.0, 0.0]), (0.8, [4.0, 0.0]), (0.9, [5.0, 0.0])])
    attack = {"steps": 4, "step_size": 0.1, "random_start": False}
    best = PGD(**attack)(model, gray(), Untargeted(ZERO, margin), Linf(0.45), seed=0)  # type: ignore[arg-type]
    last = PGD(**attack, keep_best=False)(model, gray(), Untargeted(ZERO, margin), Linf(0.45), seed=0)  # type: ignore[arg-type]
    assert best.x_adv.item() == pytest.approx(0.7)
    assert last.x_adv.item() == pytest.approx(0.9)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_every_iterate_is_judged_including_start_and_last(place: int) -> None:
    table = [(0.5 + 0.1 * i, [2.0 if i == place else 4.0, 0.0]) for i in range(5)]
    attack = PGD(steps=4, step_size=0.1, random_start=False)
    result = attack(along(table), gray(), Untargeted(ZERO, margin), Linf(0.45), seed=0)
    assert result.x_adv.item() == pytest.approx(0.5 + 0.1 * place)


def test_success_is_preferred_to_a_higher_objective() -> None:
    """Three other classes close behind make the cross-entropy higher than one class just ahead."""
    close, broken = [1.0, 0.99, 0.99, 0.99], [1.0, 1.1, -20.0, -20.0]
    logits = torch.tensor([close, broken])
    assert cross_entropy(logits, torch.tensor([0, 0])).diff().item() < 0
    for order in ([close, broken], [broken, close]):
        model = along([(0.5, [9.0, 0.0, 0.0, 0.0]), (0.6, order[0]), (0.7, order[1])])
        attack = PGD(steps=2, step_size=0.1, random_start=False)
        result = attack(model, gray(), Untargeted(ZERO), Linf(0.45), seed=0)
        assert result.success.item() is True
        assert result.x_adv.item() == pytest.approx(0.7 if order[1] is broken else 0.6)


def test_among_successes_the_highest_objective_is_kept() -> None:
    model = along([(0.5, [2.0, 0.0]), (0.6, [0.0, 1.0]), (0.7, [0.0, 3.0]), (0.8, [0.0, 2.0])])
    attack = PGD(steps=3, step_size=0.1, random_start=False)
    assert attack(model, gray(), Untargeted(ZERO), Linf(0.45), seed=0).x_adv.item() == pytest.approx(0.7)


def test_images_keep_their_own_best_iterate() -> None:
    """One pixel each, three images: best at the start, in the middle, at the end."""

    def model(x: Tensor) -> Tensor:
        pixel_B = x.flatten(1)[:, 0]
        peak_B = torch.tensor([0.5, 0.6, 0.7], dtype=x.dtype)
        level_B = -10 * (pixel_B.detach() - peak_B).abs() + (pixel_B - pixel_B.detach())
        return torch.stack([torch.full_like(level_B, 9), level_B], 1)

    attack = PGD(steps=2, step_size=0.1, random_start=False)
    result = attack(model, gray(3), Untargeted(torch.zeros(3, dtype=torch.int64), margin), Linf(0.45), seed=0)
    assert result.x_adv.flatten().tolist() == pytest.approx([0.5, 0.6, 0.7])


def test_a_later_restart_replaces_only_what_it_improves() -> None:
    """Constant logits whose objective is the start itself: the brightest of the starts wins, image by image."""

    def model(x: Tensor) -> Tensor:
        pixel_B = x.flatten(1)[:, 0].detach() + 0 * x.flatten(1)[:, 0]
        return torch.stack([torch.full_like(pixel_B, 9), pixel_B], 1)

    goal, threat = Untargeted(torch.zeros(7, dtype=torch.int64), margin), Linf(0.3)
    result = [PGD(steps=1, restarts=n)(model, gray(7), goal, threat, seed=3).x_adv.flatten() for n in range(1, 6)]
    brightest = torch.stack(result)
    assert bool((brightest.diff(dim=0) >= 0).all())
    assert bool((brightest[-1] > brightest[0]).any())
    # restarts 2 to 5 change different images, so more than one restart took part
    assert len({tuple((later > earlier).tolist()) for earlier, later in pairwise(result)}) > 1


def test_a_later_restart_runs_for_robust_images() -> None:
    """Constant logits: a restart breaks images with a bright start, so restarts have fewer and fewer images."""

    def model(x: Tensor) -> Tensor:
        pixel_B = x.flatten(1)[:, 0].detach() + 0 * x.flatten(1)[:, 0]
        return torch.stack([torch.full_like(pixel_B, 0.6), pixel_B], 1)

    attack, threat = PGD(steps=1, restarts=4), Linf(0.3)
    whole = attack(model, gray(20), Untargeted(torch.zeros(20, dtype=torch.int64)), threat, seed=3)
    assert 2 * 20 + 20 < whole.forwards < 4 * 2 * 20 + 20
    for row in range(20):
        alone = attack(model, gray(), Untargeted(ZERO), threat, seed=3, index_B=torch.tensor([row]))
        assert alone.x_adv.item() == whole.x_adv[row].item()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_steps_follow_the_schedule(schedule: Callable[[int, int], float]) -> None:
    seen: list[float] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.item())
        return torch.stack([1 - x.flatten(1)[:, 0], x.flatten(1)[:, 0]], 1)

    PGD(steps=4, step_size=0.05, random_start=False, schedule=schedule)(
        model, gray(), Untargeted(ZERO), Linf(0.45), seed=0
    )
    trace_of = [later - earlier for earlier, later in pairwise(seen[:5])]
    assert trace_of == pytest.approx([0.05 * schedule(step, 4) for step in range(4)])


def test_schedules_have_known_shapes() -> None:
    assert [constant(step, 4) for step in range(4)] == [1, 1, 1, 1]
    assert [linear(step, 4) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    assert [cosine(step, 4) for step in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_the_default_step_is_two_and_a_half_radii_over_the_steps() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.stack([1 - x.flatten(1)[:, 0], x.flatten(1)[:, 0]], 1)

    # two steps of an eighth of the diameter each stay inside, and so show their length
    one = PGD(steps=20, random_start=False, keep_best=False, schedule=lambda step, steps: float(step < 2))
    assert one.craft(model, gray(), Untargeted(ZERO), Linf(0.4), seed=0).item() == pytest.approx(0.5 + 2 * 0.05)


def test_fgsm_ends_at_the_boundary() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.stack([1 - x.flatten(1)[:, 0], x.flatten(1)[:, 0]], 1)

    assert FGSM()(model, gray(), Untargeted(ZERO), Linf(0.3), seed=0).x_adv.item() == pytest.approx(0.8)
    assert FGSM(step_size=0.1)(model, gray(), Untargeted(ZERO), Linf(0.3), seed=0).x_adv.item() == pytest.approx(0.6)
    assert FGSM()(model, gray(), Untargeted(torch.tensor([1])), Linf(0.3), seed=0).x_adv.item() == pytest.approx(0.2)
    assert FGSM()(model, gray(), Untargeted(ZERO), L2(0.3), seed=0).x_adv.item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PGD(steps=0), "PGD.steps must be at least 1, got 0"),
        (lambda: PGD(restarts=0), "PGD.restarts must be at least 1, got 0"),
        (lambda: PGD(step_size=0), "PGD.step_size must be positive, got 0. Leave it out for 2.5 eps / steps"),
        (lambda: PGD(step_size=-0.1), "PGD.step_size must be positive, got -0.1"),
        (lambda: PGD(step_size=float("nan")), "PGD.step_size must be a finite number and be positive, got nan"),
        (lambda: PGD(start_noise=0.0), "PGD.start_noise must be positive"),
        (lambda: PGD(start_noise=0.1, random_start=False), "PGD.start_noise of 0.1 needs random_start"),
        (lambda: PGD(restarts=2, random_start=False), "restarts repeat the same search unless random_start and keep_"),
        (lambda: PGD(restarts=2, keep_best=False), "restarts repeat the same search unless random_start and keep_bes"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Attack], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_attacks_with_equal_settings_are_equal() -> None:
    assert PGD(steps=3) == PGD(steps=3)
    assert PGD(steps=3) != PGD(steps=4)
    assert repr(FGSM(step_size=0.1)) == "FGSM(step_size=0.1, random_start=False)"
    with pytest.raises(AttributeError):
        PGD().steps = 3  # type: ignore[misc]
