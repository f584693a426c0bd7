"""How users call attacks: labels or goals, texts or threats, and the calls of other libraries."""

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitadel as vd
from vitadel.attacks import (
    AAS,
    APGD,
    FAB,
    FGSM,
    GAMA,
    PGD,
    Attack,
    AttackResult,
    AutoAttack,
    Factors,
    NamedAttack,
    Square,
)
from vitadel.attacks.parsing import parse_attack_and_goal
from vitadel.core.errors import UsageError
from vitadel.evaluate import AttackSuite
from vitadel.evaluate.parsing import as_suites
from vitadel.goals import Targeted, Untargeted
from vitadel.losses import margin
from vitadel.objectives import Adversarial
from vitadel.threats import Linf

# called in ways that a type checker refuses, as users without one do
api: Any = vd


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 6, 4)).eval()


@pytest.fixture
def x() -> Tensor:
    return torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def same(one: AttackResult, other: AttackResult) -> bool:
    return torch.equal(one.x_adv, other.x_adv) and torch.equal(one.success, other.success)


def test_labels_and_text_are_read_as_goal_and_threat(net: nn.Module, x: Tensor) -> None:
    y = torch.tensor([0, 1, 2, 3, 0])
    whole = PGD(steps=5)(net, x, Untargeted(y), Linf(8 / 255), seed=0)
    assert same(PGD(steps=5)(net, x, y, "linf:8/255"), whole)
    assert same(PGD(steps=5)(net, x, y.tolist(), "Linf:8/255"), whole)
    assert same(PGD(steps=5)(net, x, np.asarray(y), "linf:0.03137254901960784"), whole)
    assert not same(PGD(steps=5)(net, x, y, "linf:8/255", seed=1), whole)


def test_labels_use_the_loss_of_the_attack(net: nn.Module, x: Tensor) -> None:
    y = net(x).argmax(1)
    by_margin = Square(queries=20)(net, x, Untargeted(y, margin), "linf:8/255")
    assert same(Square(queries=20)(net, x, y, "linf:8/255"), by_margin)


def test_attacks_are_attributes_of_the_package(net: nn.Module, x: Tensor) -> None:
    result = vd.attacks.FGSM()(net, x, net(x).argmax(1), "linf:8/255")
    assert result.x_adv.shape == x.shape
    assert repr(result).startswith(
        f"AttackResult({int(result.success.sum())} of 5 images succeed, distance up to 0.03137"
    )


@pytest.mark.parametrize(
    ("kind", "with_model", "settings", "message"),
    [
        (
            PGD,
            True,
            {"eps": 8 / 255, "alpha": 0.01, "steps": 10},
            'an attack holds no model. Write PGD(step_size=0.01, steps=10)(model, x, y, "linf:8/255").',
        ),
        (FGSM, True, {}, 'an attack holds no model. Write FGSM()(model, x, y, "linf:8/255").'),
        (
            PGD,
            False,
            {"eps": 0.5, "norm": "L2"},
            "PGD has no setting 'eps'. Write PGD()(model, x, y, \"l2:0.5\").",
        ),
        (
            APGD,
            False,
            {"n_iter": 50, "n_restarts": 2},
            "APGD has no setting 'n_iter'. Write APGD(steps=50, restarts=2)(model, x, y, \"linf:8/255\").",
        ),
        (FAB, False, {"stepz": 3}, "FAB has no setting 'stepz'. Its settings are steps, restarts, targets."),
    ],
)
def test_calls_of_other_libraries_name_the_line_to_write(
    kind: Any, with_model: bool, settings: dict[str, object], message: str, net: nn.Module
) -> None:
    with pytest.raises(UsageError) as raised:
        kind(*([net] if with_model else []), **settings)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("kind", "args", "line"),
    [
        (PGD, (4 / 255, 1 / 255, 7), 'PGD(step_size=1/255, steps=7)(model, x, y, "linf:4/255")'),
        (FGSM, (2 / 255,), 'FGSM()(model, x, y, "linf:2/255")'),
        (APGD, ("L2", 0.5, 7, 2), 'APGD(steps=7, restarts=2)(model, x, y, "l2:0.5")'),
        (vd.attacks.AutoAttack, ("L2", 0.5, "rand"), "AutoAttack(version='rand')(model, x, y, \"l2:0.5\")"),
    ],
)
def test_positional_arguments_of_other_libraries_are_in_the_line_to_write(
    kind: Any, args: tuple[object, ...], line: str, net: nn.Module
) -> None:
    with pytest.raises(UsageError) as raised:
        kind(net, *args)
    assert str(raised.value) == f"an attack holds no model. Write {line}."


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda net, x, y: PGD()(x, y), 'PGD()(model, x, y, "linf:8/255")'),
        (lambda net, x, y: PGD(steps=3)(net, x, y), 'PGD(steps=3)(model, x, y, "linf:8/255")'),
        (lambda net, x, y: PGD()(net, x), 'PGD()(model, x, y, "linf:8/255")'),
        (lambda net, x, y: PGD()(net, x, y, eps=4 / 255), 'PGD()(model, x, y, "linf:4/255")'),
        (lambda net, x, y: PGD()(net, x, y, epsilons=[0.5], norm="L2"), 'PGD()(model, x, y, "l2:0.5")'),
        (lambda net, x, y: PGD()(net, x, y, "l2:1", alpha=0.1), 'PGD(step_size=0.1)(model, x, y, "l2:1")'),
        (
            lambda net, x, y: PGD()(net, x, y, "l2:1", targeted=True),
            'PGD()(model, x, vd.goals.Targeted(classes), "l2:1")',
        ),
        (lambda net, x, y: api.attacks.PGD(steps=3).forward(x, y), 'PGD(steps=3)(model, x, y, "linf:8/255").x_adv'),
        (
            lambda net, x, y: api.attacks.AutoAttack().run_standard_evaluation(x, y, bs=3),
            'vd.robustness(model, x, y, "linf:8/255", AutoAttack())',
        ),
        (
            lambda net, x, y: api.attacks.PGD().set_mode_targeted_by_label(),
            'PGD()(model, x, vd.goals.Targeted(classes), "linf:8/255")',
        ),
    ],
)
def test_calls_as_in_other_libraries_name_the_line_to_write(call: Any, line: str, net: nn.Module, x: Tensor) -> None:
    y = net(x).argmax(1)
    with pytest.raises(UsageError) as raised:
        call(net, x, y)
    assert str(raised.value).endswith(f" Write {line}.")


