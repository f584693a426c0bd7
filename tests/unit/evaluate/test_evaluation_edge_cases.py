"""Edge cases: other gradient modes, colliding names, invalid labels."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitadel import robustness
from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.evaluate import AttackSuite, NamedAttack
from vitadel.losses import margin
from vitadel.runs import ResultFolder
from vitadel.threats import Linf

ENTRIES = [NamedAttack("pgd", PGD(steps=3), margin)]


class Plane(nn.Module):
    """Two classes on either side of a plane, and noise on request."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = x.flatten(1).mean(1) - 0.5
        logit_difference = logit_difference + self.noise * torch.randn_like(logit_difference)
        return torch.stack([-logit_difference, logit_difference, logit_difference * 0 - 9], 1)


def pixels() -> tuple[Tensor, Tensor]:
    x = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return x, (x.flatten(1).mean(1) > 0.5).long()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_do_not_depend_on_the_gradient_mode(mode: Callable[[], AbstractContextManager[None]]) -> None:
    x, y = pixels()
    plain = robustness(Plane(), x, y, "linf:0.02", ENTRIES)
    with mode():
        x, y = pixels()
        inside = robustness(Plane(), x, y, "linf:0.02", ENTRIES)
    assert 0 < plain.robust.correct < 20
    assert inside.broken_by == plain.broken_by
    assert torch.equal(inside.x_adv, plain.x_adv)


def test_a_noisy_model_leaves_the_callers_random_state_alone() -> None:
    x, y = pixels()
    before = torch.get_rng_state()
    result = robustness(Plane(noise=0.1), x, y, "linf:0.02", ENTRIES)
    assert torch.equal(torch.get_rng_state(), before)
    assert [flag.code for flag in result.flags] == ["randomized"]


def test_names_that_collide_on_disk_have_separate_tables(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path)
    results.append("pgd:1", {"index": [0], "success": [True]})
    assert results.read("pgd_1") == {}
    assert results.read("pgd:1") == {"index": [0], "success": [True]}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor(1), r"labels of shape \[\]"),
        (torch.full((20,), 0.5), "class numbers, got torch.float32"),
        (torch.ones(20, dtype=torch.bool), "class numbers, got torch.bool"),
    ],
)
def test_invalid_labels_are_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        robustness(Plane(), pixels()[0], labels, "linf:0.02", ENTRIES)


def test_a_suite_of_several_radii_is_refused() -> None:
    with pytest.raises(UsageError, match="'curve' has several"):
        robustness(Plane(), *pixels(), "linf:0.02", "curve")


def test_a_suite_without_any_radius_is_refused() -> None:
    with pytest.raises(UsageError, match="AttackSuite.eps_scales is empty, so no radius is attacked"):
        AttackSuite("own", "", tuple(ENTRIES), eps_scales=())
    with pytest.raises(UsageError, match=r"suite 'own' has no radius up to 1 at 0.5, got eps_scales \(4.0,\)"):
        AttackSuite("own", "", tuple(ENTRIES), eps_scales=(4.0,)).threats(Linf(0.5))


@pytest.mark.parametrize("name", ["clean", "flags"])
def test_names_of_other_tables_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"got '{name}'"):
        robustness(Plane(), *pixels(), "linf:0.02", [NamedAttack(name, PGD())])


@pytest.mark.parametrize("wrong", [lambda z: z[:-1], lambda z: z[:1], lambda z: z[0]])
def test_a_model_that_modifies_its_input_is_named(wrong: Callable[[Tensor], Tensor]) -> None:
    class Wrong(Plane):
        def forward(self, x: Tensor) -> Tensor:
            return wrong(super().forward(x))

    with pytest.raises(UsageError, match="for 20 images"):
        robustness(Wrong(), *pixels(), "linf:0.02", ENTRIES)
