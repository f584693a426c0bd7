"""`--scaling`: its spellings, output and refusals."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vitadel.attacks import AutoAttack, Scaling
from vitadel.attacks.parsing import parse_attack, parse_scaling
from vitadel.core.errors import UsageError

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("text", "scaling"),
    [
        ("aas", Scaling()),
        ("aas-literal", Scaling.literal()),
        ("aas:loss=margin,blocks=4,step_size=1/2", Scaling(loss="margin", blocks=4, step_size=0.5)),
        ("aas-paper:logits=true,rule=sign", replace(Scaling.paper(), logits=True, rule="sign")),
        ("0.01", Scaling.manual(0.01)),
        ("1/8", Scaling.manual(0.125)),
        ("1e-6", Scaling.manual(1e-6)),
        ("manual", Scaling.manual()),
    ],
)
def test_spellings_of_the_scaling_option(text: str, scaling: Scaling) -> None:
    assert parse_scaling(text) == scaling


def test_model_and_rescaled_model_are_distinguished(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words: tuple[str | Path, ...] = (
        "attack",
        trained,
        "--data",
        "digits[:16]",
        "--threat",
        "linf:24/255",
        "--attack",
        "pgd:steps=3",
    )
    words = (*words, "--run", tmp_path / "run")
    scaling = ("--scaling", "aas:batches=2,batch_size=8,trial_images=8,steps=2")
    code, out, _ = vitadel(*words, *scaling)
    assert code == 0
    assert "scored on" in out
    assert "rescaled" in out
    assert "attentions scaled by" in out
    assert "found on 16 training images" in " ".join(out.split())
    code, out, _ = vitadel(*words, *scaling, "--json")
    assert code == 0
    itself, paper = json.loads(out)["evaluations"]
    assert [one["name"] for one in itself["attacks"]] == ["pgd:steps=3", "pgd:steps=3+scaled"]
    assert [one["name"] for one in paper["attacks"]] == ["pgd:steps=3"]
    assert paper["name"].endswith("-paper-protocol")
    assert itself["search_precision"] == "float32"
    code, _, err = vitadel(*words)
    assert code == 2
    assert "scaling" in err


def test_clean_accuracy_is_of_the_unscaled_model(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--data", "digits[:16]", "--threat", "linf:4/255", "--suite", "clean,quick")
    code, out, _ = vitadel(*words, "--scaling", "0.5", "--run", tmp_path / "run")
    assert code == 0
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert [row for row in rows if row] == ["model", "model", "rescaled"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--scaling", "lpips"), "unknown scaling 'lpips'. Known: aas"),
        (("--scaling", "aas:step=3"), "unknown setting of aas 'step'"),
        (("--scaling", "aas:steps=few"), "aas:steps needs a whole number, got 'few'"),
        (("--scaling", "aas:keep=best"), "unknown Scaling.keep 'best'"),
        (("--scaling", "0"), "Scaling.grid[0] must be positive, got 0.0"),
        (("--scaling", "aas", "--precision", "fp16"), "float32, got precision='fp16'. Leave it out"),
        (("--scaling", "aas", "--compile"), "compiled code does not see taps. Leave compile out"),
    ],
)
def test_invalid_arguments_are_refused(
    vitadel: Command, trained: Path, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    common = ("attack", trained, "--data", "digits[:8]", "--attack", "fgsm", "--run", tmp_path / "run")
    code, _, err = vitadel(*common, *more)
    assert code == 2
    assert words in err


def test_of_networks_without_attention_the_logits_are_scaled(vitadel: Command, tmp_path: Path) -> None:
    common = ("--classes", "10", "--data", "digits[:8]", "--attack", "fgsm", "--run", tmp_path / "run")
    code, out, _ = vitadel("attack", "timm:test_resnet", *common, "--scaling", "0.1")
    assert code == 0
    assert "logits scaled by 0.1" in out
    assert "(logit-scaling)" in out


def test_catalog(vitadel: Command) -> None:
    code, out, _ = vitadel("scalings", "--json")
    assert code == 0
    assert set(json.loads(out)) == {"aas", "aas-paper", "aas-literal", "manual"}
    code, out, _ = vitadel("scalings", "aas-literal")
    assert code == 0
    assert "drifting" in out
    assert vitadel("scalings", "aas-figurative")[0] == 2


def test_versions_of_autoattack_are_attacks_of_their_own() -> None:
    attack = parse_attack("autoattack-plus")
    assert isinstance(attack, AutoAttack)
    assert attack.version == "plus"
    with pytest.raises(UsageError, match=r"Write autoattack-plus\."):
        parse_attack("autoattack:version=plus")
