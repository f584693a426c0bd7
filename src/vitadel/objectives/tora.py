r"""TORA: training of adapters on a frozen network, each on its own loss first, then the fusion that weighs them.

TORA of Li & Xu (2023, "Trade-off between Robustness and Accuracy of Vision Transformers"). There is no public code, and
the slides leave most of it open: this is a reconstruction.

===========================================================  ==========================================================
the slides                                                   here
===========================================================  ==========================================================
phase 1: :math:`\min_{\Psi_R, \Phi} L_{ROB}` and             updates alternate: even ones train the robust adapter, odd
:math:`\min_{\Psi_A, \Phi} L_{ACC}`                          ones the accurate adapter, so that the fusion sees both
:math:`L` of phase 1                                         cross-entropy of the adapter's own head
token and head                                               trained with their adapter; not in phase 2, except heads
                                                             with ``heads_learn``
phase 2: :math:`\min_\Phi \lambda L_{ROB} +                  ``weight``; both losses are those of the joint output
(1 - \lambda) L_{ACC}`
what the attack differentiates                               the joint output, in both phases; with ``attacks_own`` that
                                                             of the robust head in robust updates of phase 1
baselines                                                    a network without fusion trains all that was added to it in
                                                             phase 2; one with a single adapter has no phase 1
===========================================================  ==========================================================

Shape letters: B images, K classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Range
from vitadel.models import Adapted
from vitadel.objectives.adversarial import AdversarialObjective
from vitadel.objectives.base import Examples, LossOutput, Objective, accuracy, unwrapped
from vitadel.objectives.schedule import TrainingTime

# which adapter trains, one update after the other
_TURNS = ("rob", "acc")


@dataclass(frozen=True, slots=True)
class TORATraining(AdversarialObjective):
    r"""Two phases: the adapters separately, then their fusion.

    .. math:: \min_\Phi \; \lambda \, \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(F(x'), y)
              + (1 - \lambda) \, \mathbb{E} \, \mathrm{CE}(F(x), y)

    Weights that an update does not train have no gradient in it, and so neither weight decay nor momentum. The loss
    without a training time (`at`) is that of phase 2.

    Attributes:
        weight: :math:`\lambda`: 0 trains on clean images only, 1 on adversarial examples only; the other term is not
            computed then.
        independent: The share of training that phase 1 takes.
        heads_learn: Whether the heads are trained in phase 2 as well.
        attacks_own: Whether robust updates of phase 1 attack the robust head instead of the joint output.
    """

    weight: Annotated[float, Range(ge=0, le=1, hint="It is lambda of the robust loss.")] = 0.5
    independent: Annotated[float, Range(ge=0, le=1, hint="It is a share of training.")] = 0.5
    heads_learn: bool = False
    attacks_own: bool = False

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
        if len(net.fusions) == 1 and self.independent < 1 and not self.heads_learn:
            raise UsageError(
                "what a fusion makes is for the next block, and this network has one block alone. Choose a deeper one."
            )

    def at(self, time: TrainingTime) -> Objective:  # type: ignore[override]  # an update of phase 1 is another objective
        now = super(TORATraining, self).at(time)
        update, updates = round(time.epoch * time.updates) - 1, time.epochs * time.updates
        # a rounding error must not move the border by an update
        alone = update < round(self.independent * updates, 6)
        return _Turn(now, _TURNS[update % len(_TURNS)]) if alone else replace(now, independent=0.0)

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        return self.untargeted_examples(model, x, y, seed, index_B) if self._attacks else Examples(x, y, x)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        net = _adapted(model)
        heads = [one for head in net.heads.values() for one in head.parameters()] if self.heads_learn else []
        trained = [*net.parts("fusion"), *heads] if len(net.fusions) else list(net.parts(*net.tuning.names))
        return _training_only(net, trained, lambda: self._joint_loss(model, examples))

    def _joint_loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        terms: list[Tensor] = []
        logs: dict[str, Tensor] = {}
        for kind, share, x in (
            ("clean", 1 - self.weight, examples.x),
            ("adversarial", self.weight, examples.x_adv),
        ):
            if share > 0:
                loss, numbers = self.term(kind, model(x).float(), examples.y)
                terms.append(share * loss)
                logs |= numbers
        return LossOutput(sum(terms[1:], start=terms[0]), logs)

    def term(self, kind: str, z_BK: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy and what is logged of it."""
        loss = self.cross_entropy(z_BK, y)
        return loss, {f"{kind}_accuracy": accuracy(z_BK, y), f"{kind}_loss": loss.detach()}


@dataclass(frozen=True, slots=True)
class _Turn(Objective):
    """An update of phase 1: one adapter and the fusion are trained on the loss of that adapter's head."""

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
        with _output_of(_adapted(model), self.name) if self.whole.attacks_own else nullcontext():
            return self.whole.untargeted_examples(model, x, y, seed, index_B)

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        net = _adapted(model)
        return _training_only(net, list(net.parts(self.name, "fusion")), lambda: self._own_loss(model, net, examples))

    def _own_loss(self, model: nn.Module, net: Adapted, examples: Examples) -> LossOutput:
        with _output_of(net, self.name):
            z_BK = model(examples.x_adv).float()
        return LossOutput(*self.whole.term("adversarial" if self._attacks else "clean", z_BK, examples.y))


def _adapted(model: nn.Module) -> Adapted:
    local = unwrapped(model)
    adapted = next((module for module in local.modules() if isinstance(module, Adapted)), None)
    if adapted is None:
        kind = type(getattr(local, "net", local)).__name__
        raise UsageError(
            f"TORATraining trains adapters, and this {kind} has none. Set model.tuning.tuning=tora in the recipe, or "
            "make them with vitadel.models.tora."
        )
    return adapted


def _training_only(net: Adapted, trained: list[nn.Parameter], compute: Callable[[], LossOutput]) -> LossOutput:
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
def _output_of(net: Adapted, head: str) -> Iterator[None]:
    """The network returns the logits of one head for a while."""
    before = net.tuning
    net.tuning = replace(before, head=head)
    try:
        yield
    finally:
        net.tuning = before
