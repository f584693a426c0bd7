"""A norm is one class: L-infinity with a pixel mask, defined here, works in every attack through the public API."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from vitadel import threats
from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Attack, Square
from vitadel.core.rng import RandomStreams
from vitadel.goals import Untargeted
from vitadel.losses import margin
from vitadel.threats import Linf, Threat

SHAPE = (3, 8, 10)
COLUMNS = torch.arange(10) < 5  # the adversary controls the left half


@dataclass(frozen=True, slots=True)
class MaskedLinf(Threat):
    """Images whose pixels of some columns differ by at most eps, and whose others do not differ at all."""

    name: ClassVar[str] = "masked"

    eps: float
    mask: Tensor = field(default_factory=lambda: COLUMNS.clone(), compare=False)

    def project(self, x: Tensor, x0: Tensor) -> Tensor:
        return torch.where(self.mask, Linf(self.eps).project(x, x0), x0)

    def ascend(self, x: Tensor, grad: Tensor, step: float | Tensor) -> Tensor:
        return Linf(self.eps).ascend(x, grad * self.mask, step)

    def sample(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return self.project(Linf(self.eps).sample(x0, rng), x0)

    def distance(self, x: Tensor, x0: Tensor) -> Tensor:
        # rounding may move what is a mean of two equal values
        outside_B = (((x - x0).abs() > 1e-9) & ~self.mask).flatten(1).any(1)
        return Linf(self.eps).distance(x, x0).masked_fill(outside_B, torch.inf)

    def random_direction(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return Linf(self.eps).random_direction(x0, rng) * self.mask

    def dual_norm(self, grad: Tensor) -> Tensor:
        return Linf(self.eps).dual_norm(grad * self.mask)

    def project_on_hyperplane(self, x: Tensor, normal: Tensor, offset_B: Tensor) -> Tensor:
        fixed_B = (normal * ~self.mask * x).flatten(1).sum(1)
        return Linf(self.eps).project_on_hyperplane(x, normal * self.mask, offset_B - fixed_B)

    def square_start(self, x0: Tensor, rng: RandomStreams) -> Tensor:
        return self.project(Linf(self.eps).square_start(x0, rng), x0)

    def square_proposal(self, best: Tensor, x0: Tensor, side_B: Tensor, rng: RandomStreams) -> Tensor:
        return self.project(Linf(self.eps).square_proposal(best, x0, side_B, rng), x0)


ATTACKS: dict[str, Attack] = {
    "fgsm": FGSM(),
    "pgd": PGD(steps=20),
    "apgd-ce": APGD(steps=30),
    "apgd-t": APGD(steps=30, targets=2),
    "fab-t": FAB(steps=30, targets=2),
    "fab": FAB(steps=30),
    "square": Square(queries=3000, p_init=0.2),
    "gama": GAMA(steps=30),
}


@pytest.fixture
def net() -> nn.Module:
    """A linear classifier of three classes, so that the smallest perturbation is known."""
    linear = nn.Linear(3 * 8 * 10, 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(3, 240, generator=generator, dtype=torch.float64))
        linear.bias.zero_()
    return nn.Sequential(nn.Flatten(), linear).eval()


def images() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.35 + 0.3 * torch.rand(6, *SHAPE, generator=generator, dtype=torch.float64)


def smallest_eps(net: nn.Module, x: Tensor) -> Tensor:
    """[B] of all other classes the nearest: logit difference over the L1 norm of the masked gradient."""
    weight, z_BK = net[1].weight.view(3, *SHAPE), net(x)  # type: ignore[index]
    label_B = z_BK.argmax(1)
    result = torch.full_like(z_BK, torch.inf)
    for index, label in enumerate(label_B.tolist()):
        for other in {0, 1, 2} - {label}:
            gap = z_BK[index, label] - z_BK[index, other]
            result[index, other] = gap / ((weight[other] - weight[label]) * COLUMNS).abs().sum()
    return result.amin(1)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_masked_norm_gives_the_known_result(name: str, net: nn.Module) -> None:
    x = images()
    y, exact_B = net(x).argmax(1), smallest_eps(net, x)
    assert float(exact_B.max()) < 0.3  # so that the box plays no role
    loose = 1.6 if name == "square" else 1.25 if name in ("fgsm", "gama", "pgd", "apgd-ce") else 1.02
    for index in range(len(x)):
        one, label = x[index : index + 1], y[index : index + 1]
        for factor, expected in ((0.98, False), (loose, True)):
            threat = MaskedLinf(factor * float(exact_B[index]))
            result = ATTACKS[name](net, one, Untargeted(label, margin), threat)
            delta = result.x_adv - one
            assert result.success.tolist() == [expected], (factor, index)
            assert float(delta.abs().max()) <= threat.eps * (1 + 1e-9)
            assert not bool(delta[..., ~COLUMNS].any())
            assert 0 <= float(result.x_adv.min()) <= float(result.x_adv.max()) <= 1


def test_a_registered_norm_is_parsed_by_name(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(threats.THREATS, "masked", MaskedLinf)
    x = images()
    result = PGD(steps=10)(net, x, net(x).argmax(1), "masked:8/255")
    assert float((result.x_adv - x).abs().max()) <= 8 / 255 * (1 + 1e-9)
    assert not bool((result.x_adv - x)[..., ~COLUMNS].any())
    assert str(MaskedLinf(8 / 255)) == "masked:8/255"
