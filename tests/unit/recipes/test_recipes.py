"""Recipes: every one can be built, described and carried out, and one value deep inside can be changed."""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitadel import data, models
from vitadel.attacks import FGSM, PGD
from vitadel.core.errors import UsageError, short_repr
from vitadel.data import Split
from vitadel.models import Option
from vitadel.objectives import AWP, Adversarial, AdversarialObjective, Objective, Standard, TORATraining
from vitadel.recipes import RECIPES, ModelConfig, Recipe, Selection, SyntheticConfig, leaves, override, train_recipe
from vitadel.runs import describe
from vitadel.threats import Linf
from vitadel.train import AdamW, Compile, Precision

ROOT = Path(__file__).parents[3]
_OWN = (
    *("digits-standard", "digits-adversarial", "digits-masked-gradient", "digits-aas", "digits-ard-prm"),
    "digits-class-token",
)


def architecture(recipe: Recipe) -> tuple[str, Mapping[str, Option]]:
    """The recipe's model, apart from its weights: a run folder is named after the recipe that fills it."""
    start = recipe.model.start
    if start.startswith("zoo:"):
        spec = models.load(start).spec
        assert spec is not None
        return spec.name, spec.options
    if start.startswith("runs/"):
        return architecture(RECIPES[Path(start).name]())
    return start.partition("@")[0], recipe.model.options


@cache
def spec_without_weights(start: str, image_size: int, patch_size: int | None, options: str) -> models.ModelSpec | None:
    with torch.device("meta"):
        return models.load(
            start, image_size=image_size, patch_size=patch_size, options=json.loads(options), num_classes=10
        ).spec


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_complete(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert json.loads(json.dumps(describe(recipe)))["plan"]["epochs"] >= 1
    choice = recipe.model
    start, options = architecture(recipe)
    spec = spec_without_weights(start, choice.image_size, choice.patch_size, json.dumps(dict(options)))
    assert spec is not None
    assert spec.image_size == choice.image_size
    assert choice.patch_size in (None, spec.patch_size)
    assert data.parse_preprocess(recipe.preprocess).size == choice.image_size


@pytest.mark.parametrize("name", RECIPES)
def test_every_chosen_value_has_a_source(name: str) -> None:
    recipe = RECIPES[name]()
    result = leaves(recipe)
    assert {leaf.path for leaf in result} >= {"model.start", "data", "objective", "plan.epochs", "plan.optimizer.lr"}
    chosen = [leaf for leaf in result if not leaf.by_default]
    assert not [leaf.path for leaf in chosen if leaf.source is None]
    # the class of the objective is not a source for its values
    assert not [leaf.path for leaf in chosen if leaf.source_path == "objective" != leaf.path]
    assert not [path for path in recipe.sources if path != "*" and not _exists(recipe, path)]
    kinds = ("paper: ", "authors' code", "our choice")
    assert not [source for source in recipe.sources.values() if not source.startswith(kinds)]
    assert recipe.sources.get("*", "our choice") == "our choice", "what covers everything can only be our own"


def _exists(node: object, path: str) -> bool:
    name, _, rest = path.partition(".")
    if isinstance(node, Mapping):
        return name in node
    if isinstance(node, tuple):
        return name.isdecimal() and int(name) < len(node) and (not rest or _exists(node[int(name)], rest))
    if is_dataclass(node):
        known = name in {field.name for field in fields(node)}
        return known and (not rest or _exists(getattr(node, name), rest))
    return False


def test_a_source_of_a_value_precedes_that_of_its_part() -> None:
    result = {leaf.path: leaf for leaf in leaves(RECIPES["vit-b2-cifar10"]())}
    assert result["plan.optimizer.decay"].source == "authors' code: tensors called kernel"
    assert result["plan.optimizer.betas"].source_path == "plan.optimizer"
    assert result["plan.compile"].source is None
    assert result["plan.compile"].by_default
    assert [result[path].value for path in ("objective.threat.eps", "plan.augment.fill")] == ["8/255", "128/255"]
    assert [result[path].value for path in ("objective", "plan.pil_augment", "plan.optimizer.betas")] == [
        *("TRADES", "null"),
        "0.9,0.99",
    ]
    assert {leaf.source for leaf in leaves(RECIPES["digits-standard"]())} == {"our choice"}
    thesis = {leaf.path: leaf.value for leaf in leaves(RECIPES["xcit-s12-imagenet"]())}
    assert [thesis[path] for path in ("objective.eps_warmup", "plan.pil_augment.ratio", "plan.min_lr")] == [
        *("1/11", "0.75,4/3"),
        "1e-05",
    ]
    steps = [leaf.path for leaf in leaves(RECIPES["xcit-s12-cifar10"]()) if leaf.path.endswith("degrees")]
    assert steps == ["plan.augment.steps.2.degrees"]


@pytest.mark.parametrize("name", RECIPES)
def test_expected_results_are_published_or_measured(name: str) -> None:
    expect = RECIPES[name]().expect
    assert set(expect) <= {"published", "clean", "robust", "cost"}
    if "published" in expect:
        assert re.search(r"\((paper|thesis|the authors|Singh)", expect["published"])


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in _OWN])
def test_every_recipe_states_source_differences_and_cost(name: str) -> None:
    module = inspect.getmodule(RECIPES[name])
    assert module is not None
    assert all(f"\n{head}" in (module.__doc__ or "") for head in ("Source: ", "Differs: ", "Cost: "))
    assert "cost" in RECIPES[name]().expect or re.search("[Ee]stimate|H200", RECIPES[name].__doc__ or "")


