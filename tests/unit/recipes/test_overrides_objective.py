"""`--set objective=KIND`: another kind of objective keeps what both kinds have."""

from dataclasses import replace

import pytest

from vitadel.attacks import PGD
from vitadel.core.errors import UsageError
from vitadel.objectives import ARDPRM, AWP, MART, TRADES, Adversarial, AttentionScaling, Standard
from vitadel.recipes import RECIPES, override
from vitadel.threats import Linf


def objective(recipe: str, *settings: str) -> object:
    return override(RECIPES[recipe](), settings).objective


def test_what_both_kinds_have_stays() -> None:
    before = RECIPES["digits-adversarial"]().objective
    assert isinstance(before, Adversarial)
    common = {"eps_warmup": before.eps_warmup, "smoothing": before.smoothing}
    assert objective("digits-adversarial", "objective=trades") == TRADES(before.attack, before.threat, **common)  # type: ignore[arg-type]
    assert objective("digits-adversarial", "objective=mart:beta=5,eps_warmup=0") == MART(
        before.attack, before.threat, beta=5
    )
    assert objective("digits-adversarial", "objective=standard:smoothing=0.1") == Standard(smoothing=0.1)
    assert objective("cifar10-trades-short", "objective=adversarial") == replace(
        Adversarial(PGD(steps=5, step_size=3 / 255, keep_best=False), Linf(8 / 255)), eps_warmup=0.3
    )


def test_settings_below_it_apply_to_the_new_kind_wherever_they_are_written() -> None:
    settings = ("objective.beta=3", "objective=trades", "objective.attack=pgd:steps=7")
    made = objective("digits-adversarial", *settings)
    assert isinstance(made, TRADES)
    assert (made.beta, made.attack) == (3.0, PGD(steps=7))


def test_wrappers_go_around_what_there_is() -> None:
    before = RECIPES["digits-adversarial"]().objective
    assert objective("digits-adversarial", "objective=awp") == AWP(before)
    made = objective("digits-adversarial", "objective=trades", "objective=awp:gamma=0.01", "objective.inner.beta=2")
    assert isinstance(made, AWP)
    assert (made.gamma, type(made.inner), made.inner.beta) == (0.01, TRADES, 2.0)  # type: ignore[attr-defined]
    assert objective("digits-aas", "objective=aas:period=3") == AttentionScaling(before, period=3)
    assert isinstance(objective("digits-adversarial", "objective=ard-prm"), ARDPRM)
    # what is inside of the former wrapper is what a plain kind takes over
    assert objective("digits-aas", "objective=adversarial") == before


def test_an_attack_needs_a_threat() -> None:
    with pytest.raises(
        UsageError, match=r"has no threat, got no threat. Write --set objective=trades:threat=linf:8/255"
    ):
        objective("digits-standard", "objective=trades")
    made = TRADES(PGD(steps=10, keep_best=False), Linf(8 / 255))
    assert objective("digits-standard", "objective=trades:threat=linf:8/255") == made
    assert objective("digits-standard", "objective=trades", "objective.threat=linf:8/255") == made


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("objective=tardes", "unknown kind of objective 'tardes'. Did you mean 'trades'"),
        ("objective=fancy", "Known: aas, adversarial, ard-prm, awp, mart, standard, tora, trades"),
        ("objective=trades:bta=3", "unknown setting of trades 'bta'. Did you mean 'beta'"),
        ("objective=trades:beta=-1", "TRADES.beta must not be negative, got -1"),
        ("objective=", "unknown kind of objective ''"),
    ],
)
def test_errors_name_what_is_known(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        objective("digits-adversarial", setting)
    assert message in str(error.value)
