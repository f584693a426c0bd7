"""Training with attention scaling: what changes, what does not, and resuming."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from trainings import claim, same, tiny_vit, weights  # type: ignore[import-not-found]

from vitadel import models
from vitadel.attacks import PGD, Scaling
from vitadel.core.errors import Stopped, UsageError
from vitadel.data import Split
from vitadel.models import attention_scales, read_tensors, set_attention_scales
from vitadel.objectives import AWP, MART, TRADES, Adversarial, AttentionScaling, Objective, Scope, Standard
from vitadel.runs import Run
from vitadel.threats import Linf
from vitadel.train import AdamW, Compile, Precision, Trainer, TrainingConfig
from vitadel.train.attack_model import AttackModel

ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)
ADVERSARIAL = Adversarial(ATTACK, Linf(0.1))
ONE = replace(Scaling.paper(), batches=1, batch_size=16, steps=2)
SCALING = AttentionScaling(ADVERSARIAL, period=2, scaling=ONE)
LITERAL = replace(Scaling.literal(), batches=1, batch_size=16, steps=2)
# four updates an epoch, of which number 2 is the one of scaling: updates 9 to 12
PLAN = TrainingConfig(
    epochs=4,
    batch_size=16,
    optimizer=AdamW(lr=2e-3),
    ema=0.9,
    clip_grad=1.0,
    checkpoint_every_steps=1,
    log_every_steps=2,
)


class StateHistory:
    """The whole training state after every update, read from the checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.states: dict[int, dict[str, Tensor]] = {}

    def __call__(self, what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        for path in self.run.checkpoints.glob("step-*.safetensors"):
            self.states.setdefault(int(path.stem.removeprefix("step-")), read_tensors(path)[0])

    def moves(self, kind: str) -> set[int]:
        """The updates that changed any tensor of a kind: weights, average, optimizer or factors."""
        return {
            step
            for step in range(1, max(self.states) + 1)
            if any(not torch.equal(value, self.states[step][key]) for key, value in self.of(kind, step - 1).items())
        }

    def of(self, kind: str, step: int) -> dict[str, Tensor]:
        state = self.states[step]
        if kind in ("optimizer", "average", "model"):
            return {key: value for key, value in state.items() if key.startswith(kind) and "scal" not in key}
        return {key: value for key, value in state.items() if key.endswith(kind)}


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("batches", [None, 1])
def test_a_scaled_epoch_changes_the_factors_only(
    train: Split, tmp_path: Path, scope: Scope, batches: int | None
) -> None:
    run = claim(tmp_path / "run")
    course = StateHistory(run)
    Trainer(tiny_vit(), replace(SCALING, scope=scope, batches=batches), train, PLAN, run, seed=1, notify=course).fit()
    course("", 0, 0, {})
    still = {9, 10, 11, 12} if batches is None else {9}
    every = set(range(1, 17))
    assert {kind: every - course.moves(kind) for kind in ("model", "average", "optimizer")} == {
        "model": still,
        "average": still,
        # the first update of the optimizer makes its state, which is not there to be compared before
        "optimizer": still | {1},
    }
    name = "attention_scales" if scope is Scope.DEPLOYED else "attack_scales"
    assert course.moves(name) <= still
    assert 9 in course.moves(name)
    for state in course.states.values():  # never a mean of two
        assert torch.equal(state[f"model.net.{name}"], state[f"average.net.{name}"])


@pytest.mark.parametrize("killed", [10, 13], ids=["in the epoch of scaling", "after it"])
@pytest.mark.parametrize("scope", list(Scope))
def test_an_interrupted_run_resumes(train: Split, tmp_path: Path, scope: Scope, killed: int) -> None:
    def terminate(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == killed:
            os.kill(os.getpid(), signal.SIGTERM)

    objective, plan = replace(SCALING, scope=scope), replace(PLAN, checkpoint_every_steps=100)
    whole, broken = claim(tmp_path / "whole"), claim(tmp_path / "broken")
    one = Trainer(tiny_vit(), objective, train, plan, whole, seed=1).fit()
    with pytest.raises(Stopped):
        Trainer(tiny_vit(), objective, train, plan, broken, seed=1, notify=terminate).fit()
    other = Trainer(tiny_vit(), objective, train, plan, broken, seed=1).fit()
    assert same(weights(whole), weights(broken))
    assert same(one.net.state_dict(), other.net.state_dict())


@pytest.mark.parametrize(
    "inner", [MART(ATTACK, Linf(0.1)), AWP(TRADES(ATTACK, Linf(0.1)), gamma=0.01, start=1)], ids=["mart", "awp"]
)
def test_the_checkpoint_has_the_factors(train: Split, tmp_path: Path, inner: Objective) -> None:
    run = claim(tmp_path / "run")
    model = Trainer(tiny_vit(), replace(SCALING, inner=inner), train, PLAN, run, seed=1).fit()
    back = models.load(run.checkpoints / "final.safetensors")
    assert back.attention_scales is not None
    assert bool((back.attention_scales != 1).any())
    assert same(back.net.state_dict(), model.net.state_dict())
    x, _ = _images(train)
    plain = tiny_vit()
    plain.net.load_state_dict({key: value for key, value in weights(run).items() if key != attention_scales.ATTENTION})
    with torch.no_grad(), plain.taps.scale(back.attention_scales):
        by_hand = plain(x)
    with torch.no_grad():
        assert torch.equal(back(x), by_hand)


@pytest.mark.parametrize("scope", list(Scope))
def test_the_literal_form_trains_resumes_and_is_saved_with_its_factors(
    train: Split, tmp_path: Path, scope: Scope
) -> None:
    def ask(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == 11:  # in the epoch of scaling
            os.kill(os.getpid(), signal.SIGTERM)

    objective, plan = replace(SCALING, scope=scope, scaling=LITERAL), replace(PLAN, checkpoint_every_steps=100)
    whole, stopped = claim(tmp_path / "whole"), claim(tmp_path / "stopped")
    model = Trainer(tiny_vit(), objective, train, plan, whole, seed=1).fit()
    with pytest.raises(Stopped):
        Trainer(tiny_vit(), objective, train, plan, stopped, seed=1, notify=ask).fit()
    Trainer(tiny_vit(), objective, train, plan, stopped, seed=1).fit()
    assert same(weights(whole), weights(stopped))
    back = models.load(whole.checkpoints / "final.safetensors")
    assert same(back.net.state_dict(), model.net.state_dict())
    logits_scale = dict(back.net.named_buffers()).get("logits_scale")
    assert (back.attention_scales is None) == (logits_scale is None) == (scope is Scope.ATTACK)
    if back.attention_scales is not None and logits_scale is not None:
        assert bool((torch.cat([back.attention_scales, logits_scale[None]]) != 1).any())


def test_a_model_trained_on_scaled_attacks_is_a_plain_model(train: Split, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    model = Trainer(tiny_vit(), replace(SCALING, scope=Scope.ATTACK), train, PLAN, run, seed=1).fit()
    assert weights(run).keys() == tiny_vit().net.state_dict().keys() == model.net.state_dict().keys()
    # what the attack found with its factors was trained on
    plain = claim(tmp_path / "plain")
    Trainer(tiny_vit(), replace(SCALING, scope=Scope.ATTACK, period=100), train, PLAN, plain, seed=1).fit()
    assert not same(weights(run), weights(plain))


def test_without_scaled_epochs_it_is_the_inner_objective(train: Split, tmp_path: Path) -> None:
    for scope in Scope:
        objective = replace(SCALING, scope=scope, period=100)
        Trainer(tiny_vit(), objective, train, PLAN, claim(tmp_path / scope.name), seed=1).fit()
    Trainer(tiny_vit(), ADVERSARIAL, train, PLAN, claim(tmp_path / "plain"), seed=1).fit()
    plain, attack, deployed = (weights(Run.open(tmp_path / name)) for name in ("plain", "ATTACK", "DEPLOYED"))
    assert same(plain, attack)
    assert deployed.pop(attention_scales.ATTENTION).tolist() == [1.0, 1.0]
    assert same(plain, deployed)


def test_the_log_has_its_columns(train: Split, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    Trainer(tiny_vit(), replace(SCALING, batches=3), train, PLAN, run, seed=1).fit()
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    steps = {line["step"]: line for line in lines if line["event"] == "step"}
    assert sorted(steps) == list(range(2, 17, 2))
    columns = {"attention_scale_min", "attention_scale_mean", "attention_distance"}
    assert {step for step, line in steps.items() if columns <= line.keys()} == {10, 12}
    assert {step for step, line in steps.items() if "loss" not in line} == {10}
    # one update of two trained, and its loss is not halved
    assert steps[12]["loss"] > 0.7 * steps[8]["loss"]
    assert 0 <= steps[10]["attention_scale_min"] <= steps[10]["attention_scale_mean"] <= 1
    assert steps[10]["attention_distance"] > 0


def test_start_factors_are_kept(train: Split, tmp_path: Path) -> None:
    """Fine-tuning with any objective: the average has them too, unchanged."""
    model = tiny_vit()
    set_attention_scales(model, [0.3, 0.7])
    tuned = Trainer(model, Standard(), train, replace(PLAN, epochs=1), claim(tmp_path / "run"), seed=1).fit()
    assert tuned.attention_scales is not None
    assert tuned.attention_scales.tolist() == pytest.approx([0.3, 0.7])


@pytest.mark.parametrize("scope", list(Scope))
def test_a_bf16_copy_uses_the_factors(train: Split, tmp_path: Path, scope: Scope) -> None:
    model = tiny_vit()
    set_attention_scales(model, [0.5, 0.25])
    attack_model = AttackModel(model)
    x, _ = _images(train)
    with torch.no_grad():
        torch.testing.assert_close(attack_model(x), model.eval()(x), rtol=0.05, atol=0.05)
        set_attention_scales(model, [0.0, 0.0])
        attack_model.copy_weights()
        torch.testing.assert_close(attack_model(x), model(x), rtol=0.05, atol=0.05)
    plan = replace(PLAN, precision=Precision.BF16, attack_model=True)
    run = claim(tmp_path / "run")
    Trainer(tiny_vit(), replace(SCALING, scope=scope), train, plan, run, seed=1).fit()
    assert (attention_scales.ATTENTION in weights(run)) == (scope is Scope.DEPLOYED)


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compile": Compile.FAST}, "Set plan.compile=off."),
        ({"shard": True}, "Set plan.shard=false."),
        (
            {"grad_checkpointing": True, "compile": Compile.FAST},
            "Set plan.compile=off and plan.grad_checkpointing=false.",
        ),
    ],
)
def test_unsupported_models_are_refused_before_the_first_update(
    train: Split, tmp_path: Path, scope: Scope, settings: dict[str, object], message: str
) -> None:
    run, plan = claim(tmp_path / "run"), replace(PLAN, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        Trainer(tiny_vit(), replace(SCALING, scope=scope), train, plan, run, seed=1).fit()
    assert not list(run.checkpoints.glob("*.safetensors"))


def _images(train: Split) -> tuple[Tensor, Tensor]:
    rows = torch.arange(8)
    return train.pixels.read(rows).float() / 255, train.labels[rows]
