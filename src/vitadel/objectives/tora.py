r"""Training of adapters that share a frozen network: each on its own first, then the balance between them.

TORA of Li & Xu (2023, "Trade-off between Robustness and Accuracy of Vision Transformers"). There is no public code, and
the slides leave most of it open: this is a reconstruction.

===========================================================  ==========================================================
the slides                                                   here
===========================================================  ==========================================================
phase 1: :math:`\min_{\Psi_R, \Phi} L_{ROB}` and             updates take turns: even ones are the robust adapter's, odd
:math:`\min_{\Psi_A, \Phi} L_{ACC}`                          ones the accurate adapter's, so that the fusion sees both
:math:`L` of phase 1                                         cross-entropy of the adapter's own head
token and head                                               learn with their adapter; in phase 2 they do not, or heads
                                                             do with ``heads_learn``
phase 2: :math:`\min_\Phi \lambda L_{ROB} +                  ``weight``; both losses are those of the joint answer
(1 - \lambda) L_{ACC}`
what the attack differentiates                               the joint answer, in both phases; in robust turns of phase
                                                             1 the robust head's with ``attacks_own``
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
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy
from vitadel.models import Adapted
from vitadel.objectives.adversarial_objective import AdversarialObjective
from vitadel.objectives.base import Examples, Objective, Step, accuracy, hard_labels, shares, undistributed
from vitadel.objectives.schedule import TrainingTime


@dataclass(frozen=True, slots=True)
class TORATraining(AdversarialObjective):
    r"""Adapters on their own for the first ``independent`` share of training, then the fusion that weighs them.

    .. math:: \min_\Phi \; \lambda \, \mathbb{E} \max_{x' \in S(x)} \mathrm{CE}(F(x'), y)
              + (1 - \lambda) \, \mathbb{E} \, \mathrm{CE}(F(x), y)

    :math:`\lambda` is ``weight``: 0 trains on clean images alone, 1 on attacked ones alone; the other half is then not
    even computed. What an update does not train has no gradient in it, and so neither decay nor momentum. Asked for a
    loss without a moment (`at`), it is the one of phase 2.
    """

    weight: Annotated[float, Range(ge=0, le=1, hint="It is lambda of the robust loss.")] = 0.5
    independent: Annotated[float, Range(ge=0, le=1, hint="It is a share of training.")] = 0.5
    heads_learn: bool = False
    attacks_own: bool = False

    @property
    def selective(self) -> bool:
        return True

    @property
    def recordable(self) -> bool:
        return True

    @property
    def loss_passes(self) -> float:
        """There and back for each half: most weights are frozen and need no gradient. Heads alone cost half of it."""
        return 2.0 * (self._attacks + (self.weight < 1))

    @property
    def passes(self) -> float:
        """The mean over training."""
        turns = sum(_Turn(self, name).passes for name in _TURNS) / len(_TURNS)
        joint = self.attack_passes * self._attacks + self.loss_passes
        return self.independent * turns + (1 - self.independent) * joint

    @property
    def attack_passes(self) -> float:
        """What an update pays for its attack, if it has one."""
        return super(TORATraining, self).passes - self.loss_passes

    @property
    def _attacks(self) -> bool:
        return self.weight > 0

    def begin(self, model: nn.Module) -> None:
        """Refuses a model in which some phase would have nothing to train."""
        net = _adapted(model)
        if net.tuning.answer != "joint":
            raise UsageError(
                f"TORATraining trains the joint answer, and this model answers with {net.tuning.answer!r}. "
                "Leave out the head, and choose it when the model is evaluated."
            )
        if len(net.tuning.names) == 1 and self.independent:
            raise UsageError("a single adapter cannot take turns with another. Set objective.independent=0.")
        if len(net.fusions) == 1 and self.independent < 1 and not self.heads_learn:
            raise UsageError(
                "what a fusion makes is for the next block, and this network has one block alone. Choose a deeper one."
            )

    def at(self, moment: TrainingTime) -> Objective:  # type: ignore[override]  # what a turn needs is less than all of this
        now = super(TORATraining, self).at(moment)
        update, updates = round(moment.epoch * moment.updates) - 1, moment.epochs * moment.updates
        # a rounding error must not move the border by an update
        alone = update < round(self.independent * updates, 6)
        return _Turn(now, _TURNS[update % len(_TURNS)]) if alone else replace(now, independent=0.0)

    def prepare(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None) -> Examples:
        x_adv = self.found(model, x, Untargeted(hard_labels(y)), seed, index_B) if self._attacks else x
        return Examples(x, y, x_adv)

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        net = _adapted(model)
        heads = [one for head in net.heads.values() for one in head.parameters()] if self.heads_learn else []
        learning = [*net.parts("fusion"), *heads] if len(net.fusions) else list(net.parts(*net.tuning.names))
        return _trained(net, learning, lambda: self._joint(model, examples))

    def _joint(self, model: nn.Module, examples: Examples) -> Step:
        halves: dict[str, tuple[float, Tensor]] = {}
        if self.weight < 1:
            halves["clean"] = 1 - self.weight, model(examples.x).float()
        if self._attacks:
            halves["adversarial"] = self.weight, model(examples.x_adv).float()
        losses = {name: self.crossed(z_BK, examples.y) for name, (_, z_BK) in halves.items()}
        loss = sum(share * losses[name] for name, (share, _) in halves.items())
        assert isinstance(loss, Tensor)
        logs: dict[str, Tensor] = {}
        for name, (_, z_BK) in halves.items():
            logs |= _told(name, z_BK, examples.y, losses[name])
        clean_BK, adv_BK = (halves[name][1] if name in halves else None for name in ("clean", "adversarial"))
        return Step(loss, logs, clean_BK, adv_BK)

    def crossed(self, z_BK: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(z_BK, shares(y, z_BK.shape[1], self.smoothing)).mean()


# whose turn it is, one update after the other
_TURNS = ("rob", "acc")


@dataclass(frozen=True, slots=True)
class _Turn(Objective):
    """An update of phase 1: one adapter and the fusion learn from what that adapter's head answers."""

    whole: TORATraining
    name: str

    @property
    def stage(self) -> str:
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
        with _answering(_adapted(model), self.name) if self.whole.attacks_own else nullcontext():
            return Examples(x, y, self.whole.found(model, x, Untargeted(hard_labels(y)), seed, index_B))

    def loss(self, model: nn.Module, examples: Examples) -> Step:
        net = _adapted(model)
        return _trained(net, list(net.parts(self.name, "fusion")), lambda: self._own(model, net, examples))

    def _own(self, model: nn.Module, net: Adapted, examples: Examples) -> Step:
        with _answering(net, self.name):
            z_BK = model(examples.x_adv).float()
        loss = self.whole.crossed(z_BK, examples.y)
        logs = _told("adversarial" if self._attacks else "clean", z_BK, examples.y, loss)
        return Step(loss, logs, adv_logits=z_BK) if self._attacks else Step(loss, logs, clean_logits=z_BK)


