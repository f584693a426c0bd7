"""TRADES: cross-entropy on clean images, divergence to adversarial examples."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.attacks.isolation import eval_without_weight_gradients
from vitadel.core.errors import UsageError
from vitadel.core.numeric import NonNegative
from vitadel.goals import Diverge
from vitadel.losses import kl_divergence
from vitadel.objectives.adversarial import AdversarialObjective
from vitadel.objectives.base import Examples, LossOutput, batch_accuracy, unwrapped


@dataclass(frozen=True, slots=True)
class TRADES(AdversarialObjective):
    r"""Cross-entropy on clean images plus the KL divergence to adversarial examples (Zhang et al. 2019,
    arXiv:1901.08573).

    .. math:: \min_\theta \; \mathbb{E} \, \mathrm{CE}(f(x), y)
              + \beta \max_{x' \in S(x)} \mathrm{KL}\big(f(x) \,\|\, f(x')\big)

    The attack maximizes the divergence from the clean output, which is computed once: ten steps cost 1 + 20 + 2 + 4 =
    27 forward passes, and 39 if it is recomputed at every step. Its gradient is 0 at the image itself, so
    the attack needs a random start. Both outputs receive gradients of the loss.

    Args:
        beta: The weight of the divergence.

    Example:
        >>> attack = PGD(steps=10, step_size=2 / 255, keep_best=False)
        >>> step = TRADES(attack, Linf(8 / 255), beta=6.0)(model, x, y, seed=0)
        >>> step.loss.backward()
    """

    beta: NonNegative = 6.0

    def __post_init__(self) -> None:
        super(TRADES, self).__post_init__()
        if not getattr(self.attack, "random_start", True):
            raise UsageError(
                "TRADES needs an attack with a random start: at the image itself the gradient is 0. "
                "Write PGD(random_start=True)."
            )

    @property
    def capturable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 6.0

    @property
    def passes(self) -> float:
        clean = 0.0 if self.attack is None else 1.0
        return clean + super(TRADES, self).passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        if self.attack is None:
            return Examples(x, y, x)
        local = unwrapped(model)
        with eval_without_weight_gradients(local), torch.no_grad():
            clean_BK = local(x).float()
        return Examples(x, y, self.adversarial_examples(model, x, Diverge(clean_BK), seed, index_B))

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        clean_BK, adv_BK = model(examples.x).float(), model(examples.x_adv).float()
        natural = self.cross_entropy(clean_BK, examples.y)
        divergence = kl_divergence(adv_BK, clean_BK).mean()
        logs = {
            "clean_accuracy": batch_accuracy(clean_BK, examples.y),
            "adversarial_accuracy": batch_accuracy(adv_BK, examples.y),
            "natural_loss": natural.detach(),
            "divergence": divergence.detach(),
        }
        return LossOutput(natural + self.beta * divergence, logs)
