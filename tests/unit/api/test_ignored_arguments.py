"""No argument is ignored without a word: it works, or it is refused with what to write instead."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitadel as vd
from vitadel.api.sweep import as_sweep
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.evaluate.parsing import as_suites
from vitadel.recipes.overrides import override
from vitadel.runs import Run, describe
from vitadel.runs.manifest import fingerprint
from vitadel.threats import Linf

# called in ways that a type checker refuses, as users without one do
api: Any = vd


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))


def message(call: Any) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(UsageError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(
    "given",
    [{"num_classes": 5}, {"image_size": 9, "patch_size": 3}, {"options": {}}, {"pretrained": True}, {"seed": 1}],
)
def test_a_module_is_loaded_with_its_own_shape_and_weights(given: dict[str, Any], net: nn.Module) -> None:
    expected = (
        f"a network that is built already keeps its shape and weights, got {', '.join(given)}. "
        "Leave them out: they are for a model that is given as text."
    )
    assert message(lambda: vd.load_model(net, mean=0.0, std=1.0, **given)) == expected
    assert message(lambda: vd.load_model(vd.models.wrap(net, mean=0.0, std=1.0), **given)) == expected


def test_a_module_moves_to_the_device_that_is_named_and_to_no_other(net: nn.Module) -> None:
    def device(**keywords: Any) -> str:
        model = vd.load_model(net, mean=0.0, std=1.0, **keywords)
        return next(model.net.parameters()).device.type

    assert device() == device(device=None) == device(device="cpu") == "cpu"
    assert device(device="meta") == device() == device(device=None) == "meta"
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        device(device="cpu")  # it does try


@pytest.mark.parametrize(
    "device", ["privateuseone", "privateuseone:3", "hpu", "opengl", "vulkan", "cuda:99", "cuda:-1", "mkldnn", "gpu", ""]
)
def test_a_device_that_is_not_there_is_refused(
    device: str, net: nn.Module, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Of a backend that is not installed, torch raises anything from an assertion to a failed import."""
    for call in (
        lambda: vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2, device=device),
        lambda: vd.evaluate(net, "digits[:4]", "clean", run=tmp_path / "run", device=device),
    ):
        text = message(call)
        assert text.startswith(f"there is no device {device!r} (")
        assert text.endswith("). Write cpu, cuda, cuda:1 or mps.")
        assert "\n" not in text
    assert not (tmp_path / "run").exists()
    assert not recwarn.list


@pytest.mark.parametrize("given", [{"mean": 0.5}, {"std": 0.5}])
def test_one_half_of_a_normalization_is_refused_for_modules_too(
    given: dict[str, float], net: nn.Module, tmp_path: Path
) -> None:
    text = message(lambda: vd.evaluate(net, "digits[:4]", "clean", run=tmp_path / "run", **given))  # type: ignore[arg-type]
    assert text.startswith("a normalization needs mean and std, got ")


def test_an_engine_and_its_settings_are_not_given_together(net: nn.Module) -> None:
    x, y, engine = torch.rand(2, 3, 8, 8), torch.tensor([0, 1]), vd.attacks.Engine(batch_size=2)
    for given in ({"batch_size": 1}, {"precision": "float32"}, {"compile": True}):
        ((name, value),) = given.items()
        text = message(lambda given=given: api.robustness(net, x, y, engine=engine, **given))
        assert text == (
            f"the engine holds batch_size, precision and compile, got {name}={value!r} as well. Leave one out."
        )


def test_a_loaded_data_set_is_attacked_as_its_name_is(net: nn.Module) -> None:
    digits = vd.load_data("digits[:6]")
    results = [
        vd.robustness(net, images, suite="fgsm", progress=False) for images in (digits, digits.test, "digits[:6]")
    ]
    assert [result.to_dict()["robust"] for result in results] == [results[0].to_dict()["robust"]] * 3
    assert all(torch.equal(result.x_adv, results[0].x_adv) for result in results)
    text = message(lambda: vd.robustness(net, digits, digits.test.labels))
    assert text == "a DataSet of images holds labels already, got y as well. Leave y out."


@pytest.mark.parametrize("given", [{"keep_images": True}, {"scaling": "aas"}])
def test_options_of_attacks_are_refused_where_nothing_attacks(
    given: dict[str, Any], net: nn.Module, tmp_path: Path
) -> None:
    text = message(lambda: vd.evaluate(net, "digits[:4]", "clean", run=tmp_path / "run", **given))
    assert text.endswith(" is about suites of attacks, and there is none among: clean. Leave it out.")
    assert not (tmp_path / "run").exists()


def test_a_threat_identifies_a_run_only_if_something_attacks(net: nn.Module, tmp_path: Path) -> None:
    def threat_of(suites: str, threat: str) -> object:
        vd.evaluate(net, "digits[:2]", suites, run=tmp_path / suites, threat=threat, progress=False)
        return json.loads((tmp_path / suites / "manifest.json").read_text())["parts"].get("threat")

    assert threat_of("clean", "linf:8/255") is None
    assert threat_of("clean", "l2:0.5") is None
    assert threat_of("fgsm", "l2:0.5") is not None
    with pytest.raises(UsageError, match="belongs to another run; it differs in parts.threat.eps"):
        threat_of("fgsm", "l2:0.25")