def test_the_recipes_page_lists_every_recipe() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "recipes.md").read_text(), re.M)
    assert sorted(listed) == sorted(RECIPES)


# ------------------------------------------------------------------ carried out, small

_VIT: dict[str, Option] = {"depth": 1, "embed_dim": 32, "num_heads": 2}
_SMALL = {
    "vit": ("timm:test_vit", 8, _VIT),
    "test_vit": ("timm:test_vit", 8, _VIT),
    "deit": ("timm:deit_tiny_patch16_224", 8, _VIT),
    "cait": ("timm:cait_xxs24_224", 8, {**_VIT, "depth": 1}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {**_VIT, "cls_attn_layers": 1}),
    "resnet50": ("timm:test_resnet", None, {}),
    "wrn": ("timm:test_resnet", None, {}),
}


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    images = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "made.npz", image=images, label=np.arange(16) % 10)
    data.convert([folder / "made.npz"], folder / "shards", num_classes=10)
    return folder / "shards"


def shrunk(recipe: Recipe, generated: Path) -> Recipe:
    """The same objective, optimizer, averaging and augmentation on a tiny model and few images."""
    arch = architecture(recipe)[0].partition(":")[2]
    start, patch_size, options = next(small for key, small in _SMALL.items() if arch.startswith(key))
    if recipe.model.tuning is not None:  # what a fusion makes is for the next block
        options = {**options, "depth": 2}
    objective = recipe.objective
    if isinstance(objective, AdversarialObjective):  # or a single epoch would be a clean one
        objective = replace(objective, eps_warmup=0.0, step_warmup=0.0)
    plan = replace(
        recipe.plan,
        epochs=1,
        batch_size=8,
        warmup_epochs=0,
        cooldown_epochs=0,
        num_workers=0,
        ema_batch_size=None,
        validate_every_epochs=1,
        precision=Precision.FLOAT32,
        compile=Compile.OFF,  # a minute for one update
    )
    return replace(
        recipe,
        model=ModelConfig(start, 16, patch_size, recipe.model.normalize, options, recipe.model.tuning),
        preprocess="squash:16",
        objective=objective,
        plan=plan,
        selection=replace(recipe.selection, images=2),
        synthetic=recipe.synthetic and SyntheticConfig(str(generated), recipe.synthetic.share),
    )


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in _OWN])
def test_every_recipe_makes_an_update(name: str, generated: Path, tmp_path: Path) -> None:
    recipe = shrunk(RECIPES[name](), generated)
    before = models.load(
        recipe.model.start,
        num_classes=10,
        image_size=16,
        patch_size=recipe.model.patch_size,
        options=recipe.model.options,
        seed=recipe.seed,
    )
    if recipe.model.tuning is not None:
        before = models.tora(before, recipe.model.tuning, seed=recipe.seed)
    train_recipe(recipe, tmp_path / "run", data_spec="digits[:8]")
    after = models.load(tmp_path / "run" / "checkpoints" / "final.safetensors")
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in pairs)
    assert all(bool(weight.isfinite().all()) for weight in after.parameters())


