"""The loop: interrupted anywhere and started again, it ends with the same weights bit for bit."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from trainings import Interrupted, claim, interrupt_at, same, tiny_vit, weights  # type: ignore[import-not-found]

from vitadel import models
from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.data import Split
from vitadel.objectives import Adversarial, Examples, LossOutput, Standard
from vitadel.runs import Run
from vitadel.threats import Linf
from vitadel.train import SGD, AdamW, Lion, PadCrop, Precision, Trainer, TrainingConfig

PLAN = TrainingConfig(
    epochs=2,
    batch_size=16,
    optimizer=AdamW(lr=2e-3),
    warmup_epochs=0.5,
    clip_grad=1.0,
    ema=0.9,
    augment=PadCrop(pad=1, flip=False),
    checkpoint_every_steps=3,
    log_every_steps=2,
)
OBJECTIVE = Adversarial(PGD(steps=2, step_size=0.05, keep_best=False), Linf(0.1), eps_warmup=0.5)


def fresh() -> models.Model:
    # stochastic depth draws from the global generator at every step
    model: models.Model = tiny_vit(drop_path_rate=0.3)
    return model


def score(model: nn.Module) -> dict[str, float]:
    """Some number that moves with the weights."""
    return {"clean": 0.5, "robust": float(next(model.parameters()).detach().sum())}


@pytest.fixture(scope="module")
def whole(train: Split, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = claim(tmp_path_factory.mktemp("whole") / "run")
    Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    return run


@pytest.mark.parametrize("stop", [1, 3, 5, 8])
def test_interrupted_training_gives_the_same_weights(train: Split, whole: Run, tmp_path: Path, stop: int) -> None:
    with pytest.raises(Interrupted):
        Trainer(
            fresh(), OBJECTIVE, train, PLAN, claim(tmp_path / "run"), seed=7, validate=score, notify=interrupt_at(stop)
        ).fit()
    torch.manual_seed(123)  # the caller's random state must not matter
    resumed = claim(tmp_path / "run")
    steps: list[int] = []
    Trainer(
        fresh(),
        OBJECTIVE,
        train,
        PLAN,
        resumed,
        seed=7,
        validate=score,
        notify=lambda w, done, t, n: steps.append(done),
    ).fit()
    assert steps[0] == (stop - 1) // 3 * 3 + 1
    assert same(weights(resumed), weights(whole))
    assert same(weights(resumed, "best"), weights(whole, "best"))
    # also the means of a line whose updates came before and after the interruption
    logs = [[(entry["step"], entry["loss"]) for entry in run.read_log("step")] for run in (resumed, whole)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(("kept", "missing"), [(0, 3), (1, 2), (3, 0)])
def test_missing_log_lines_are_flagged(train: Split, tmp_path: Path, kept: int, missing: int) -> None:
    run, plan = claim(tmp_path / "run"), replace(PLAN, epochs=3)
    with pytest.raises(Interrupted):
        Trainer(fresh(), OBJECTIVE, train, plan, run, seed=7, notify=interrupt_at(8)).fit()
    log = run.folder / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:kept]))
    Trainer(fresh(), OBJECTIVE, train, plan, run, seed=7).fit()
    flags = [entry for entry in run.read_log("alarm") if entry["code"] == "log-incomplete"]
    assert [flag["evidence"] for flag in flags] == ([{"missing": missing}] if missing else [])


@pytest.mark.parametrize("optimizer", [Lion(lr=1e-4), SGD(lr=0.05)])
def test_every_optimizer_resumes_exactly(train: Split, tmp_path: Path, optimizer: Lion | SGD) -> None:
    plan = replace(PLAN, epochs=1, warmup_epochs=0, optimizer=optimizer, ema=None, checkpoint_every_steps=2)

    runs = [claim(tmp_path / name) for name in ("whole", "broken")]
    Trainer(fresh(), Standard(), train, plan, runs[0], seed=1).fit()
    with pytest.raises(Interrupted):
        Trainer(fresh(), Standard(), train, plan, runs[1], seed=1, notify=interrupt_at(3)).fit()
    Trainer(fresh(), Standard(), train, plan, runs[1], seed=1).fit()
    assert same(weights(runs[0]), weights(runs[1]))


def test_a_finished_run_is_not_trained_again(train: Split, whole: Run) -> None:
    def refuse(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        raise AssertionError("a step was made")

    before = weights(whole)
    model = Trainer(fresh(), OBJECTIVE, train, PLAN, whole, seed=7, validate=score, notify=refuse).fit()
    assert same(before, weights(whole))
    assert same(before, model.cpu().net.state_dict())


def test_another_seed_gives_other_weights(train: Split, whole: Run, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=8).fit()
    assert not same(weights(run), weights(whole))


def test_the_best_on_the_hold_out_is_kept(train: Split, tmp_path: Path) -> None:
    scores = iter([0.3, 0.9, 0.9, 0.1])
    kept: list[dict[str, Tensor]] = []

    def check(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, models.Model)
        assert not model.training
        kept.append({key: value.cpu().clone() for key, value in model.net.state_dict().items()})
        return {"clean": 1.0, "robust": next(scores)}

    run = claim(tmp_path / "run")
    Trainer(fresh(), Standard(), train, replace(PLAN, epochs=4), run, seed=0, validate=check).fit()
    # a tie keeps the earlier one
    assert same(weights(run, "best"), kept[1])
    assert [entry["robust"] for entry in run.read_log("holdout")] == [0.3, 0.9, 0.9, 0.1]


@pytest.mark.parametrize(
    ("others", "selected"),
    [(("fgsm", "clean"), "robust"), (("robust", "fgsm", "clean"), "score"), (("rob_clean",), "clean")],
)
def test_the_score_that_selects_is_found_by_its_name(
    train: Split, tmp_path: Path, others: tuple[str, ...], selected: str
) -> None:
    """Whatever comes last: the others get better at every validation."""
    best, better = iter([0.3, 0.9, 0.2, 0.1]), iter([0.1, 0.2, 0.3, 0.4])

    def check(model: nn.Module) -> dict[str, float]:
        return {selected: next(best), **dict.fromkeys(others, next(better))}

    run = claim(tmp_path / "run")
    Trainer(fresh(), Standard(), train, replace(PLAN, epochs=4), run, seed=0, validate=check).fit()
    _, metadata = models.read_tensors(run.checkpoints / "best.safetensors")
    assert f"'{selected}': 0.9" in metadata["vitadel.selected"]


def test_the_weight_average_matches_its_formula(train: Split, tmp_path: Path) -> None:
    seen: list[Tensor] = []
    model = fresh()
    weight = model.net.get_parameter("head.bias")

    def watch(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        seen.append(weight.detach().cpu().clone())

    start = weight.detach().clone()
    averaged = Trainer(
        model,
        Standard(),
        train,
        replace(PLAN, epochs=1, warmup_epochs=0),
        claim(tmp_path / "r"),
        seed=0,
        notify=watch,
    ).fit()
    expected = start
    for value in seen:
        expected = 0.9 * expected + 0.1 * value
    torch.testing.assert_close(averaged.net.get_parameter("head.bias").detach().cpu(), expected)


def test_each_epoch_sees_each_image_once_in_another_order(train: Split, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Recorder(Standard):
        def prepare(
            self, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, index_B: Tensor | None = None
        ) -> Examples:
            assert index_B is not None
            torch.testing.assert_close(x.cpu(), train.images(index_B))
            assert torch.equal(y.cpu(), train.labels[index_B.cpu()])
            seen.append(index_B.tolist())
            return Examples(x, y, x)

    recorder = Recorder()
    Trainer(fresh(), recorder, train, replace(PLAN, augment=None), claim(tmp_path / "run"), seed=0).fit()
    per_epoch = len(train) // 16
    epochs = [[row for rows in seen[i : i + per_epoch] for row in rows] for i in (0, per_epoch)]
    assert [len(set(rows)) for rows in epochs] == [per_epoch * 16] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("log_every", [1, 50])
def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(train: Split, tmp_path: Path, log_every: int) -> None:
    calls: list[int] = []

    class Diverging(Standard):
        def loss(self, model: nn.Module, examples: Examples) -> LossOutput:
            calls.append(1)
            step = Standard().loss(model, examples)
            return step if len(calls) < 4 else LossOutput(step.loss * float("nan"))

    run = claim(tmp_path / "run")
    with pytest.raises(UsageError, match="the loss is no longer finite at step 4.*the last checkpoint is untouched"):
        Trainer(
            fresh(), Diverging(), train, replace(PLAN, checkpoint_every_steps=1, log_every_steps=log_every), run, seed=0
        ).fit()
    newest = max(run.checkpoints.glob("step-*"))
    assert all(value.isfinite().all() for value in models.read_tensors(newest)[0].values())


def test_a_truncated_checkpoint_is_named_and_the_previous_one_used(train: Split, whole: Run, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    newest = max(run.checkpoints.glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:1000])
    (run.checkpoints / "final.safetensors").unlink()
    with pytest.raises(UsageError, match=f"{newest.name} is damaged.*Delete it"):
        Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    newest.unlink()
    Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    assert same(weights(run), weights(whole))


def test_a_flipped_bit_in_a_checkpoint_is_detected(train: Split, whole: Run, tmp_path: Path) -> None:
    run = Run.claim(tmp_path / "run", "train", {"seed": 0}, device="cpu")
    shutil.copytree(whole.checkpoints, run.checkpoints)
    for newest in (max(run.checkpoints.glob("step-*")), run.checkpoints / "best.safetensors"):
        content = bytearray(newest.read_bytes())
        content[-5] ^= 1  # the lowest bits of a weight
        newest.write_bytes(content)
    with pytest.raises(UsageError, match=r"step-\d+\.safetensors is damaged .*Delete it: the run then resumes from"):
        Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    with pytest.raises(UsageError, match=r"best\.safetensors is damaged: its content does not match the hash"):
        models.load(run.folder)


def test_training_does_not_resume_without_the_best_weights(train: Split, whole: Run, tmp_path: Path) -> None:
    """The best score came before the newest checkpoint, so resuming would not write the file again."""
    run = Run.claim(tmp_path / "run", "train", {"seed": 0}, device="cpu")
    shutil.copytree(whole.checkpoints, run.checkpoints)
    (run.checkpoints / "best.safetensors").unlink()
    with pytest.raises(UsageError, match=r"best\.safetensors is missing, .* or delete .*/step-\*\.safetensors and the"):
        Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    for state in run.checkpoints.glob("step-*"):  # as the error advises
        state.unlink()
    Trainer(fresh(), OBJECTIVE, train, PLAN, run, seed=7, validate=score).fit()
    assert same(weights(run, "best"), weights(whole, "best"))
    assert same(weights(run), weights(whole))


def test_one_process_can_train_in_several_precisions(train: Split, tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=1, warmup_epochs=0)
    for number, precision in enumerate((Precision.FLOAT32, Precision.BF16, Precision.FLOAT32)):
        run = claim(tmp_path / str(number))
        Trainer(fresh(), OBJECTIVE, train, replace(plan, precision=precision), run, seed=0).fit()
    exact, rounded, again = (weights(Run.open(tmp_path / str(number))) for number in range(3))
    assert same(exact, again)
    assert not same(exact, rounded)
    assert {value.dtype for value in rounded.values()} == {torch.float32}


def test_an_empty_split_is_refused(train: Split, tmp_path: Path) -> None:
    empty = train.take(torch.tensor([], dtype=torch.int64))
    with pytest.raises(UsageError, match="the training split is empty"):
        Trainer(fresh(), Standard(), empty, PLAN, claim(tmp_path / "run"), seed=0).fit()
