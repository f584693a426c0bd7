"""Training on the worst images an attack finds."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from vitadel.attacks import Attack
from vitadel.errors import UsageError
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy
from vitadel.objectives.base import Step, accuracy, check_smoothing, hard_labels, shares, undistributed
from vitadel.threat import Threat, with_eps


@dataclass(frozen=True, slots=True)
class Adversarial:
    r"""Cross-entropy where it is largest (Madry et al. 2018, arXiv:1706.06083).

    .. math:: \min_\theta \; \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(f_\theta(x'), y)

    :math:`S` is ``threat``; the inner maximum is what ``attack`` finds with the weights frozen and the model in
    evaluation mode. No clean pass is made: a k-step attack costs 2k + 3 forward passes' worth of work.

    Over the first ``eps_warmup`` of training the threat's radius grows evenly from nothing: small ViTs never leave
    chance level if the full threat meets them untrained. The attack's own step size does not change.
    """

    attack: Attack
    threat: Threat
    smoothing: float = 0.0
    eps_warmup: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing("Adversarial", self.smoothing)
        if not 0 <= self.eps_warmup <= 1:
            raise UsageError(
                f"Adversarial.eps_warmup must lie in [0, 1], got {self.eps_warmup:g}: a share of training."
            )

    def at(self, progress: float) -> "Adversarial":
        if progress >= self.eps_warmup:
            return self
        return replace(self, threat=with_eps(self.threat, self.threat.eps * progress / self.eps_warmup))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Step:
        goal = Untargeted(hard_labels(y))
        x_adv = self.attack.craft(undistributed(model), x, goal, self.threat, seed=seed, index_B=index_B)
        z_BK = model(x_adv).float()
        loss = cross_entropy(z_BK, shares(y, z_BK.shape[1], self.smoothing)).mean()
        return Step(loss, {"adversarial_accuracy": accuracy(z_BK, y)}, adv_logits=z_BK)