def test_fine_tuning_starts_from_a_run_folder_with_smaller_patches(generated: Path, tmp_path: Path) -> None:
    first = shrunk(RECIPES["xcit-s12-imagenet-eps8"](), generated)
    robust = replace(first, model=replace(first.model, image_size=32, patch_size=16), preprocess="squash:32")
    train_recipe(robust, tmp_path / "robust", data_spec="digits[:8]")
    recipe = override(
        RECIPES["xcit-s12-cifar10"](),
        [
            *(f"model.start={tmp_path / 'robust'}", "plan.epochs=1", "plan.warmup_epochs=0", "plan.cooldown_epochs=0"),
            *("plan.batch_size=8", "selection.images=2"),
        ],
    )
    tuned = train_recipe(recipe, tmp_path / "tuned", data_spec="digits[:8]")
    assert tuned.spec is not None
    assert (tuned.spec.name, tuned.spec.patch_size) == ("timm:xcit_nano_12_p16_224", 4)


@pytest.mark.parametrize("name", ["xcit-s12-cifar10", "xcit-s12-caltech101", "vit-s-imagenet-singh"])
def test_a_missing_start_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES[name]()
    file = recipe.model.start.rpartition("@")[2]
    with pytest.raises(UsageError, match=f"{re.escape(file)}.*(Give|give)"):
        train_recipe(replace(recipe, preprocess="squash:32"), tmp_path / "run", data_spec="digits[:8]")


@pytest.mark.parametrize(
    ("objective", "shard", "message"),
    [
        (TORATraining(FGSM(), Linf(0.1)), False, "TORATraining trains adapters, and this .* has none"),
        (AWP(Standard()), True, "AWP perturbs whole weight tensors, and plan.shard shards them"),
    ],
)
def test_inconsistent_recipes_create_no_folder(objective: Objective, shard: bool, message: str, tmp_path: Path) -> None:
    recipe = RECIPES["digits-standard"]()
    recipe = replace(recipe, objective=objective, plan=replace(recipe.plan, shard=shard))
    with pytest.raises(UsageError, match=message):
        train_recipe(recipe, tmp_path / "run", data_spec="digits[:64]")
    assert not (tmp_path / "run").exists()


def test_selection_uses_the_hold_out_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitadel.recipes import train_recipe

    seen: list[tuple[str, ...]] = []

    def spy(model: nn.Module, split: Split, *args: object, **values: object) -> dict[str, float]:
        seen.append(split.ids)
        return {"clean": 0.5}

    monkeypatch.setattr(sys.modules["vitadel.recipes.runner"], "validation_scores", spy)
    digits = data.load("digits[:64]", preprocess=data.Squash(8))
    assert digits.holdout is not None
    for name, split in (("holdout", digits.holdout), ("test", digits.test)):
        settings = ["plan.epochs=1", "plan.warmup_epochs=0", f"selection.split={name}", "selection.images=20"]
        train_recipe(override(RECIPES["digits-standard"](), settings), tmp_path / name, data_spec="digits[:64]")
        assert seen.pop() == split.ids[:20]
    assert RECIPES["digits-standard"]().selection.split == "holdout"