def _told(kind: str, z_BK: Tensor, y: Tensor, loss: Tensor) -> dict[str, Tensor]:
    return {f"{kind}_accuracy": accuracy(z_BK, y), f"{kind}_loss": loss.detach()}


def _adapted(model: nn.Module) -> Adapted:
    local = undistributed(model)
    found = next((module for module in local.modules() if isinstance(module, Adapted)), None)
    if found is None:
        kind = type(getattr(local, "net", local)).__name__
        raise UsageError(
            f"TORATraining trains adapters, and this {kind} has none. Set model.tuning.tuning=tora in the recipe, or "
            "make them with vitadel.models.tora."
        )
    return found


def _trained(net: Adapted, learning: list[nn.Parameter], compute: Callable[[], Step]) -> Step:
    """A step in which these weights alone have gradients; its `undo` gives the others back what they had."""
    chosen = {id(one) for one in learning}
    idle = [one for one in net.parameters() if one.requires_grad and id(one) not in chosen]

    def undo() -> None:
        for one in idle:
            one.requires_grad_(True)

    for one in idle:
        one.requires_grad_(False)
    try:
        return replace(compute(), undo=undo)
    except BaseException:
        undo()
        raise


@contextmanager
def _answering(net: Adapted, head: str) -> Iterator[None]:
    """Inside, the network answers with one head."""
    before = net.tuning
    net.tuning = replace(before, answer=head)
    try:
        yield
    finally:
        net.tuning = before
