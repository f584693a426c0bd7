"""Training on the worst images an attack finds."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy
from vitadel.objectives.adversarial_objective import AdversarialObjective
from vitadel.objectives.base import Examples, Step, accuracy, hard_labels, shares


@dataclass(frozen=True, slots=True)
class Adversarial(AdversarialObjective):
    r"""Cross-entropy where it is largest (Madry et al. 2018, arXiv:1706.06083).

    .. math:: \min_\theta \; \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(f_\theta(x'), y)

    :math:`S` is ``threat``. No clean pass is made: a k-step attack costs 2k + 3 forward passes' worth of work. The
    attack aims away from the label with the largest share, also where labels are mixed or smoothed.
    """

    @property
    def recordable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        return 3.0

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return Examples(x, y, self.found(model, x, Untargeted(hard_labels(y)), seed, index_B))

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        z_BK = model(examples.x_adv).float()
        loss = cross_entropy(z_BK, shares(examples.y, z_BK.shape[1], self.smoothing)).mean()
        return Step(loss, {"adversarial_accuracy": accuracy(z_BK, examples.y)}, adv_logits=z_BK)
