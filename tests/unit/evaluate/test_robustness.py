"""One call on tensors: the verdicts of an evaluation, valid adversarial examples, state of the caller unchanged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluations import evaluate  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import data, robustness
from vitadel.api.results import Robustness
from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Attack, AutoAttack, Engine, Square
from vitadel.core.errors import UsageError
from vitadel.core.stats import accuracy
from vitadel.data import DataSet, Squash
from vitadel.evaluate import SUITES, AttackSuite, NamedAttack
from vitadel.goals import Untargeted
from vitadel.losses import margin
from vitadel.runs import Run
from vitadel.threats import L1, L2, Linf, Threat

SMALL = (
    NamedAttack("fgsm", FGSM()),
    NamedAttack("pgd", PGD(steps=5), margin),
    NamedAttack("apgd-t", APGD(steps=10, targets=3)),
    NamedAttack("fab", FAB(steps=5)),
    NamedAttack("square", Square(queries=30), margin),
)


class Bent(nn.Module):
    """A small network with a dropout and a norm, both of which behave differently in training mode."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.second = nn.Linear(192, 24), nn.Linear(24, classes)
        self.norm, self.drop = nn.BatchNorm1d(24), nn.Dropout(0.5)
        with torch.no_grad():
            for weight in (self.first.weight, self.second.weight):
                weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
            self.first.bias.zero_()
            self.second.bias.zero_()
        self.second.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(self.drop(self.norm(self.first(4 * x.flatten(1) - 2).tanh())))
        return logits


@pytest.fixture(scope="module")
def digits() -> DataSet:
    """The digits, three in four with the label that the model gives."""
    split = data.load("digits[:48]", preprocess=Squash(8)).test
    with torch.no_grad():
        labels = Bent().eval()(split.images(torch.arange(48))).argmax(1)
    labels[::4] = (labels[::4] + 1) % 10
    return replace(data.load("digits[:48]", preprocess=Squash(8)), test=replace(split, labels=labels))


def tensors_of(dataset: DataSet) -> tuple[Tensor, Tensor]:
    return dataset.test.images(torch.arange(48)), dataset.test.labels


@pytest.mark.parametrize("suite", ["clean", "quick"])
def test_a_named_suite_matches_an_evaluation(digits: DataSet, tmp_path: Path, suite: str) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    result = robustness(model, x, y, "linf:16/255", suite, seed=5, engine=Engine(batch_size=7))
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 5}, device="cpu")
    (summary,) = evaluate(model, digits, SUITES[suite], run, threat=Linf(16 / 255), seed=5, batch=11)
    rows = run.results(str(summary["name"])).rows()
    assert list(result.broken_by) == rows["broken_by"]
    assert list(result.prediction) == rows["prediction"]
    assert list(result.distance) == rows["distance"]
    assert result.clean.correct == summary["clean"]["correct"] == 36
    assert result.robust == accuracy(result.broken_by.count(""), 48)
    if suite == "quick":
        assert result.robust.accuracy == summary["robust"]["accuracy"]
        assert 0 < result.robust.correct < 36
    costs = [{k: v for k, v in attack.items() if k != "seconds"} for attack in result.record.to_json()["attacks"]]  # type: ignore[attr-defined]
    attack_records = summary["attacks"]
    assert isinstance(attack_records, list)
    assert costs == [{k: v for k, v in attack.items() if k != "seconds"} for attack in attack_records]


