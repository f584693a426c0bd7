"""MART: adversarial training with weights for misclassified images."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitadel.core.numeric import NonNegative
from vitadel.losses import cross_entropy, kl_divergence
from vitadel.objectives.adversarial import AdversarialObjective
from vitadel.objectives.base import Examples, LossOutput, batch_accuracy, hard_labels, soft_targets

# instead of 1 in 1 - max p', so that the logarithm is finite
_ABOVE_ONE = 1.0001


@dataclass(frozen=True, slots=True)
class MART(AdversarialObjective):
    r"""Misclassification-aware adversarial training (Wang et al. 2020, "Improving adversarial robustness requires
    revisiting misclassified examples").

    .. math:: \mathrm{CE}(p', y) - \log\big(1 - \max_{k \neq y} p'_k\big)
              + \beta \, \mathrm{KL}(p \,\|\, p') \, (1 - p_y)

    :math:`p` are the probabilities of the clean image, :math:`p'` those of the adversarial example. With mixed labels
    the cross-entropy and :math:`p_y` take the soft targets, and the maximum excludes the most probable class.

    Args:
        beta: The weight of the divergence.
    """

    beta: NonNegative = 6.0

    @property
    def capturable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 6.0

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.untargeted_examples(model, x, y, seed, index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        clean_BK, adv_BK = model(examples.x).float(), model(examples.x_adv).float()
        target_BK = soft_targets(examples.y, adv_BK.shape[1], self.smoothing)
        label_B1 = hard_labels(examples.y)[:, None]
        other_B = adv_BK.softmax(1).scatter(1, label_B1, 0).amax(1)
        boosted_B = cross_entropy(adv_BK, target_BK) - (_ABOVE_ONE - other_B).log()
        clean_p_y_B = (clean_BK.softmax(1) * soft_targets(examples.y, adv_BK.shape[1], 0.0)).sum(1)
        weighted_kl_B = kl_divergence(adv_BK, clean_BK) * (1 - clean_p_y_B)
        logs = {
            "clean_accuracy": batch_accuracy(clean_BK, examples.y),
            "adversarial_accuracy": batch_accuracy(adv_BK, examples.y),
        }
        return LossOutput((boosted_B + self.beta * weighted_kl_B).mean(), logs)
