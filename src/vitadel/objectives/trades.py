"""Accuracy on clean images, and the same answer around them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.attacks import frozen
from vitadel.core.errors import UsageError
from vitadel.core.numeric import NotNegative
from vitadel.goals import Diverge
from vitadel.losses import cross_entropy, kl_divergence
from vitadel.objectives.adversarial_objective import AdversarialObjective
from vitadel.objectives.base import Examples, Step, accuracy, shares, undistributed


@dataclass(frozen=True, slots=True)
class TRADES(AdversarialObjective):
    r"""Cross-entropy on clean images plus the divergence of the answers nearby (Zhang et al. 2019, arXiv:1901.08573).

    .. math:: \min_\theta \; \mathbb{E} \, \mathrm{CE}(f(x), y)
              + \beta \max_{x' \in S(x)} \mathrm{KL}\big(f(x) \,\|\, f(x')\big)

    The attack climbs the divergence from the clean answer, which is computed once: ten steps cost 1 + 20 + 2 + 4 = 27
    forward passes' worth of work, where code that asks for it at every step pays 39. At the image itself the divergence
    is flat, so the attack needs a random start. Gradients flow into both answers.
    """

    beta: NotNegative = 6.0

    def __post_init__(self) -> None:
        super(TRADES, self).__post_init__()
        if not getattr(self.attack, "random_start", True):
            raise UsageError("Trades needs an attack with a random start: at the image itself there is no slope.")

    @property
    def recordable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 6.0

    @property
    def passes(self) -> float:
        reference = 0.0 if self.attack is None else 1.0
        return reference + super(TRADES, self).passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        if self.attack is None:
            return Examples(x, y, x)
        local = undistributed(model)
        with frozen(local), torch.no_grad():
            reference_BK = local(x).float()
        return Examples(x, y, self.found(model, x, Diverge(reference_BK), seed, index_B))

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        clean_BK, adv_BK = model(examples.x).float(), model(examples.x_adv).float()
        natural = cross_entropy(clean_BK, shares(examples.y, clean_BK.shape[1], self.smoothing)).mean()
        divergence = kl_divergence(adv_BK, clean_BK).mean()
        logs = {
            "clean_accuracy": accuracy(clean_BK, examples.y),
            "adversarial_accuracy": accuracy(adv_BK, examples.y),
            "natural_loss": natural.detach(),
            "divergence": divergence.detach(),
        }
        return Step(natural + self.beta * divergence, logs, clean_BK, adv_BK)
