r"""TORA: training of adapters on a frozen network, first each on its own loss, then their fusion.

TORA of Li & Xu (2023, "Trade-off between Robustness and Accuracy of Vision Transformers"). There is no public code, and
the slides leave most of it open: this is a reconstruction.

===========================================================  ==========================================================
the slides                                                   here
===========================================================  ==========================================================
phase 1: :math:`\min_{\Psi_R, \Phi} L_{ROB}(F)` and          ``order``: updates alternate, so that the fusion sees both,
:math:`\min_{\Psi_A, \Phi} L_{ACC}(F)`                       or the robust adapter is trained first, then the accurate
token and head                                               trained with their adapter; not in phase 2, except heads
                                                             with ``heads_learn``
phase 2: :math:`\min_\Phi \lambda L_{ROB}(F) +               ``weight``
(1 - \lambda) L_{ACC}(F)`
which output of F the losses take, and the attack inside     ``phase1_loss``, ``phase1_attack``, ``phase2_loss`` and
:math:`L_{ROB}` maximizes                                    ``phase2_attack``: that of the loss's own head (``own``)
                                                             or the mean of both, which is the prediction (``joint``)
baselines                                                    a network without fusion trains all its added weights in
                                                             phase 2; one with a single adapter has no phase 1
===========================================================  ==========================================================

With ``own`` everywhere both heads end near each other in clean accuracy, and the robust one is more robust, as table 2
of the paper has it. An attack on the joint output with the loss of the robust head makes that head recognize the attack
instead of the image; both on the joint output leave heads that are useless alone (docs/tora.md has the measurements).

Shape letters: B images, K classes.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range
from vitadel.models import AdaptedViT
from vitadel.objectives.adversarial import AdversarialObjective
from vitadel.objectives.base import Examples, LossOutput, Objective, TrainingTime, batch_accuracy, unwrapped

# which adapter trains in phase 1, in this order
_TURNS = ("rob", "acc")


class Output(enum.Enum):
    """The output that a loss is computed on, or whose loss an attack maximizes."""

    OWN = "the output of the loss's own head"
    JOINT = "the mean of the heads"


class Order(enum.Enum):
    """The order in which phase 1 trains the two adapters."""

    ALTERNATING = "one update each"
    SEQUENTIAL = "first the robust one, then the accurate one"


@dataclass(frozen=True, slots=True)
class TORATraining(AdversarialObjective):
    r"""Two phases: the adapters separately, then their fusion.

    .. math:: \min_\Phi \; \lambda \, \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(f_{ROB}(x'), y)
              + (1 - \lambda) \, \mathbb{E} \, \mathrm{CE}(f_{ACC}(x), y)

    Weights that an update does not train have no gradient, and get neither weight decay nor momentum. Without a
    training time (`at`), the loss is that of phase 2.

    Args:
        weight: :math:`\lambda`: 0 trains on clean images only, 1 on adversarial examples only; the other term is not
            computed then.
        independent: The share of training that phase 1 takes.
        heads_learn: Whether the heads are trained in phase 2 as well.
        phase1_attack: The output whose loss the attack of phase 1 maximizes.
        phase1_loss: The output that the losses of phase 1 are computed on.
        phase2_attack: The same for the attack of phase 2.
        phase2_loss: The same for the losses of phase 2.
        order: Whether the adapters take turns in phase 1, or are trained one after the other.
    """

    weight: Annotated[float, Range(ge=0, le=1, hint="It is lambda of the robust loss.")] = 0.5
    independent: Annotated[float, Range(ge=0, le=1, hint="It is a share of training.")] = 0.5
    heads_learn: bool = False
    phase1_attack: Output = Output.OWN
    phase1_loss: Output = Output.OWN
    phase2_attack: Output = Output.OWN
    phase2_loss: Output = Output.OWN
    order: Order = Order.ALTERNATING

    @property
    def trains_subsets(self) -> bool:
        return True

    @property
    def capturable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        """Forward and backward for each term: most weights are frozen and need no gradient."""
        return 2.0 * (self._attacks + (self.weight < 1))

    @property
    def passes(self) -> float:
        """The mean over training."""
        alone = sum(_Turn(self, name).passes for name in _TURNS) / len(_TURNS)
        joint = self.attack_passes * self._attacks + self.loss_passes
        return self.independent * alone + (1 - self.independent) * joint

    @property
    def attack_passes(self) -> float:
        """Cost of the attack of an update that has one, in forward passes."""
        return super(TORATraining, self).passes - self.loss_passes

    @property
    def _attacks(self) -> bool:
        return self.weight > 0

    def prepare_model(self, model: nn.Module) -> None:
        """Refuse a model in which some phase would have nothing to train."""
        net = _adapted(model)
        if net.tuning.head != "joint":
            raise UsageError(
                "TORATraining trains the mean of the heads, and the output of this model is its head "
                f"{net.tuning.head!r}. Leave out the head, and choose it when the model is evaluated."
            )
        if len(net.tuning.names) == 1 and self.independent:
            raise UsageError("a single adapter cannot take turns with another. Set objective.independent=0.")
        unread = len(net.fusions) == 1 and net.tuning.recursion != "fusion"
        if unread and self.independent < 1 and not self.heads_learn:
            raise UsageError(
                "the output of a fusion is read by the next block, and this network has one block only. "
                "Choose a deeper one."
            )

    def at(self, time: TrainingTime) -> Objective:  # type: ignore[override]  # an update of phase 1 is another objective
        now = super(TORATraining, self).at(time)
        update, updates = round(time.epoch * time.updates) - 1, time.epochs * time.updates
        # rounded, or an error of floating point could move the border by an update
        border = round(self.independent * updates, 6)
        if update >= border:
            return replace(now, independent=0.0)
        turn = update % len(_TURNS) if self.order is Order.ALTERNATING else int(2 * update >= border)
        return _Turn(now, _TURNS[turn])

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.examples(model, x, y, seed, index_B, self.phase2_attack) if self._attacks else Examples(x, y, x)

    def examples(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int, index_B: Tensor | None, attacked: Output
    ) -> Examples:
        """The batch with adversarial examples for an output."""
        with _output_of(_adapted(model), "rob", attacked):
            return self.untargeted_examples(model, x, y, seed, index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        net = _adapted(model)
        heads = [one for head in net.heads.values() for one in head.parameters()] if self.heads_learn else []
        trained = [*net.parts("fusion"), *heads] if len(net.fusions) else list(net.parts(*net.tuning.names))
        return _training_only(net, trained, lambda: self._weighted_loss(model, examples))

    def _weighted_loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        terms: list[Tensor] = []
        logs: dict[str, Tensor] = {}
        for head, share in (("acc", 1 - self.weight), ("rob", self.weight)):
            if share > 0:
                loss, numbers = self.term(model, head, self.phase2_loss, examples)
                terms.append(share * loss)
                logs |= numbers
        return LossOutput(sum(terms[1:], start=terms[0]), logs)

    def term(self, model: nn.Module, head: str, output: Output, examples: Examples) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the accurate head on clean images, or of the robust one on adversarial ones, and its logs."""
        kind, x = ("clean", examples.x) if head == "acc" else ("adversarial", examples.x_adv)
        with _output_of(_adapted(model), head, output):
            z_BK = model(x).float()
        loss = self.cross_entropy(z_BK, examples.y)
        return loss, {f"{kind}_accuracy": batch_accuracy(z_BK, examples.y), f"{kind}_loss": loss.detach()}


@dataclass(frozen=True, slots=True)
class _Turn(Objective):
    """An update of phase 1: one adapter and the fusion are trained on the loss of that adapter."""

    whole: TORATraining
    name: str

    @property
    def phase(self) -> str:
        return self.name

    @property
    def _attacks(self) -> bool:
        return self.name == "rob"

    @property
    def loss_passes(self) -> float:
        return 2.0

    @property
    def passes(self) -> float:
        return self.whole.attack_passes * self._attacks + self.loss_passes

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        if not self._attacks:
            return Examples(x, y, x)
        return self.whole.examples(model, x, y, seed, index_B, self.whole.phase1_attack)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        net = _adapted(model)
        trained = list(net.parts(self.name, "fusion"))
        output = self.whole.phase1_loss
        return _training_only(net, trained, lambda: LossOutput(*self.whole.term(model, self.name, output, examples)))


def _adapted(model: nn.Module) -> AdaptedViT:
    local = unwrapped(model)
    adapted = next((module for module in local.modules() if isinstance(module, AdaptedViT)), None)
    if adapted is None:
        kind = type(getattr(local, "net", local)).__name__
        raise UsageError(
            f"TORATraining trains adapters, and this {kind} has none. Set model.tuning.tuning=tora in the recipe, or "
            "make them with vitadel.models.tora."
        )
    return adapted


def _training_only(net: AdaptedViT, trained: list[nn.Parameter], compute: Callable[[], LossOutput]) -> LossOutput:
    """A loss with gradients for these weights alone; its `undo` unfreezes the others."""
    chosen = {id(one) for one in trained}
    others = [one for one in net.parameters() if one.requires_grad and id(one) not in chosen]

    def undo() -> None:
        for one in others:
            one.requires_grad_(True)

    for one in others:
        one.requires_grad_(False)
    try:
        return replace(compute(), undo=undo)
    except BaseException:
        undo()
        raise


@contextmanager
def _output_of(net: AdaptedViT, head: str, output: Output) -> Iterator[None]:
    """Context manager: with `Output.OWN` the network returns the logits of `head`, if it has this head."""
    before = net.tuning
    if output is Output.OWN and head in before.names:
        net.tuning = replace(before, head=head)
    try:
        yield
    finally:
        net.tuning = before
