"""What an objective changes on the model for its loss is as before also if the loss cannot be computed."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from vitadel.objectives import AWP, LossOutput, Standard
from vitadel.objectives.base import Examples
from vitadel.train.loop import Trainer

CALLS: list[str] = []


@dataclass(frozen=True, slots=True)
class Fails(Standard):
    """Out of memory at one call, forward or backward; calls are counted in `CALLS`."""

    forward: int = 0
    backward: int = 0

    def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
        CALLS.append("loss")
        if CALLS.count("loss") == self.forward:
            model(examples.x)
            raise torch.OutOfMemoryError
        output = Standard.loss(self, model, examples)
        if CALLS.count("loss") == self.backward:
            output.loss.register_hook(_no_memory)
        return replace(output, undo=lambda: CALLS.append("undo"))


def _no_memory(grad: Tensor) -> Tensor:
    raise torch.OutOfMemoryError


@pytest.mark.parametrize(("forward", "backward"), [(1, 0), (2, 0), (0, 1)])
def test_awp_restores_weights_and_statistics_of_a_loss_that_fails(forward: int, backward: int) -> None:
    """The first loss is that of the gradient, the second that at the perturbed weights."""
    CALLS.clear()
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(torch.OutOfMemoryError):
        AWP(Fails(forward=forward, backward=backward), gamma=0.1)(model, x, torch.tensor([0, 1, 2, 0]), seed=0)
    after = model.state_dict()
    assert torch.equal(after["2.weight"], before["2.weight"])
    if forward != 2:  # at the perturbed weights, the batch counts
        assert all(torch.equal(after[name], value) for name, value in before.items())
    assert CALLS.count("undo") == CALLS.count("loss") - bool(forward)


def test_a_backward_pass_that_fails_is_undone() -> None:
    """The trainer undoes what an objective changed, also if there is no memory for the gradients."""
    undone: list[bool] = []
    output = LossOutput(torch.zeros((), requires_grad=True), undo=lambda: undone.append(True))

    def backward(loss: Tensor) -> None:
        raise torch.OutOfMemoryError

    accelerator = SimpleNamespace(autocast=torch.no_grad, backward=backward)
    trainer = cast(Any, SimpleNamespace(accelerator=accelerator, wrapped=None))
    objective = cast(Any, SimpleNamespace(loss=lambda model, examples: output))
    with pytest.raises(torch.OutOfMemoryError):
        Trainer.backward(trainer, objective, 1.0, cast(Any, None))
    assert undone == [True]