def test_unknown_arguments_and_attributes_are_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(UsageError, match="unknown argument of PGD.* 'sed'. Did you mean 'seed'"):
        PGD()(net, x, net(x).argmax(1), "linf:8/255", sed=3)
    with pytest.raises(AttributeError, match="'PGD' object has no attribute 'stepz'"):
        _ = PGD().stepz  # type: ignore[attr-defined]
    assert not hasattr(PGD(), "forward")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("CW", 'PGD(steps=100)(model, x, vd.goals.Untargeted(y, vd.losses.margin), "l2:0.5")'),
        ("LinfPGD", 'PGD()(model, x, y, "linf:8/255")'),
        ("BIM", "PGD(random_start=False)"),
    ],
)
def test_attacks_of_other_libraries_name_the_attack_to_use(name: str, line: str) -> None:
    for package in (vd, vd.attacks):
        with pytest.raises(AttributeError, match=f"{re.escape(f'Write vd.attacks.{line}')}$"):
            getattr(package, name)
    with pytest.raises(AttributeError, match=r'Write vd.load_model\("timm:NAME"\)$'):
        _ = api.create_model


def test_an_attack_prints_its_settings_and_a_result_becomes_json(net: nn.Module, x: Tensor) -> None:
    assert repr(PGD(steps=3, step_size=2 / 255)) == (
        "PGD(steps=3, step_size=2/255, random_start=True, start_noise=None, restarts=1, schedule=constant, "
        "keep_best=True, targets=0)"
    )
    assert eval(repr(PGD()), vars(vd.attacks)) == PGD()  # noqa: S307
    result = PGD(steps=2)(net, x, net(x).argmax(1), "linf:8/255")
    content = json.loads(json.dumps(result.to_dict()))
    assert content["success"] == result.success.tolist()
    assert (content["forwards"], content["flags"]) == (result.forwards, [])


def test_other_types_than_labels_and_goals_are_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(UsageError, match=r"takes labels \[B\] or a goal such as Untargeted\(labels\), got float"):
        PGD()(net, x, 0.5, "linf:8/255")  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", [Square(queries=20), AAS(Square(queries=20), factors=Factors((1.0,)))])
def test_an_attack_has_the_same_loss_everywhere(attack: Attack) -> None:
    assert attack.goal_loss is margin
    assert NamedAttack("square", attack).loss is margin
    (suite,) = as_suites(attack)
    assert isinstance(suite, AttackSuite)
    assert [one.loss for one in suite.attacks] == [margin]


def test_training_maximizes_the_loss_of_its_attack(net: nn.Module, x: Tensor) -> None:
    y = net(x).argmax(1)
    objective = Adversarial(attack=Square(queries=20), threat=Linf(8 / 255))
    crafted = objective.untargeted_examples(net, x, y, 0, torch.arange(len(x))).x_adv
    by_margin = Square(queries=20)(net, x, Untargeted(y, margin), "linf:8/255", seed=0)
    assert torch.equal(crafted, by_margin.x_adv)


@pytest.mark.parametrize("text", ["gama:loss=dlr", "fab:loss=ce", "apgd:targets=9,loss=dlr", "fab:target=runner-up"])
def test_losses_and_targets_without_effect_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"has an objective of its own, got \w+=[\w-]+ as well\. Leave \w+= out\."):
        parse_attack_and_goal(text)


@pytest.mark.parametrize("attack", [GAMA(steps=1), FAB(steps=1), AutoAttack(), APGD(steps=1, targets=2)])
def test_other_goals_name_the_line_to_write(net: nn.Module, x: Tensor, attack: Attack) -> None:
    with pytest.raises(UsageError, match=r"needs an Untargeted goal, got Targeted\. Write Untargeted\(y\), or leave"):
        attack(net, x, Targeted(net(x).argmin(1)), "linf:8/255")
