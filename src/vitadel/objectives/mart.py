"""Training that looks hardest at what the model gets wrong already."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitadel.core.numeric import NotNegative
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy, kl_divergence
from vitadel.objectives.adversarial_objective import AdversarialObjective
from vitadel.objectives.base import Examples, Step, accuracy, hard_labels, shares

# how far above 1 the runner-up's probability is subtracted from: keeps the logarithm finite
_ABOVE_ONE = 1.0001


@dataclass(frozen=True, slots=True)
class MART(AdversarialObjective):
    r"""Misclassification-aware training (Wang et al. 2020, "Improving adversarial robustness requires revisiting
    misclassified examples").

    .. math:: \mathrm{CE}(p', y) - \log\big(1 - \max_{k \neq y} p'_k\big)
              + \beta \, \mathrm{KL}(p \,\|\, p') \, (1 - p_y)

    :math:`p` is the answer on the image, :math:`p'` on what the attack finds. With mixed labels the cross-entropy and
    :math:`p_y` take the shares, the runner-up excludes the class with the largest one.
    """

    beta: NotNegative = 6.0

    @property
    def recordable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 6.0

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return Examples(x, y, self.found(model, x, Untargeted(hard_labels(y)), seed, index_B))

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        clean_BK, adv_BK = model(examples.x).float(), model(examples.x_adv).float()
        target_BK = shares(examples.y, adv_BK.shape[1], self.smoothing)
        true_B = hard_labels(examples.y)[:, None]
        p_adv_BK = adv_BK.softmax(1)
        other_B = p_adv_BK.scatter(1, true_B, 0).amax(1)
        boosted_B = cross_entropy(adv_BK, target_BK) - (_ABOVE_ONE - other_B).log()
        certain_B = (clean_BK.softmax(1) * shares(examples.y, adv_BK.shape[1], 0.0)).sum(1)
        pulled_B = kl_divergence(adv_BK, clean_BK) * (1 - certain_B)
        logs = {
            "clean_accuracy": accuracy(clean_BK, examples.y),
            "adversarial_accuracy": accuracy(adv_BK, examples.y),
        }
        return Step((boosted_B + self.beta * pulled_B).mean(), logs, clean_BK, adv_BK)
