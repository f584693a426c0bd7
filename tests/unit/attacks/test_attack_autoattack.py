"""AutoAttack: the published stages and budgets, models with few classes, and the cascade by hand.

Shape letters: B images, K classes.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from vitadel.attacks import (
    APGD,
    FAB,
    Attack,
    AutoAttack,
    AutoAttackPlus,
    AutoAttackRand,
    NamedAttack,
    Square,
    parse_attack,
)
from vitadel.attacks.autoattack import VERSIONS
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Targeted, Untargeted
from vitadel.losses import cross_entropy, dlr, margin
from vitadel.runs import describe
from vitadel.threats import L1, L2, Linf, Threat


def briefly(threat: Threat) -> tuple[NamedAttack, ...]:
    """The standard stages with a few steps each."""
    short = {APGD: {"steps": 5}, FAB: {"steps": 4}, Square: {"queries": 20}}
    stages = AutoAttack("standard").stages(threat)
    return tuple(
        replace(stage, attack=replace(stage.attack, **short[type(stage.attack)]))  # type: ignore[type-var]
        for stage in stages
    )


def net(classes: int) -> tuple[Oracle, Tensor, Tensor]:
    """A small random net, twelve images and their labels, some of them easy to fool."""
    generator = torch.Generator().manual_seed(classes)
    inner = torch.randn(48, 16, dtype=torch.float64, generator=generator) / 4
    outer = torch.randn(16, classes, dtype=torch.float64, generator=generator)
    x0 = torch.rand(12, 3, 4, 4, dtype=torch.float64, generator=generator)

    def model(x: Tensor) -> Tensor:
        return (x.flatten(1) @ inner).tanh() @ outer

    return Oracle(model), x0, model(x0).argmax(1)


@pytest.mark.parametrize("threat", [Linf(8 / 255), L2(0.5)])
def test_standard_stages_are_as_published(threat: Threat) -> None:
    assert AutoAttack().stages(threat) == (
        NamedAttack("apgd-ce", APGD(steps=100, restarts=1), cross_entropy),
        NamedAttack("apgd-t", APGD(steps=100, restarts=1, targets=9), margin),
        NamedAttack("fab-t", FAB(steps=100, restarts=1, targets=9), margin),
        NamedAttack("square", Square(queries=5000, p_init=0.8, restarts=1), margin),
    )


def test_standard_stages_in_l1() -> None:
    assert AutoAttack("standard").stages(L1(12)) == (
        NamedAttack("apgd-ce", APGD(steps=100, restarts=5, use_larger_eps=True), cross_entropy),
        NamedAttack("apgd-t", APGD(steps=100, restarts=1, targets=5, use_larger_eps=True), margin),
        NamedAttack("fab-t", FAB(steps=100, restarts=1, targets=9), margin),
        NamedAttack("square", Square(queries=5000, p_init=0.8, restarts=1), margin),
    )


@pytest.mark.parametrize("threat", [Linf(8 / 255), L2(0.5), L1(12)])
def test_stages_of_the_other_versions(threat: Threat) -> None:
    sparse = isinstance(threat, L1)
    assert AutoAttack("plus").stages(threat) == (
        NamedAttack("apgd-ce", APGD(steps=100, restarts=5, use_larger_eps=sparse), cross_entropy),
        NamedAttack("apgd-dlr", APGD(steps=100, restarts=5, use_larger_eps=sparse), dlr),
        NamedAttack("fab", FAB(steps=100, restarts=5), margin),
        NamedAttack("square", Square(queries=5000, p_init=0.8, restarts=1), margin),
        NamedAttack("apgd-t", APGD(steps=100, restarts=1, targets=9, use_larger_eps=sparse), margin),
        NamedAttack("fab-t", FAB(steps=100, restarts=1, targets=9), margin),
    )
    assert AutoAttack("rand").stages(threat) == (
        NamedAttack("apgd-ce", APGD(steps=100, restarts=1, eot_samples=20, use_larger_eps=sparse), cross_entropy),
        NamedAttack("apgd-dlr", APGD(steps=100, restarts=1, eot_samples=20, use_larger_eps=sparse), dlr),
    )


def test_costs_of_a_robust_image() -> None:
    """101 queries for each run of APGD and FAB, and a start and 5000 for Square."""
    threat, costs = Linf(8 / 255), {}
    for stage in AutoAttack().stages(threat):
        assert isinstance(stage.attack, (APGD, FAB, Square))
        costs[stage.name] = stage.attack.num_steps(threat) * stage.attack.num_branches(10) * stage.attack.restarts
    assert costs == {"apgd-ce": 101, "apgd-t": 909, "fab-t": 909, "square": 5001}


@pytest.mark.parametrize("norm", [Linf(0.1), L2(0.7), L1(2.5)])
def test_the_cascade_equals_its_stages_in_sequence(norm: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "brief", briefly)
    oracle, x0, label_B = net(6)
    x0, label_B = x0[:6], label_B[:6]
    rng = RandomStreams.of(3, torch.arange(6))
    result = AutoAttack("brief").search(oracle, x0, Untargeted(label_B), norm, rng)
    robust, broken_in = list(range(6)), {}
    for number, stage in enumerate(briefly(norm)):
        for image in list(robust):
            row = torch.tensor([image])
            goal = Untargeted(label_B[row], stage.loss)
            x = norm.project(stage.attack.search(oracle, x0[row], goal, norm, rng.at(row).fold(number)), x0[row])
            last = number + 1 == len(briefly(norm))
            broken = oracle(x).argmax(1).item() != label_B[image].item()
            if broken or last:
                torch.testing.assert_close(result[image], x[0], rtol=0, atol=1e-9)
            if broken:
                robust.remove(image)
                broken_in[image] = stage.name
    # else only the first stage would have been tested
    assert 0 < len(robust) < 6
    assert broken_in
    judged = AutoAttack("brief")(lambda x: oracle(x), x0, Untargeted(label_B), norm, seed=3)
    torch.testing.assert_close(judged.x_adv, result, rtol=0, atol=1e-9)
    assert judged.success.tolist() == [image not in robust for image in range(6)]
    assert judged.distance.max().item() <= norm.eps * (1 + 1e-9)


def test_a_broken_image_is_not_attacked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attack breaks every image, so a second one that would raise is never run."""

    class NeverRun(Attack):
        def search(self, model: Oracle, x0: Tensor, goal: object, threat: Threat, rng: RandomStreams) -> Tensor:
            raise AssertionError("no image is robust")

    stages = (NamedAttack("apgd-ce", APGD(steps=5), cross_entropy), NamedAttack("spoiler", NeverRun(), margin))
    monkeypatch.setitem(VERSIONS, "spoilt", lambda threat: stages)
    oracle, x0, label_B = net(6)
    result = AutoAttack("spoilt")(lambda x: oracle(x), x0, Untargeted(label_B), Linf(0.9), seed=0)
    assert bool(result.success.all())