def check(result: Robustness, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> None:
    """What is reported of every image is true of the returned image."""
    assert result.x_adv.dtype == torch.float32
    assert result.x_adv.shape == x.shape
    assert float(result.x_adv.min()) >= 0
    assert float(result.x_adv.max()) <= 1
    sizes = threat.distance(result.x_adv, x)
    assert float(sizes.max()) <= threat.eps * (1 + 1e-6)
    with torch.no_grad():
        predictions, clean = model(result.x_adv).argmax(1), model(x).argmax(1)
    for row, to in enumerate(result.broken_by):
        if to == "clean":
            assert clean[row] != y[row]
            assert result.prediction[row] == clean[row]
            assert torch.equal(result.x_adv[row], x[row])
        elif to == "":
            assert predictions[row] == clean[row] == y[row] == result.prediction[row]
            assert not torch.equal(result.x_adv[row], x[row])
        else:
            assert predictions[row] == result.prediction[row] != y[row]
            assert result.distance[row] == pytest.approx(float(sizes[row]), rel=1e-5)


@pytest.mark.parametrize("threat", [Linf(6 / 255), L2(0.4), L1(2.0)], ids=["linf", "l2", "l1"])
@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_returned_images_match_the_reported_results(digits: DataSet, threat: Threat, precision: str) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    # FGSM and PGD are weak here, so that the others break more
    own = (NamedAttack("fgsm", FGSM(step_size=threat.eps / 3)), *SMALL[2:])
    result = robustness(model, x, y, threat, own, engine=Engine(precision=precision))
    check(result, model, x, y, threat)
    kinds = set(result.broken_by)
    assert {"clean", "", "fgsm", "apgd-t"} <= kinds
    assert list(result.flags) == []


@pytest.mark.parametrize("threat", [Linf(2 / 255), L2(0.1), L1(0.5)], ids=["linf", "l2", "l1"])
def test_attempts_outside_the_ball_are_projected(digits: DataSet, threat: Threat) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    result = robustness(model, x, y, threat, [NamedAttack("fab", FAB(steps=10))])
    sizes = threat.distance(result.x_adv, x)
    assert float(sizes.max()) <= threat.eps * (1 + 1e-6)
    assert float(result.x_adv.min()) >= 0
    assert float(result.x_adv.max()) <= 1
    # FAB fooled the model outside only: such images end at the boundary
    robust_rows = [row for row, to in enumerate(result.broken_by) if to == ""]
    assert sum(float(sizes[row]) > 0.999 * threat.eps for row in robust_rows) > 5


def test_a_cascade_breaks_what_each_attack_breaks(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    chain = robustness(model, x, y, "linf:6/255", SMALL, seed=2)
    alone = [robustness(model, x, y, "linf:6/255", [entry], seed=2) for entry in SMALL]
    for row, to in enumerate(chain.broken_by):
        felling = [entry.name for entry, one in zip(SMALL, alone, strict=True) if one.broken_by[row] == entry.name]
        if to not in ("", "clean"):
            assert felling[0] == to
        else:
            assert felling == []
    assert [attack.name for attack in chain.attacks] == [entry.name for entry in SMALL]
    broken = [attack.broken for attack in chain.attacks]
    tried = [attack.tried for attack in chain.attacks]
    assert tried == [36 - sum(broken[:i]) for i in range(len(SMALL))]
    assert chain.robust.correct == 36 - sum(broken)
    assert chain.seconds > 0


def test_autoattack_in_a_custom_list_is_expanded(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    reported: list[str] = []
    result = robustness(
        model,
        x[:8],
        y[:8],
        Linf(0.5),
        [NamedAttack("aa", AutoAttack())],
        progress=lambda what, *_: reported.append(what),
    )
    assert [attack.name for attack in result.attacks] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert result.robust.correct == 0
    assert reported.count("attack-linf-0.5 clean") == 1
    assert reported.count("attack-linf-0.5 apgd-ce") == result.clean.correct == 6


def test_state_of_the_caller_is_unchanged(digits: DataSet) -> None:
    model, (x, y) = Bent(), tensors_of(digits)
    model.train()
    model.norm.eval()
    x_before, y_before = x.clone(), y.clone()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    wanted = {name: weight.requires_grad for name, weight in model.named_parameters()}
    assert set(modes.values()) == set(wanted.values()) == {True, False}
    torch.manual_seed(99)
    state = torch.get_rng_state()
    result = robustness(model, x, y, "linf:6/255", SMALL, engine=Engine(precision="fp16"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == wanted
    assert all(weight.grad is None for weight in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    # and it was judged in evaluation mode: dropout would have changed predictions
    still = robustness(Bent().eval(), x, y, "linf:6/255", SMALL, engine=Engine(precision="fp16"))
    assert result.broken_by == still.broken_by
    assert torch.equal(result.x_adv, still.x_adv)
    result.x_adv.zero_()
    assert torch.equal(x, x_before)


def test_results_depend_on_the_seed_alone(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    one, same, other = (
        robustness(
            model, x, y, "linf:6/255", [NamedAttack("pgd", PGD(steps=3))], seed=seed, engine=Engine(batch_size=rows)
        )
        for seed, rows in ((1, 5), (1, 48), (2, 48))
    )
    assert one.broken_by == same.broken_by
    torch.testing.assert_close(one.x_adv, same.x_adv, rtol=0, atol=1e-6)
    assert not torch.allclose(one.x_adv, other.x_adv, atol=1e-3)


def test_other_float_types_are_accepted(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    plain = robustness(model, x, y, "linf:6/255", SMALL[:2])
    double = robustness(model, x.double(), y.to(torch.uint8), "linf:6/255", SMALL[:2])
    assert plain.broken_by == double.broken_by
    assert torch.equal(plain.x_adv, double.x_adv)


@pytest.mark.parametrize("threat", ["linf:1", "l1:100"])
@pytest.mark.parametrize(
    "attack",
    [PGD(steps=10**6, step_size=1.0), APGD(steps=10**6), FAB(steps=10**6), GAMA(steps=10**6), Square(queries=10**6)],
)
def test_a_search_of_the_most_steps_ends_at_its_first_success(attack: Attack, threat: str) -> None:
    """Its tables are made for all steps; the images of a linear model are broken by one of the first."""
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)), torch.rand(2, 3, 8, 8)
    assert robustness(net, x, net(x).argmax(1), threat, suite=attack, progress=False).robust_accuracy == 0


def test_errors_are_one_sentence() -> None:
    model = Bent().eval()
    x, y = torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)
    mistakes: list[tuple[Tensor, Tensor, str, str]] = [
        ((x * 255).byte(), y, "quick", r"got torch\.uint8 of shape \[4, 3, 8, 8\]\. Write x\.float\(\) / 255"),
        (x[0], y, "quick", r"images must be .*got \[3, 8, 8\]\. Write x\.unsqueeze\(0\)"),
        (x[:0], y[:0], "quick", "attacks take at least one image, got an empty batch"),
        (x, y[:3], "quick", r"got 4 images and labels of shape \[3\]\. Give one label per image\."),
        (x, y[:, None], "quick", r"got 4 images and labels of shape \[4, 1\]\. Give one label per image\."),
        (x, y + 10, "quick", r"outputs of shape \[4, 10\] for 4 images, the data has labels from 10 to 10"),
        (x, y - 1, "quick", r"outputs of shape \[4, 10\] for 4 images, the data has labels from -1 to -1"),
        (2 * x, y, "quick", r"attacks take pixels in \[0, 1\], got \[.*Normalization belongs inside the model"),
        (x - 1, y, "quick", r"attacks take pixels in \[0, 1\], got \[-"),
        (x * torch.nan, y, "quick", r"attacks take pixels in \[0, 1\], got \[nan, nan\]"),
        (x, y, "quik", r"unknown suite or attack 'quik'\. Did you mean 'quick'\? Known: apgd, autoattack,"),
    ]
    for images, labels, suite, message in mistakes:
        with pytest.raises(UsageError, match=message) as raised:
            robustness(model, images, labels, "linf:8/255", suite)
        assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="unknown threat 'lnf'. Did you mean 'linf'"):
        robustness(model, x, y, "lnf:8/255", "quick")
    with pytest.raises(UsageError, match='a threat is a text such as "linf:8/255", or one of Linf, L2, L1, got 0.03'):
        robustness(model, x, y, 8 / 255, "quick")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Engine.batch_size must be at least 1, got 0"):
        robustness(model, x, y, "linf:8/255", "quick", engine=Engine(batch_size=0))


def test_a_custom_suite_needs_no_name() -> None:
    suite = AttackSuite("mine", "", SMALL)
    assert suite.stages(Linf(0.1)) == SMALL
    result = robustness(Bent().eval(), torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64), Linf(0.1), ())
    assert result.robust == result.clean
    assert list(result.attacks) == []


class Full(nn.Module):
    """A device that holds three images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise torch.OutOfMemoryError("full")
        logits: Tensor = self.model(x)
        return logits


@pytest.mark.parametrize("attack", [APGD(steps=5), FGSM(), PGD(steps=2, keep_best=False)], ids=["apgd", "fgsm", "pgd"])
def test_out_of_memory_halves_the_batch(digits: DataSet, attack: Attack) -> None:
    x, y = tensors_of(digits)
    entries = (NamedAttack("one", attack),)
    model, few = Bent().eval(), Full(Bent().eval())
    assert (
        robustness(few, x, y, Linf(0.02), entries).broken_by == robustness(model, x, y, Linf(0.02), entries).broken_by
    )
    with pytest.raises(UsageError, match="out of memory with a single image"):
        robustness(nn.Sequential(Full(model), Fails()), x, y, Linf(0.02), entries)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("full")


class Recording(nn.Module):
    """Records its precision, and the largest batch that it got with a gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.precisions: set[torch.dtype] = set()
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        self.precisions.add(logits.dtype)
        self.most = max(self.most, len(x) if logits.requires_grad else 0)
        return logits


def test_autocast_around_the_call_changes_no_result(digits: DataSet) -> None:
    x, y = tensors_of(digits)
    model, plain = Recording(Bent().eval()), robustness(Bent().eval(), x, y, Linf(0.02), SMALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = robustness(model, x, y, Linf(0.02), SMALL)
        assert torch.is_autocast_enabled("cpu")
    assert model.precisions == {torch.float32}
    assert result.broken_by == plain.broken_by
    assert torch.equal(result.x_adv, plain.x_adv)


def test_batches_never_exceed_the_batch_size(digits: DataSet) -> None:
    """A CPU process that runs out of memory is killed and cannot halve the batch."""
    x, y = tensors_of(digits)
    model = Recording(Bent().eval())
    robustness(
        model,
        x,
        y,
        Linf(0.02),
        (NamedAttack("apgd", APGD(steps=2)), NamedAttack("fgsm", FGSM())),
        engine=Engine(batch_size=5),
    )
    assert model.most == 5


def test_large_images_have_small_batches_on_a_cpu() -> None:
    model = Recording(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 10)))
    x, y = torch.rand(20, 3, 224, 224), torch.arange(20) % 10
    APGD(steps=1, targets=3)(model, x, Untargeted(y), Linf(0.01), seed=0)
    assert model.most == 15  # of 16 rows, three for each image


class Wrapped(nn.Module):
    """Returns logits as Hugging Face's models do."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x.flatten(1)[:, :10]}


def test_logits_inside_other_structures_are_refused() -> None:
    x, y = torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    message = r"should return logits, got a dict\. Wrap it .* `net\(x\)\.logits`"
    with pytest.raises(UsageError, match=message):
        robustness(Wrapped(), x, y)
    with pytest.raises(UsageError, match=message):
        PGD()(Wrapped(), x, Untargeted(y), Linf(0.1), seed=0)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_model_is_evaluated_in_the_precision_of_its_weights(digits: DataSet, precision: torch.dtype) -> None:
    model, (x, y) = Bent().to(precision).eval(), tensors_of(digits)
    result = robustness(model, x, y, Linf(6 / 255), SMALL)
    assert {attack.name for attack in result.attacks} == {entry.name for entry in SMALL}
    assert list(result.flags) == []
    with torch.no_grad():
        clean, predictions = model(x.to(precision)).argmax(1), model(result.x_adv.to(precision)).argmax(1)
    assert result.clean.correct == int((clean == y).sum())
    assert result.robust.correct == result.broken_by.count("")
    assert {"clean", ""} < set(result.broken_by)
    for row, to in enumerate(result.broken_by):
        assert (predictions[row] == y[row]) == (to == ""), row
    own = robustness(model, x.to(precision), y.int(), Linf(6 / 255), SMALL)  # pixels of its own precision, too
    assert own.x_adv.dtype == torch.float32
    assert abs(own.robust.correct - result.robust.correct) <= 2
    if precision == torch.float64:
        assert list(result.broken_by) == list(robustness(Bent().eval(), x, y, Linf(6 / 255), SMALL).broken_by)


def test_an_evaluation_names_the_precision_of_the_model(digits: DataSet, tmp_path: Path) -> None:
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    (summary,) = evaluate(Bent().bfloat16().eval(), digits, SUITES["quick"], run, threat=Linf(6 / 255))
    assert summary["search_precision"] == "bf16"


def test_arrays_and_lists_are_accepted_like_tensors(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    result = robustness(model, x, y, Linf(6 / 255), SMALL)
    assert robustness(model, x.numpy(), y.tolist(), Linf(6 / 255), SMALL).broken_by == result.broken_by
    pairs = [(x[:20], y[:20]), (x[20:], y[20:])]
    assert robustness(model, pairs, threat=Linf(6 / 255), suite=SMALL).broken_by == result.broken_by


def test_the_result_prints_formats_and_converts(digits: DataSet) -> None:
    model, (x, y) = Bent().eval(), tensors_of(digits)
    result = robustness(model, x, y, "linf:6/255", SMALL, progress=False)
    first, second = str(result).split("\n\n")
    assert first.splitlines()[0].split() == ["threat", "images", "clean", "robust", "flags"]
    assert first.splitlines()[1].split()[:3] == ["linf:6/255", "48", f"{result.clean_accuracy:.1%}"]
    assert [line.split()[0] for line in second.splitlines()] == ["attack", *(attack.name for attack in SMALL)]
    assert f"{result.robust_accuracy:.1%}" in first
    assert result.robust_accuracy == result.broken_by.count("") / 48
    written = json.loads(json.dumps(result.to_dict()))
    assert written["robust"]["correct"] == result.robust.correct
    assert written["broken_by"] == list(result.broken_by)
