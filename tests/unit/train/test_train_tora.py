"""Training of adapters: frozen and inactive parts are unchanged bit for bit, and runs resume."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from trainings import claim, same, tiny_vit, weights  # type: ignore[import-not-found]

from vitadel import models
from vitadel.attacks import PGD
from vitadel.core.errors import Stopped, UsageError
from vitadel.data import Split
from vitadel.models import AdaptedViT, AdapterConfig, Model, family_of, read_tensors
from vitadel.objectives import AWP, Objective, Output, TORATraining
from vitadel.runs import Run
from vitadel.threats import Linf
from vitadel.train import SGD, AdamW, Compile, Lion, OptimizerConfig, Precision, Trainer, TrainingConfig
from vitadel.train.attack_model import AttackModel

ATTACK = PGD(steps=2, step_size=0.05, keep_best=False)
OBJECTIVE = TORATraining(ATTACK, Linf(0.1))
# eight updates: rob, acc, rob, acc, and four of the joint output
PLAN = TrainingConfig(
    epochs=2,
    batch_size=16,
    optimizer=AdamW(lr=5e-3, weight_decay=0.5),
    ema=0.9,
    clip_grad=1.0,
    checkpoint_every_steps=1,
    log_every_steps=2,
)


def backbone() -> Model:
    model: Model = tiny_vit(drop_rate=0.3)
    return model


def fresh(tuning: AdapterConfig | None = None) -> Model:
    return models.tora(backbone(), tuning)


def frozen(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("backbone."): value for key, value in state.items() if key.startswith("backbone.")}


@pytest.mark.parametrize(
    ("tuning", "independent"),
    [
        (AdapterConfig(), 0.5),
        (AdapterConfig(gate="per-token"), 0.5),
        (AdapterConfig(tuning="head"), 0.5),
        (AdapterConfig(tuning="single"), 0.0),
    ],
    ids=["tora", "adapter fusion", "head", "single"],
)
@pytest.mark.parametrize("precision", list(Precision))
def test_frozen_weights_are_unchanged_bit_for_bit(
    train: Split, tmp_path: Path, tuning: AdapterConfig, independent: float, precision: Precision
) -> None:
    run, before = claim(tmp_path / "run"), backbone().net.state_dict()
    model = fresh(tuning)
    start = {name: value.clone() for name, value in model.net.state_dict().items()}
    plan = replace(PLAN, precision=precision, attack_model=precision is Precision.BF16)
    average = Trainer(model, replace(OBJECTIVE, independent=independent), train, plan, run, seed=1).fit()
    assert average is not model
    for state in (model.net.state_dict(), average.net.state_dict(), weights(run)):
        assert same(frozen(state), before)
    # and all other weights have changed, except for an unused fusion and a common offset of all keys: both
    # adapters' scores change by as much
    still = {name for name, value in model.net.state_dict().items() if torch.equal(value, start[name])}
    assert {name for name in still if not name.startswith(("backbone.", "fusions.1.", "fusions.0.k.bias"))} == set()
    assert {name for name in start if name.startswith("fusions.1.")} <= still


class StateHistory:
    """The whole training state after every update, read from the checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.states: dict[int, dict[str, Tensor]] = {}

    def __call__(self, what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        for path in self.run.checkpoints.glob("step-*.safetensors"):
            self.states.setdefault(int(path.stem.removeprefix("step-")), read_tensors(path)[0])

    def moved(self, step: int, kind: str) -> set[str]:
        """The state that update `step`, counted from 1, changed."""
        old, new = self.states[step - 1], self.states[step]
        own = {name: value for name, value in new.items() if name.startswith(f"{kind}.")}
        return {name for name, value in own.items() if name not in old or not torch.equal(value, old[name])}


@pytest.mark.parametrize(
    "optimizer",
    [AdamW(lr=5e-3, weight_decay=0.5), Lion(lr=1e-3, weight_decay=0.5), SGD(lr=0.1, weight_decay=0.1)],
    ids=["adamw", "lion", "sgd"],
)
def test_inactive_parts_are_neither_updated_nor_decayed(
    train: Split, tmp_path: Path, optimizer: OptimizerConfig
) -> None:
    run = claim(tmp_path / "run")
    course = StateHistory(run)
    Trainer(fresh(), OBJECTIVE, train, replace(PLAN, optimizer=optimizer), run, seed=1, notify=course).fit()
    course("", 0, 0, {})
    kinds = [("rob", "fusions.0"), ("acc", "fusions.0")] * 2 + [("fusions.0",)] * 4
    for step, expected in enumerate(kinds, 1):
        for part in ("rob", "acc", "fusions.0", "fusions.1", "backbone"):
            names = {name for name in course.moved(step, "model") if f".{part}" in name}
            assert bool(names) == (part in expected), (step, part)
    # of the optimizer: as many slots as there are weights in the parts that learn
    slots = [len({name.split(".")[1] for name in course.moved(step, "optimizer")}) for step in range(1, 9)]
    net = fresh().net
    assert isinstance(net, AdaptedViT)
    fusion = len(list(net.fusions[0].parameters()))
    turn = len(list(net.parts("rob"))) + fusion
    assert max(slots[:4]) <= turn
    assert max(slots[4:]) <= fusion


@pytest.mark.parametrize("killed", [3, 4, 6], ids=["in phase 1", "between", "in phase 2"])
def test_an_interrupted_run_resumes(train: Split, tmp_path: Path, killed: int) -> None:
    def terminate(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == killed:
            os.kill(os.getpid(), signal.SIGTERM)

    plan = replace(PLAN, checkpoint_every_steps=100)
    whole, broken = claim(tmp_path / "whole"), claim(tmp_path / "broken")
    one = Trainer(fresh(), OBJECTIVE, train, plan, whole, seed=1).fit()
    with pytest.raises(Stopped):
        Trainer(fresh(), OBJECTIVE, train, plan, broken, seed=1, notify=terminate).fit()
    other = Trainer(fresh(), OBJECTIVE, train, plan, broken, seed=1).fit()
    assert same(weights(whole), weights(broken))
    assert same(one.net.state_dict(), other.net.state_dict())


def test_gradient_accumulation_matches_the_whole_batch(train: Split, tmp_path: Path) -> None:
    plan = replace(PLAN, optimizer=SGD(lr=0.05), ema=None)
    Trainer(fresh(), OBJECTIVE, train, plan, claim(tmp_path / "one"), seed=1).fit()
    Trainer(fresh(), OBJECTIVE, train, replace(plan, grad_accum_steps=4), claim(tmp_path / "four"), seed=1).fit()
    one, four = (weights(Run.open(tmp_path / name)) for name in ("one", "four"))
    for name in one:
        torch.testing.assert_close(one[name], four[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("objective", [OBJECTIVE, AWP(OBJECTIVE, gamma=0.01)], ids=["alone", "with AWP"])
def test_the_checkpoint_has_every_head(train: Split, tmp_path: Path, objective: Objective) -> None:
    run = claim(tmp_path / "run")
    model = Trainer(fresh(), objective, train, PLAN, run, seed=1).fit()
    path = run.checkpoints / "final.safetensors"
    x = train.pixels.read(torch.arange(8)).float() / 255
    with torch.no_grad():
        by_head = {head: models.load(f"{path}#{head}")(x) for head in ("acc", "rob", "joint", "kept")}
        assert torch.equal(models.load(path)(x), model(x))
        assert torch.equal(by_head["joint"], model(x))
        torch.testing.assert_close(by_head["joint"], (by_head["acc"] + by_head["rob"]) / 2)
        assert not torch.allclose(by_head["acc"], by_head["rob"])


@pytest.mark.parametrize("first", list(Output))
@pytest.mark.parametrize("second", list(Output))
def test_attacks_use_a_copy_with_the_output_of_the_phase(
    train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Output, second: Output
) -> None:
    seen: list[str] = []
    forward = AttackModel.forward

    def spy(self: AttackModel, x: Tensor) -> Tensor:
        assert isinstance(self.net, AdaptedViT)
        seen.append(self.net.tuning.head)
        return forward(self, x)

    monkeypatch.setattr(AttackModel, "forward", spy)
    plan = replace(PLAN, precision=Precision.BF16, attack_model=True)
    objective = replace(OBJECTIVE, phase1_attack=first, phase2_attack=second)
    Trainer(fresh(), objective, train, plan, claim(tmp_path / "run"), seed=1).fit()
    # two steps for two updates of phase 1 and four of phase 2
    heads = {Output.OWN: "rob", Output.JOINT: "joint"}
    assert seen == [heads[first]] * 4 + [heads[second]] * 8


@pytest.mark.slow
def test_compiled_training_gives_the_same_weights(
    train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph for the attack and for each head's steps; without the last stage of the compiler, which takes minutes."""
    monkeypatch.setattr(Compile, "apply", lambda self, net: net.compile(backend="aot_eager") if self.value else None)
    torch._dynamo.reset()
    plan = replace(PLAN, optimizer=SGD(lr=0.05))
    Trainer(fresh(), OBJECTIVE, train, plan, claim(tmp_path / "plain"), seed=1).fit()
    Trainer(fresh(), OBJECTIVE, train, replace(plan, compile=Compile.FAST), claim(tmp_path / "compiled"), seed=1).fit()
    plain, compiled = (weights(Run.open(tmp_path / name)) for name in ("plain", "compiled"))
    for name in plain:
        torch.testing.assert_close(plain[name], compiled[name], rtol=0, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 4
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shard": True}, "TORATraining trains different weights at every update.*Set plan.shard=false"),
        ({"grad_checkpointing": True}, "AdaptedViT does not support gradient checkpointing"),
    ],
)
def test_unsupported_settings_are_refused_before_the_first_update(
    train: Split, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    run, plan = claim(tmp_path / "run"), replace(PLAN, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        Trainer(fresh(), OBJECTIVE, train, plan, run, seed=1).fit()
    assert not list(run.checkpoints.glob("*.safetensors"))


def test_a_model_without_adapters_is_refused(train: Split, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this VisionTransformer has none"):
        Trainer(backbone(), OBJECTIVE, train, PLAN, claim(tmp_path / "run"), seed=1).fit()


def test_equal_blocks_are_compiled_once_per_stage(
    train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack's copy, the steps of each head, and phase 2; frozen parts fewer times."""
    made: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        made.append(len(graph.graph.nodes))
        return graph.forward

    def compile_units(self: Compile, net: nn.Module) -> None:
        for piece in family_of(net).compile_units(net):
            piece.compile(dynamic=False, backend=count)

    monkeypatch.setattr(Compile, "apply", compile_units)
    torch._dynamo.reset()
    plan = replace(PLAN, precision=Precision.BF16, attack_model=True, compile=Compile.BLOCKS)
    options = {"depth": 4, "embed_dim": 32, "num_heads": 2}
    model = models.tora(
        models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options), AdapterConfig()
    )
    start = {name: value.clone() for name, value in model.net.state_dict().items()}
    Trainer(model, OBJECTIVE, train, plan, claim(tmp_path / "run"), seed=1).fit()
    blocks, fused, last_adapters, last_fusion = 2, 4, 3, 2
    assert len(made) == blocks + fused + last_adapters + last_fusion
    moved = {name for name, value in model.net.state_dict().items() if not torch.equal(value, start[name])}
    assert not any(name.startswith(("backbone.", "fusions.3.")) for name in moved)
    assert "fusions.2.v.weight" in moved