@pytest.mark.parametrize("classes", [2, 3, 4, 8])
@pytest.mark.parametrize("threat", [Linf(0.02), L1(0.5)])
def test_models_with_few_classes_can_be_attacked(classes: int, threat: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "brief", briefly)
    oracle, x0, label_B = net(classes)
    result = AutoAttack("brief")(lambda x: oracle(x), x0, Untargeted(label_B), threat, seed=0)
    assert torch.equal(result.success, oracle(result.x_adv).argmax(1) != label_B)
    # some image has to be robust to the first stages for the later ones to run
    assert not bool(result.success.all())
    flags = {
        stage.name: [flag.evidence for flag in stage.attack.find_flags(Untargeted(label_B, stage.loss), classes)]  # type: ignore[attr-defined]
        for stage in AutoAttack().stages(Linf(0.1))
    }
    fewer, logit_difference = {"classes": classes, "targets": classes - 1}, {"classes": classes, "needed": 4}
    assert flags == {
        "apgd-ce": [],
        "apgd-t": [fewer, logit_difference] if classes < 4 else [fewer],
        "fab-t": [fewer],
        "square": [],
    }


def test_autoattack_refuses_other_goals_and_names() -> None:
    _, x0, label_B = net(4)
    with pytest.raises(UsageError, match="AutoAttack needs an Untargeted goal, got Targeted"):
        AutoAttack()(lambda x: x.flatten(1), x0, Targeted(label_B), Linf(0.1), seed=0)
    with pytest.raises(UsageError, match="version of AutoAttack"):
        AutoAttack("fast")


@pytest.mark.parametrize("name", ["autoattack", "autoattack-plus", "autoattack-rand"])
def test_the_same_name_means_the_same_budget(name: str) -> None:
    for version, meant in (("standard", "autoattack"), ("plus", "autoattack-plus"), ("rand", "autoattack-rand")):
        with pytest.raises(UsageError, match=f"got {name}:version={version}. Write {meant}.$"):
            parse_attack(f"{name}:version={version}")
    with pytest.raises(UsageError, match="unknown version of AutoAttack 'fast'"):
        parse_attack(f"{name}:version=fast")


@pytest.mark.parametrize("kind", [AutoAttackPlus, AutoAttackRand])
def test_a_named_version_has_no_other(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"has no setting 'version'. It has none. Leave it out.$"):
        kind(version="standard")
    # a manifest holds the version as before, so a run of an earlier version resumes
    assert describe(kind()) == {"is": kind.__name__, "version": kind().version}
    assert kind().stages(L2(0.5)) == AutoAttack(kind().version).stages(L2(0.5))