def test_a_run_of_an_earlier_version_that_recorded_a_threat_resumes(net: nn.Module, tmp_path: Path) -> None:
    """Its threat is part of what it is; without it, the folder would belong to another run."""
    run, path = tmp_path / "run", tmp_path / "run" / "manifest.json"
    first = vd.evaluate(net, "digits[:2]", "clean", run=run, progress=False)
    manifest: dict[str, Any] = read_json(path)
    manifest["parts"]["threat"] = describe(Linf(0.5))
    manifest["hashes"]["threat"] = fingerprint(Linf(0.5))
    write_json(path, manifest)
    again = vd.evaluate(net, "digits[:2]", "clean", run=run, threat="linf:1/4", progress=False)
    assert again.to_dict() == first.to_dict()
    assert Run.open(run).manifest.parts["threat"] == describe(Linf(0.5))


def test_training_takes_data_as_text(tmp_path: Path) -> None:
    digits = vd.load_data("digits[:64]")
    text = message(lambda: api.train("digits-standard", tmp_path / "run", data=digits))
    assert text == (
        'train takes data as text, because the recipe sets the preprocessing, got a DataSet. Write data="digits[:64]".'
    )
    assert 'Write data="cifar10:DIR".' in message(lambda: api.train("digits-standard", tmp_path, data=digits.test))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"seed": 1}, 'Write overrides={"seed": 1}.'),
        ({"epochs": 3}, 'Write overrides={"plan.epochs": 3}.'),
        ({"lr": 0.1}, 'Write overrides={"plan.optimizer.lr": 0.1}.'),
        ({"batch_size": 64}, 'Write overrides={"plan.batch_size": 64}.'),
        ({"weight_decay": 0.1}, 'Write overrides={"plan.optimizer.weight_decay": 0.1}.'),
        ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"eps": 0.1}, 'Write overrides={"objective.threat": "linf:8/255"}.'),
        ({"override": {}}, "Did you mean 'overrides'?"),
    ],
)
def test_training_names_the_line_for_settings_of_the_recipe(given: dict[str, object], line: str) -> None:
    assert line in message(lambda: api.train("digits-adversarial", "run", **given))


def test_the_lines_that_training_names_can_be_written() -> None:
    recipe = vd.recipes.RECIPES["digits-adversarial"]()
    values: dict[str, object] = {
        "lr": 0.1,
        "learning_rate": 0.1,
        "weight_decay": 0.1,
        "threat": "",
        "model": "",
        "image_size": 16,
        "img_size": 16,
        **dict.fromkeys(("seed", "epochs", "batch_size", "bs", "num_workers", "patch_size", "eps"), 8),
    }
    for name, value in values.items():
        text = message(lambda name=name, value=value: api.train("digits-adversarial", "run", **{name: value}))
        setting = ast.literal_eval(text.partition("Write overrides=")[2].removesuffix("."))
        assert override(recipe, setting) != recipe or "objective.threat" in setting


@pytest.mark.parametrize(
    ("study", "line"), [(api.analyze.Lesion, "Write Lesion()."), (3, 'Write "lesion" or vd.analyze.Lesion().')]
)
def test_what_is_not_a_study_is_refused(study: object, line: str, net: nn.Module, tmp_path: Path) -> None:
    text = message(lambda: api.analyze(net, "digits", study, run=tmp_path / "run"))
    assert text.startswith("a study is a name from `vitadel studies`, or an object such as Lesion(), got ")
    assert text.endswith(line)


def test_what_a_suite_lacks_is_named() -> None:
    class Almost:
        name, title, needs_threat = "almost", "Almost", False

        def __repr__(self) -> str:
            return "Almost()"

        check = run = rows = summarize = lambda self, *given: None

    assert message(lambda: as_suites([Almost()])) == "the suite Almost() has no about. Define what is missing."  # type: ignore[list-item]
    Almost.about = "complete"  # type: ignore[attr-defined]
    assert len(as_suites([Almost()])) == 1  # type: ignore[list-item]
    assert message(lambda: as_suites([Almost])).endswith(" Write Almost().")  # type: ignore[list-item]


@pytest.mark.parametrize(
    "given",
    [
        {"axes": ["seed=0,1"]},
        {"overrides": {"seed": 1}, "data": "digits[:64]"},
        {"suite": "quick"},
        {"attack": "pgd", "threat": "linf:0.1"},
        {"test_data": "digits", "small": True},
        {"models": ["zoo:NAME"]},
        {"study": "lesion"},
    ],
)
def test_a_sweep_holds_its_own_settings(given: dict[str, Any], tmp_path: Path) -> None:
    made = as_sweep("digits-standard", ["seed=0,1"])
    text = message(lambda: vd.sweep(made, tmp_path / "run", **given))
    assert text.startswith("a Sweep holds its own settings, got ")
    assert sorted(text[36 : text.index(" as well")].split(", ")) == sorted(given)
    assert not (tmp_path / "run").exists()


def test_a_sweep_takes_attacks_as_suites_too() -> None:
    def columns(suite: Any) -> list[tuple[str, str]]:
        made = as_sweep("digits-standard", ["seed=0,1"], suite=suite).columns
        return [(column.name, column.suite.name) for column in made]

    assert columns("pgd:steps=3") == [("pgd:steps=3", "pgd-steps-3")]
    assert columns(vd.attacks.PGD()) == [("pgd", "pgd")]
    assert columns(vd.attacks.NamedAttack("mine", vd.attacks.FGSM())) == [("mine", "mine")]
    assert columns(["pgd", "quick", vd.attacks.FGSM()]) == [("pgd", "pgd"), ("quick", "quick"), ("fgsm", "fgsm")]
    assert message(lambda: columns(3)).endswith('got 3. Write for example "autoattack" or vd.attacks.PGD().')
