"""From a recipe to a run folder: the parts that identify a run, and changes that are refused."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vitadel as vd
from vitadel.core.errors import Stopped, UsageError
from vitadel.data import convert
from vitadel.models import load, save, weights_sha256
from vitadel.recipes import RECIPES, Recipe, SyntheticConfig, override, train_recipe
from vitadel.runs import Run, code_hashes
from vitadel.train import Mixing, PILAugment, Trainer

SHORT = ["plan.epochs=1", "plan.warmup_epochs=0", "plan.log_every_steps=1"]


def short() -> Recipe:
    return override(RECIPES["digits-adversarial"](), SHORT)


def test_other_code_is_not_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_recipe(short(), tmp_path / "run", data_spec="digits[:32]")
    train_recipe(short(), tmp_path / "run", data_spec="digits[:32]")

    def edited(*packages: str) -> dict[str, str]:
        return {**code_hashes(*packages), "train/loop.py": "0123456789ab"}

    # from the table of modules: as an attribute of the package, the name is the function's
    monkeypatch.setattr(sys.modules["vitadel.recipes.runner"], "code_hashes", edited)
    with pytest.raises(UsageError, match=r'it differs in parts.code.train/loop.py: "[0-9a-f]{12}" -> "0123456789ab"'):
        train_recipe(short(), tmp_path / "run", data_spec="digits[:32]")


def test_the_code_hash_covers_the_packages_that_affect_weights() -> None:
    files = code_hashes("train", "core")
    assert {"train/loop.py", "train/config.py", "core/rng.py"} <= files.keys()
    assert not any(name.startswith(("cli", "report")) for name in files)
    assert all(len(value) == 12 for value in files.values())


def test_start_weights_are_part_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "fit", lambda self: self.model)
    recipe, file = short(), tmp_path / "weights.safetensors"
    train_recipe(recipe, tmp_path / "fresh", data_spec="digits[:32]")
    assert "start" not in Run.open(tmp_path / "fresh").manifest.parts
    for place, start in enumerate((str(file), f"{recipe.model.start}@{file}")):
        choice, folder = replace(recipe.model, start=start), tmp_path / f"run{place}"
        for seed in (1, 2):
            model = load(
                recipe.model.start,
                num_classes=10,
                image_size=recipe.model.image_size,
                patch_size=recipe.model.patch_size,
                options=recipe.model.options,
                seed=seed,
            )
            save(model, file)
            if seed == 1:
                train_recipe(replace(recipe, model=choice), folder, data_spec="digits[:32]")
                parts = Run.open(folder).manifest.parts
                assert parts["start"] == weights_sha256(model.net.state_dict())
        with pytest.raises(UsageError, match="it differs in parts.start"):
            train_recipe(replace(recipe, model=choice), folder, data_spec="digits[:32]")


def test_another_recipe_is_refused(tmp_path: Path) -> None:
    train_recipe(short(), tmp_path / "run", data_spec="digits[:32]")
    with pytest.raises(UsageError, match=r"parts.recipe.objective.threat.eps: 0.0941.* -> 0.01568"):
        train_recipe(override(short(), ["objective.threat.eps=4/255"]), tmp_path / "run", data_spec="digits[:32]")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", image=images, label=np.arange(64) % 10)
    convert([tmp_path / "made.npz"], tmp_path / "shards")
    return tmp_path / "shards"


def test_synthetic_images_are_part_of_the_run(tmp_path: Path, shards: Path) -> None:
    recipe = replace(short(), synthetic=SyntheticConfig(str(shards), 0.5))
    train_recipe(override(recipe, ["synthetic.share=0.75"]), tmp_path / "run", data_spec="digits[:32]")
    parts = Run.open(tmp_path / "run").manifest.parts
    assert isinstance(parts, dict)
    assert parts["synthetic"]["count"] == 64
    with pytest.raises(UsageError, match="parts.recipe.synthetic.share: 0.75 -> 0.5"):
        train_recipe(recipe, tmp_path / "run", data_spec="digits[:32]")


def test_synthetic_images_of_more_classes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "made.npz", image=np.zeros((20, 8, 8, 3), np.uint8), label=np.arange(20))
    convert([tmp_path / "made.npz"], tmp_path / "shards")
    recipe = replace(short(), synthetic=SyntheticConfig(str(tmp_path / "shards"), 0.5))
    with pytest.raises(UsageError, match="have 20 classes, the real ones 10"):
        train_recipe(recipe, tmp_path / "run", data_spec="digits[:32]")
    missing = replace(short(), synthetic=SyntheticConfig(str(tmp_path / "nowhere"), 0.5))
    with pytest.raises(UsageError, match="nowhere"):
        train_recipe(missing, tmp_path / "run2", data_spec="digits[:32]")


def test_a_part_that_a_recipe_lacks_can_be_set() -> None:
    settings = ["synthetic.folder=made", "plan.mixing.cutmix=1", "plan.pil_augment.erase=0.25"]
    recipe = override(short(), settings)
    assert recipe.synthetic == SyntheticConfig("made", 0.8)
    assert recipe.plan.mixing == Mixing(cutmix=1.0)
    assert recipe.plan.pil_augment == PILAugment(erase=0.25)
    with pytest.raises(UsageError, match="unknown setting of Mixing 'cutmx'. Did you mean 'cutmix'"):
        override(short(), ["plan.mixing.cutmx=1"])
    with pytest.raises(UsageError, match="plan.ema is not set. Set plan.ema as a whole first"):
        override(short(), ["plan.ema.x=1"])


# ------------------------------------------------------- the entire training set


@pytest.mark.parametrize("split", ["none", "test"])
def test_nothing_is_held_out_where_the_hold_out_does_not_select(tmp_path: Path, split: str) -> None:
    """Wu et al. 2025: the training data are the entire training set, and the last checkpoint is tested."""
    usual, whole = vd.load_data("digits"), vd.load_data("digits", holdout=False)
    assert usual.holdout is not None
    assert whole.train is not None
    assert whole.holdout is None
    assert sorted(whole.train.ids) == sorted((*usual.split("train").ids, *usual.holdout.ids))
    assert whole.test.ids == usual.test.ids

    settings = [f"selection.split={split}", "selection.images=2", "plan.batch_size=256"]
    train_recipe(override(short(), settings), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.manifest.find("data", "splits") == whole.describe()["splits"]
    assert run.manifest.text("recipe", "selection", "split") == split
    assert run.read_log("step")[-1]["step"] == len(whole.train) // 256
    assert bool(run.read_log("holdout")) == (run.checkpoints / "best.safetensors").exists() == (split == "test")
    with pytest.raises(
        UsageError, match=rf"trained with selection.split={split}, on all .* Write split=\"test\" \(--split test\)"
    ):
        vd.evaluate(tmp_path / "run", "digits[:8]", "clean", split="holdout", run=tmp_path / "eval", progress=False)
    vd.evaluate(tmp_path / "run", "digits[:8]", "clean", run=tmp_path / "eval", progress=False)


def test_a_run_without_a_hold_out_resumes_and_keeps_its_last_weights(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if what == "training" and done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    recipe = override(short(), ["selection.split=none", "plan.batch_size=8"])
    whole = train_recipe(recipe, tmp_path / "whole", data_spec="digits[:48]")
    with pytest.raises(Stopped):
        train_recipe(recipe, tmp_path / "stopped", data_spec="digits[:48]", notify=stop)
    with pytest.raises(UsageError, match="it differs in parts"):  # with a hold-out it would be another run
        train_recipe(override(short(), ["plan.batch_size=8"]), tmp_path / "stopped", data_spec="digits[:48]")
    resumed = train_recipe(recipe, tmp_path / "stopped", data_spec="digits[:48]")
    last = load(tmp_path / "stopped" / "checkpoints" / "final.safetensors")
    weights = [
        weights_sha256(model.net.state_dict()) for model in (whole, resumed, last, load(str(tmp_path / "stopped")))
    ]
    assert weights == weights[:1] * 4