def test_clean_accuracy_can_have_a_weight_in_the_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Robust accuracy peaks at the second check, half of each at the third; the flag still compares robust ones."""
    checks = [{"clean": 0.5, "robust": 0.4}, {"clean": 0.7, "robust": 0.5}, {"clean": 0.9, "robust": 0.42}]
    result = {}
    for share in (0.0, 0.5):
        left = iter(checks)
        runner = sys.modules["vitadel.recipes.runner"]
        monkeypatch.setattr(runner, "validation_scores", lambda *args, left=left, **values: next(left))
        settings = ["plan.epochs=3", "plan.warmup_epochs=0", "plan.validate_every_epochs=1", "plan.batch_size=64"]
        recipe = override(RECIPES["digits-standard"](), [*settings, f"selection.clean_share={share}"])
        train_recipe(recipe, tmp_path / str(share), data_spec="digits[:64]")
        result[share] = models.read_tensors(tmp_path / str(share) / "checkpoints" / "best.safetensors")[1]
        alarms = [json.loads(line) for line in (tmp_path / str(share) / "log.jsonl").read_text().splitlines()]
        codes = [(one["code"], one["evidence"]) for one in alarms if one["event"] == "alarm"]
        assert codes == [("robust-overfitting", {"best": 0.5, "robust": 0.42})]
    assert "'robust': 0.5" in result[0.0]["vitadel.selected"]
    assert "'robust': 0.42, 'score': 0.66" in result[0.5]["vitadel.selected"]


def test_an_override_changes_one_value() -> None:
    before = RECIPES["digits-adversarial"]()
    settings = ["plan.epochs=3", "objective.threat.eps=4/255", "plan.ema=0.99", "plan.precision=bf16", "seed=5"]
    after = override(before, settings)
    assert (after.plan.epochs, after.plan.ema, after.plan.precision, after.seed) == (3, 0.99, Precision.BF16, 5)
    assert isinstance(after.objective, Adversarial)
    assert after.objective.threat.eps == 4 / 255
    assert override(after, ["plan.ema=null"]).plan.ema is None
    assert override(before, []) == before
    assert before == RECIPES["digits-adversarial"]()


def test_a_float_written_as_an_integer_accepts_a_fraction() -> None:
    before = RECIPES["cifar10-vit-tiny-short"]()
    assert type(before.plan.warmup_epochs) is int
    assert override(before, ["plan.warmup_epochs=0.5"]).plan.warmup_epochs == 0.5


def test_values_have_their_declared_type() -> None:
    """Whatever the value is before, also if it is None."""
    recipe = override(
        RECIPES["xcit-s12-imagenet"](),
        ["model.patch_size=8", "plan.pil_augment.rand_augment=rand-m9", "plan.optimizer.exempt=*.temperature,*.bias"],
    )
    assert (recipe.model.patch_size, type(recipe.model.patch_size)) == (8, int)
    assert recipe.plan.pil_augment is not None
    assert recipe.plan.pil_augment.rand_augment == "rand-m9"
    assert isinstance(recipe.plan.optimizer, AdamW)
    assert recipe.plan.optimizer.exempt == ("*.temperature", "*.bias")
    none = override(recipe, ["plan.optimizer.exempt="]).plan.optimizer
    assert isinstance(none, AdamW)
    assert none.exempt == ()
    assert override(recipe, ["plan.pil_augment.scale=0.5,0.8"]).plan.pil_augment.scale == (0.5, 0.8)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_can_be_set_as_it_is_printed(name: str) -> None:
    recipe = RECIPES[name]()
    adversarial = ("objective", "inner", "attack", "trial_attack", "threat", "scaling", "tuning")
    updates = ("plan", "schedule", "optimizer", "augment", "pil_augment", "mixing")
    parts = (*adversarial, *updates, "model", "selection", "synthetic")
    for leaf in leaves(recipe):
        *_, last = leaf.path.split(".")
        if (last in parts and leaf.path != "model.tuning.tuning") or last.isdecimal():
            continue
        again = override(recipe, [f"{leaf.path}={leaf.value}"])
        assert {one.path: one.value for one in leaves(again)}[leaf.path] == leaf.value


def test_numbered_parts_are_set_by_number() -> None:
    recipe = override(RECIPES["xcit-s12-cifar10"](), ["plan.augment.steps.0.pad=2"])
    assert {one.path: one.value for one in leaves(recipe)}["plan.augment.steps.0.pad"] == "2"
    for setting, message in (
        ("plan.augment.steps.9.pad=2", "there are 3 parts, called 0 to 2. Name one"),
        ("plan.augment.steps.0=PadCrop", "is a whole PadCrop, which no text describes"),
        ("plan.optimizer.exempt.0=head", "there are no parts"),
    ):
        with pytest.raises(UsageError, match=message):
            override(recipe, [setting])


def test_names_of_earlier_versions_are_still_accepted() -> None:
    recipe = RECIPES["digits-adversarial"]()
    old = ["plan.batch=8", "plan.host.erase=0.5", "plan.workers=2", "plan.lr_each=epoch", "objective.each=epoch"]
    new = ["plan.batch_size=8", "plan.pil_augment.erase=0.5", "plan.num_workers=2", "plan.lr_unit=epoch"]
    assert override(recipe, [*old, "plan.lr_rule=root"]) == override(
        recipe, [*new, "objective.warmup_unit=epoch", "plan.lr_scaling=root"]
    )
    # of two for one field the last counts, whichever of its names they have
    assert override(recipe, ["plan.batch=8", "plan.batch_size=16"]).plan.batch_size == 16


def test_settings_are_applied_together_in_any_order() -> None:
    # two warm-up epochs of two would be refused on the way
    for settings in (["plan.epochs=2", "plan.warmup_epochs=1"], ["plan.warmup_epochs=1", "plan.epochs=2"]):
        plan = override(RECIPES["digits-standard"](), settings).plan
        assert (plan.epochs, plan.warmup_epochs) == (2, 1)
    assert override(RECIPES["digits-standard"](), ["seed=1", "seed=2"]).seed == 2


def test_whole_parts_are_set_unset_and_refined() -> None:
    before = RECIPES["digits-adversarial"]()
    after = override(
        before, ["selection.threat=linf:4/255", "selection.attack=pgd:steps=3", "selection.attack.restarts=2"]
    )
    assert after.selection == Selection(PGD(steps=3, restarts=2), Linf(4 / 255), before.selection.images)
    assert override(before, {"selection.attack": FGSM(), "plan.epochs": 7, "plan.ema": None}).selection.attack == FGSM()
    assert override(before, ["objective.attack=null"]).objective.attack is None  # type: ignore[attr-defined]
    none = override(before, ["selection.attack=null"])
    assert none.selection.attack is None
    with pytest.raises(UsageError, match=r"selection.attack is not set. Set selection.attack as a whole first"):
        override(none, ["selection.attack.steps=3"])


def test_errors_name_settings_as_the_caller_wrote_them() -> None:
    recipe = RECIPES["digits-adversarial"]()
    for settings, message in (
        (["plan.epochs=x"], r"^--set plan\.epochs needs a whole number, got 'x'"),
        ({"plan.epochs": "x"}, r"^plan\.epochs needs a whole number, got 'x'"),
        (["objective=trades:beta=x"], r"^--set objective=trades:beta is not a number"),
        ({"objective": "trades:beta=x"}, r"^objective=trades:beta is not a number"),
        (["plan.augment=x"], r"^--set plan\.augment is a whole Augment, .*, got 'x'\. Give an object in Python\.$"),
        ({"plan.augment.pad": 2}, r"^plan\.augment\.pad: plan\.augment is not set, .* Give an object in Python\.$"),
        (
            {"plan.optimizer": "x"},
            r"Set a value inside it, such as plan\.optimizer\.lr, or give an object in Python\.$",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            override(recipe, settings)


def test_a_default_warm_up_is_shortened_and_reported() -> None:
    messages: list[str] = []
    before = RECIPES["digits-standard"]()

    def notify(what: str, *_: object) -> None:
        messages.append(what)

    assert override(before, ["plan.epochs=1"], notify=notify).plan.warmup_epochs == 0.5
    assert messages == ["plan.warmup_epochs: 2 -> 0.5, because plan.epochs is 1"]
    assert override(before, ["plan.epochs=3"], notify=notify).plan.warmup_epochs == 2
    assert len(messages) == 1
    with pytest.raises(UsageError, match=r"TrainingConfig.warmup_epochs must lie in \[0, epochs\), got 1 of 1"):
        override(before, ["plan.epochs=1", "plan.warmup_epochs=1"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("plan.epochs", "Write path=value, such as plan.epochs=3"),
        ("plan.epoch=3", "unknown setting of TrainingConfig 'epoch'. Did you mean 'epochs'"),
        ("plan.epochs=three", "--set plan.epochs needs a whole number, got 'three'"),
        ("plan.epochs.x=3", "there is nothing below a int"),
        ("epochs=3", "unknown setting of Recipe 'epochs'. Did you mean 'plan.epochs'?"),
        ("objective.threat=l2", "the threat 'l2' has no radius. Write for example l2:0.5"),
        ("selection.attack=pdg", "unknown attack 'pdg'. Did you mean 'pgd'"),
        ("plan.clip_grad=wide", "is not a number: got 'wide'"),
        ("objective.threat.eps=8", "write 8/255, not 8"),
        ("selection.clean_share=2", r"Selection.clean_share must lie in \[0, 1\], got 2.0"),
        ("plan.precision=fp8", "unknown value of plan.precision 'fp8'"),
        ("objective.attack.random_start=yes", "needs true or false, got 'yes'"),
        ("plan.optimizer.betas=0.9", "needs 2 values with commas between, got '0.9'"),
        ("seed=--5", "needs a whole number, got '--5'"),
        ("plan.pil_augment=yes", "is a whole PILAugment, which no text describes"),
        ("objective.threat.eps=8/255/2", "--set objective.threat.eps is not a number: got '8/255/2'"),
        ("plan.epochs=-1", "TrainingConfig.epochs must be at least 1, got -1"),
        ("plan.batch_size=0", "TrainingConfig.batch_size must be at least 1, got 0"),
        ("plan.epochs=\N{FULLWIDTH DIGIT THREE}", "--set plan.epochs needs a whole number"),
        ("plan.epochs=" + "9" * 5000, "--set plan.epochs is too large a number"),
        ("plan.num_workers=1000000000", r"TrainingConfig.num_workers must lie in \[0, 1024\], got 1000000000"),
        ("plan.optimizer.lr=-0.1", "AdamW.lr must be positive, got -0.1"),
        ("plan.optimizer.betas=1,1", r"AdamW.betas\[0\] must lie in \[0, 1\), got 1.0"),
        ("seed=99999999999999999999", "--set seed is too large a number: got '99999999999999999999'"),
        ("selection.images=-1", "Selection.images must be at least 1, got -1"),
        ("selection.split=tset", "unknown selection.split 'tset'. Did you mean 'test'"),
        ("model.image_size=100000", r"ModelConfig.image_size must lie in \[1, 4096\], got 100000"),
        ("model.options.depth=" + "9" * 5000, "--set model.options.depth is too large a number"),
        ("model.options.drop=NaN", "--set model.options.drop needs a number, true, false or a word, got 'NaN'"),
        ("model.options.drop=-Infinity", "needs a number, true, false or a word, got '-Infinity'"),
        ("model.options.drop=1e999", "--set model.options.drop is too large a number: got '1e999'"),
        ("model.options.drop=" + "[" * 100_000, "needs a number, true, false or a word, got '"),
        ('model.options.drop={"a": 1}', "needs a number, true, false or a word, got "),
    ],
    ids=short_repr,
)
def test_invalid_settings_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        override(RECIPES["digits-adversarial"](), [setting])
