"""Arguments that a function does not have, or that contradict each other, are refused with what to write instead."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vitadel as vd
from vitadel.api.catalog import CATALOGS, Page
from vitadel.api.data import default_preprocess
from vitadel.api.evaluate import DEFAULT_THREAT
from vitadel.api.sweep import as_sweep
from vitadel.core.errors import UsageError
from vitadel.evaluate import NamedAttack
from vitadel.evaluate.parsing import as_suites
from vitadel.recipes.provenance import value_text

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


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", ["evaluate", "analyze"])
def test_a_foreign_keyword_is_refused_before_anything_is_written(
    name: str, loaded: bool, net: nn.Module, tmp_path: Path
) -> None:
    """Ignored, `eps=` would leave the default radius in place without a word."""
    model = vd.models.wrap(net, mean=0.5, std=0.5) if loaded else net
    what = {"evaluate": "clean", "analyze": "lesion"}[name]

    def call(**keywords: object) -> str:
        return message(lambda: getattr(api, name)(model, "digits", what, run=tmp_path / "run", **keywords))

    assert call(eps=4 / 255) == (
        f'{name} takes norm and radius together, got eps={4 / 255!r}. Write threat="linf:4/255".'
    )
    assert f"unknown argument of {name} 'batchsize'. Did you mean 'batch_size'?" in call(batchsize=64)
    assert "Known:" in (text := call(nonsense=1))
    assert "image_size" in text
    assert "command" in text
    assert " options" not in text
    assert "Write load_model(MODEL, pretrained=True) and give the model." in call(pretrained=True)
    assert "num_classes" in call(num_classes=10)
    assert not (tmp_path / "run").exists()


def test_a_network_keeps_its_shape(net: nn.Module, tmp_path: Path) -> None:
    assert message(lambda: vd.evaluate(net, "digits", "clean", run=tmp_path / "run", image_size=32)) == (
        "a network that is built already keeps its shape, got image_size. Leave them out: they are for a model that is "
        "given as text."
    )


def test_known_arguments_are_those_of_the_signature(net: nn.Module) -> None:
    text = message(lambda: api.robustness(net, torch.rand(2, 3, 8, 8), torch.tensor([0, 1]), foo=1))
    assert text == (
        "unknown argument of robustness 'foo'. Known: batch_size, compile, engine, model, precision, progress, "
        "scaling, seed, suite, threat, x, y."
    )
    text = message(lambda: api.load_data("digits", foo=1))
    known = "classes, holdout, image_size, preprocess, skip_unreadable, spec"
    assert text == f"unknown argument of load_data 'foo'. Known: {known}."


@pytest.mark.parametrize("nothing", [(), ("",), (None,)])
def test_a_model_must_be_named(nothing: tuple[object, ...]) -> None:
    assert message(lambda: api.load_model(*nothing)).startswith("load_model needs a model, got ")


@pytest.fixture
def images() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, torch.tensor([0, 1, 2, 3])


def test_what_is_said_twice_is_refused(net: nn.Module, images: tuple[torch.Tensor, torch.Tensor]) -> None:
    """One of two threats, and labels beside those of a split, would be dropped without a word."""
    x, y = images
    loader: DataLoader[object] = DataLoader(TensorDataset(x, y))
    assert message(lambda: api.robustness(net, loader, "linf:4/255", threat="l2:0.5")) == (
        "robustness takes one threat, got linf:4/255 and l2:0.5. Leave one of them out."
    )
    for several in (vd.load_data("digits").test, "digits", loader):
        text = message(lambda several=several: vd.robustness(net, several, y))
        assert text.endswith("holds labels already, got y as well. Leave y out.")


def test_attacks_of_one_name_are_numbered(net: nn.Module, images: tuple[torch.Tensor, torch.Tensor]) -> None:
    attacks: list[Any] = [vd.attacks.PGD(steps=2), vd.attacks.FGSM(), vd.attacks.PGD(steps=3), "pgd"]
    result = vd.robustness(net, *images, "linf:0.001", suite=attacks, progress=False)
    assert [attack.name for attack in result.attacks] == ["pgd", "fgsm", "pgd-2", "pgd-3"]


@pytest.mark.parametrize("name", ["x_adv", "clean", "flags"])
def test_names_of_tables_are_no_names_of_attacks(
    name: str, net: nn.Module, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    suite = NamedAttack(name, vd.attacks.FGSM())
    text = message(lambda: vd.robustness(net, *images, suite=suite, progress=False))
    assert text == (
        f"each attack of a suite needs its own name, got {name!r}. Name each differently, such as "
        f'NamedAttack("{name}-2", attack).'
    )


def test_a_record_is_found_by_its_name_or_its_suite(net: nn.Module, tmp_path: Path) -> None:
    done = vd.evaluate(net, "digits[:4]", ["clean", "curve"], run=tmp_path / "run", progress=False, batch_size=4)
    assert done["curve-linf-8_255"].threat is not None
    assert done["clean"].name == "clean"
    assert message(lambda: done["curve"]).startswith("unknown record of this evaluation 'curve'.")
    one = vd.evaluate(net, "digits[:4]", vd.attacks.FGSM(), run=tmp_path / "one", progress=False)
    assert one["attack"] is one["attack-linf-8_255"]


def test_what_is_no_suite_is_refused() -> None:
    class Foo:
        name = "foo"

    for nothing in (3, Foo(), Foo):
        text = message(lambda nothing=nothing: as_suites([nothing]))
        assert text.startswith("a suite is a name from `vitadel suites`, an attack, or an object with name, check")
    assert "unknown suite or attack 'apdg'. Did you mean 'apgd'?" in message(lambda: as_suites("apdg"))


def test_a_sweep_attacks_within_the_same_threat_as_an_evaluation() -> None:
    made = as_sweep("digits-standard", ["seed=0,1"], suite="quick")
    assert str(made.threat) == DEFAULT_THREAT
    assert as_sweep("digits-standard", ["seed=0,1"], suite="clean").threat is None


@pytest.mark.parametrize(
    ("call", "end"),
    [
        (lambda x, y, net: api.robustness(net, x, y, norm="L2"), 'Write threat="l2:0.5".'),
        (lambda x, y, net: api.robustness(net, x, y, norm="L1"), 'Write threat="l1:12".'),
        (lambda x, y, net: api.robustness(net, x, y, norm=2, eps=0.3), 'Write threat="l2:0.3".'),
        (lambda x, y, net: api.robustness(net, x, y, eps=8), 'Write threat="linf:8/255".'),
        (lambda x, y, net: api.attacks.PGD(net, norm="L2"), 'Write PGD()(model, x, y, "l2:0.5").'),
        (
            lambda x, y, net: api.attacks.PGD(net, eps=4 / 255, alpha=2 / 255),
            'Write PGD(step_size=2/255)(model, x, y, "linf:4/255").',
        ),
        (lambda x, y, net: vd.threats.parse_threat("l1"), "Write for example l1:12."),
        (lambda x, y, net: vd.threats.parse_threat("l2"), "Write for example l2:0.5."),
        (lambda x, y, net: vd.threats.parse_threat("linf"), "Write for example linf:8/255."),
    ],
)
def test_a_radius_is_advised_in_its_norm(
    call: Any, end: str, net: nn.Module, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    assert message(lambda: call(*images, net)).endswith(end)


def test_recipes_print_pixels_as_fractions_of_255() -> None:
    recipe = vd.recipes.RECIPES["digits-adversarial"]()
    values = {leaf.path: leaf.value for leaf in vd.recipes.leaves(recipe)}
    assert (values["objective.threat.eps"], values["objective.attack.step_size"]) == ("24/255", "12/255")
    assert value_text(1 / 3) == "1/3"


@pytest.mark.parametrize(
    ("name", "setting", "end"),
    [
        ("APGD", "loss", 'Write APGD()(model, x, vd.goals.Untargeted(y, vd.losses.dlr), "linf:8/255").'),
        ("PGD", "criterion", 'Write PGD()(model, x, vd.goals.Targeted(classes), "linf:8/255").'),
        ("APGD", "rho", "It is fixed to the published value. Leave it out."),
        ("FAB", "alpha_max", "It is fixed to the published value. Leave it out."),
        ("PGD", "abs_stepsize", 'Write PGD(step_size=1)(model, x, y, "linf:8/255").'),
        ("PGD", "rel_stepsize", "Steps are in pixel values. Write step_size=rel_stepsize * eps."),
        ("PGD", "verbose", "Attacks print nothing. Leave it out."),
    ],
)
def test_settings_of_other_libraries_that_no_attack_has(name: str, setting: str, end: str) -> None:
    text = message(lambda: getattr(api.attacks, name)(**{setting: 1}))
    assert text.startswith(f"{name} has no setting {setting!r}. ")
    assert text.endswith(end)


def test_the_text_of_an_attack_alone_has_no_loss() -> None:
    assert message(lambda: vd.attacks.parse_attack("apgd:loss=dlr")) == (
        "'apgd:loss=dlr' is for settings only, and a goal holds the loss. Leave it out, and attack with "
        "vd.goals.Untargeted(y, loss) or vd.goals.Targeted(classes)."
    )


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("Model", "models"),
        ("wrap", "models"),
        ("dlr", "losses"),
        ("Recipe", "recipes"),
        ("Context", "evaluate"),
        ("PGD", "attacks"),
        ("AWP", "objectives"),
    ],
)
def test_names_of_packages_are_pointed_to(name: str, package: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'. Write vd.{package}.{name}$"):
        getattr(vd, name)
    assert hasattr(getattr(vd, package), name)
    assert not hasattr(vd.attacks, "Model")


def test_help_stands_on_its_own() -> None:
    """No table, formula or other recipe is referred to that the page does not show."""
    pages = [(kind, CATALOGS[kind].page(name)) for kind, name in _NAMED]
    texts = {kind: " ".join([page.text, page.details, *(one.about for one in page.settings)]) for kind, page in pages}
    assert "in the table above" not in texts["scalings"]
    assert "draw by draw." in texts["studies"]
    for name, make in vd.recipes.RECIPES.items():
        assert not (make.__doc__ or "").startswith(("The same", "Its ")), name
    assert "see `expect`" not in texts["recipes"]


_NAMED = [("scalings", "aas"), ("studies", "lesion"), ("recipes", "digits-adversarial")]


def test_help_of_a_callable_package_shows_how_it_is_called() -> None:
    """A package has no signature of its own for `help` to show, so defaults would be invisible."""
    lines = str(vd.evaluate.__doc__).split("\n\n")
    assert lines[1].startswith(
        "evaluate(model, data, suites='quick', *, run, threat='linf:8/255', split='test', seed=0,"
    )
    assert str(vd.train.__doc__).split("\n\n")[1].startswith("train(recipe, run, ")


def test_attack_takes_the_options_of_evaluate() -> None:
    from vitadel.cli.evaluate import attack, evaluate

    shared, own = (inspect.signature(one).parameters for one in (evaluate, attack))
    assert list(shared) == list(own)
    assert {name for name in own if own[name] != shared[name]} == {"suites"}
    assert own["suites"].default is inspect.Parameter.empty


def test_a_study_can_leave_out_unreadable_images_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            Image.new("RGB", (8, 8), (40, 80, 120)).save(tmp_path / split / label / "1.png")
    (tmp_path / "test" / "b" / "broken.png").write_bytes(b"\x89PNG\r\n")
    options: dict[str, Any] = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = vd.load_model("timm:test_vit", num_classes=2, image_size=8, patch_size=2, options=options)
    data, run = f"folder:{tmp_path}", tmp_path / "run"
    assert "broken.png" in message(
        lambda: vd.analyze(model, data, "lesion:draws=0", run=tmp_path / "no", progress=False)
    )
    vd.analyze(model, data, "lesion:draws=0", run=run, skip_unreadable=True, progress=False)
    skipped = json.loads((run / "manifest.json").read_text())["parts"]["skipped"]
    assert skipped == ["test/b/broken.png: cannot be read"]


def test_data_may_be_given_as_a_path(net: nn.Module, tmp_path: Path) -> None:
    assert vd.load_data(Path("digits")).spec == "digits"
    data = Path("digits[:8]")
    assert vd.robustness(net, data, suite="clean", progress=False).record.n == 8
    result = vd.evaluate(net, data, "clean", run=tmp_path / "run", progress=False)
    assert result.records[0].n == 8
    study = vd.analyze(_small_vit(), data, "lesion:draws=1", run=tmp_path / "study", progress=False)
    assert study.record.study == "lesion"


def _small_vit() -> nn.Module:
    return vd.load_model("timm:test_vit", num_classes=10, image_size=8, patch_size=2)


def test_the_order_of_the_command_line_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert message(lambda: api.analyze("lesion", _small_vit(), "digits[:8]", run=run)) == (
        "analyze takes the model, the data and then the study, got the study 'lesion' first. "
        'Write vd.analyze(model, "digits[:8]", "lesion", run="DIR").'
    )
    assert 'Write vd.analyze("runs/a", "digits", "lesion:draws=3", run="DIR").' in message(
        lambda: vd.analyze("lesion:draws=3", "runs/a", "digits", run=run)
    )
    assert "unknown study 'digits['" in message(lambda: vd.analyze("runs/a", "digits", "digits[:8]", run=run))
    assert not run.exists()


@pytest.mark.parametrize(
    ("name", "has_page"),
    [
        ("timm:test_vit", True),  # in no list
        ("./weights.safetensors", True),
        ("folder/weights", True),
        ("weights.pth", True),
        ("deit", False),
        ("vit", False),
    ],
)
def test_what_looks_like_a_file_or_a_name_with_its_source_is_one_model(name: str, has_page: bool) -> None:
    named: list[str] = []

    def page(text: str) -> Page:
        named.append(text)
        return Page(text)

    models = dataclasses.replace(CATALOGS["models"], page=page)
    assert isinstance(models.find(name), Page) == has_page
    assert named == [name] * has_page


@pytest.mark.parametrize("kind", sorted(set(CATALOGS) - {"models"}))
def test_other_lists_have_pages_of_their_entries_only(kind: str) -> None:
    for name in ("timm:test_vit", "folder/weights", "weights.pth"):
        with pytest.raises(UsageError, match=f"unknown {CATALOGS[kind].kind}"):
            CATALOGS[kind].find(name)


def test_a_word_finds_the_entries_that_contain_it_in_name_description_or_group() -> None:
    found = CATALOGS["suites"].find("AUTOATTACK")
    assert isinstance(found, list)
    assert [item.name for item in found] == ["autoattack", "autoattack-plus", "autoattack-rand"]
    (group,) = {item.group for item in CATALOGS["suites"].find("other suites")}  # type: ignore[union-attr]
    assert group == "Other suites"


@pytest.mark.parametrize(
    ("spec", "usual", "at_64"),
    [
        ("digits", "squash:8", "squash:64"),
        ("cifar10:DIR", "squash:32", "squash:64"),
        ("cifar100:DIR", "squash:32", "squash:64"),
        ("imagenet:DIR", "crop:224", "crop:64"),
        ("imagenet-a:DIR", "crop:224", "crop:64"),
        ("imagenet-r:DIR", "crop:224", "crop:64"),
        ("folder:DIR", "squash:224", "squash:64"),
    ],
)
def test_images_have_the_native_size_of_their_data_set_or_224_pixels(
    spec: str, usual: str, at_64: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "DIR").mkdir()
    monkeypatch.chdir(tmp_path)
    assert (default_preprocess(spec), default_preprocess(spec, 64)) == (usual, at_64)
