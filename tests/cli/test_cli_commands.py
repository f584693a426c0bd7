"""Every command does what its help describes and can print JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitadel import models
from vitadel.api.catalog import CATALOGS
from vitadel.api.inputs import Inputs
from vitadel.data import parse_preprocess
from vitadel.recipes import RECIPES, leaves, override
from vitadel.runs import Run

Command = Callable[..., tuple[int, str, str]]


def test_train_then_evaluate_then_report(vitadel: Command, tmp_path: Path) -> None:
    short = ("--set", "plan.epochs=2", "--set", "plan.warmup_epochs=1", "--data", "digits[:128]")
    code, out, err = vitadel("train", "digits-standard", "--run", tmp_path / "t", *short)
    assert code == 0
    assert "digits-standard is trained" in out
    assert "training: 8/8" in err
    manifest = Run.open(tmp_path / "t").manifest
    parts = manifest.parts
    assert parts["recipe"]["plan"]["epochs"] == 2
    assert parts["data"]["spec"] == "digits[:128]"

    common = ("--data", "digits[:32]", "--threat", "linf:16/255")
    code, out, _ = vitadel(
        "evaluate", tmp_path / "t", "--run", tmp_path / "e", "--suite", "clean,quick", *common, "--json"
    )
    assert code == 0
    clean, quick = json.loads(out)["evaluations"]
    assert clean["threat"] is None
    assert quick["threat"]["text"] == "linf:16/255"
    assert quick["n"] == 32
    assert [attack["name"] for attack in quick["attacks"]] == ["fgsm", "pgd-ce", "pgd-margin"]

    code, out, _ = vitadel("report", tmp_path / "t", tmp_path / "e", "--out", tmp_path / "page.html")
    assert (code, out.strip()) == (0, str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert f"{100 * quick['clean']['accuracy']:.1f}" in page
    assert "digits-standard" in page


def test_attack_takes_settings(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("attack", trained, "--data", "digits[:16]", "--threat", "l2:1.5", "--run", tmp_path / "run", "--json")
    code, out, _ = vitadel(*words, "--attack", "pgd:steps=3,step_size=1/2,loss=margin,schedule=cosine,restarts=2")
    assert code == 0
    (result,) = json.loads(out)["evaluations"]
    assert result["threat"] == {"norm": "l2", "eps": 1.5, "text": "l2:1.5"}
    manifest = Run.open(tmp_path / "run").manifest
    entry = manifest.parts["suite"][0]["attacks"][0]
    assert entry["attack"] == {
        "is": "PGD",
        "steps": 3,
        "step_size": 0.5,
        "random_start": True,
        "start_noise": None,
        "restarts": 2,
        "schedule": "vitadel.attacks.pgd.cosine",
        "keep_best": True,
        "targets": 0,
    }
    assert entry["loss"] == "vitadel.losses.margin"


def test_a_targeted_attack(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("attack", trained, "--data", "digits[:16]", "--threat", "linf:0.5", "--run", tmp_path / "run")
    code, out, _ = vitadel(*words, "--attack", "pgd:steps=5,target=runner-up")
    assert code == 0
    assert "linf:0.5" in out


def test_kl_divergence_from_the_clean_prediction(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("attack", trained, "--data", "digits[:16]", "--threat", "linf:0.3", "--run", tmp_path / "run", "--json")
    code, out, _ = vitadel(*words, "--attack", "pgd:steps=5,loss=kl")
    assert code == 0
    (result,) = json.loads(out)["evaluations"]
    assert result["robust"]["correct"] < result["clean"]["correct"]


def test_the_same_command_resumes_and_another_is_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--data", "digits[:16]", "--run", tmp_path / "run", "--json")
    first = vitadel(*words, "--threat", "linf:8/255")
    rows = (tmp_path / "run" / "eval" / "quick-linf-8_255" / "rows.parquet").read_bytes()
    assert vitadel(*words, "--threat", "linf:8/255", "--batch", "5")[:2] == first[:2]
    code, out, err = vitadel(*words, "--threat", "linf:4/255")
    assert (code, out) == (2, "")
    assert err.startswith("vitadel: ")
    assert "belongs to another run; it differs in parts.threat.eps" in err
    code, _, err = vitadel(*words, "--threat", "linf:8/255", "--keep-images")  # images of broken rows were not kept
    assert code == 2
    assert "belongs to another run; it differs in parts.keep_images" in err
    assert err.count("\n") == 1
    assert (tmp_path / "run" / "eval" / "quick-linf-8_255" / "rows.parquet").read_bytes() == rows


def test_catalogs(vitadel: Command) -> None:
    assert "digits-adversarial" in json.loads(vitadel("recipes", "--json")[1])
    recipe = json.loads(vitadel("recipes", "digits-adversarial", "--json")[1])
    assert recipe["objective"]["is"] == "Adversarial"
    assert "our choice" in vitadel("recipes", "digits-adversarial")[1]
    assert set(json.loads(vitadel("attacks", "--json")[1])) == {
        "fgsm",
        "pgd",
        "apgd",
        "fab",
        "square",
        "gama",
        "autoattack",
        "autoattack-plus",
        "autoattack-rand",
    }
    assert json.loads(vitadel("attacks", "pgd", "--json")[1])["restarts"] == "1"
    assert "step_size" in vitadel("attacks", "pgd")[1]
    apgd = {"steps": "100", "restarts": "1", "targets": "0", "eot_samples": "1", "use_larger_eps": "False"}
    assert json.loads(vitadel("attacks", "apgd", "--json")[1]) == apgd
    assert json.loads(vitadel("attacks", "square", "--json")[1])["queries"] == "5000"
    assert set(json.loads(vitadel("suites", "--json")[1])) == {
        "clean",
        "quick",
        "curve",
        "autoattack",
        "autoattack-plus",
        "autoattack-rand",
        "corruptions",
        "gray-level",
        "spatial",
        "transfer",
        "shape-bias",
        "natural-adversarial",
        "imagenet-a",
        "imagenet-r",
    }
    assert json.loads(vitadel("suites", "curve", "--json")[1])["eps_scales"] == [0.25, 0.5, 1, 2, 4]
    assert "vitadel:wrn28_10" in json.loads(vitadel("models", "--json")[1])


def test_models_describes_one_model(vitadel: Command) -> None:
    code, out, _ = vitadel("models", "timm:deit_tiny_patch16_224", "--classes", "10", "--json")
    about = json.loads(out)
    assert code == 0
    assert (about["parameters"], about["image_size"], about["patch_size"]) == (5526346, 224, 16)
    # 1.26 GMAC is the usual figure; it includes the attention products
    assert about["gmacs"] == pytest.approx(1.25, abs=0.02)
    assert about["gflops"] == pytest.approx(2 * about["gmacs"], abs=0.002)
    assert "blocks.11.attn.logits" in about["taps"]
    assert "products inside attention counted" in vitadel("models", "timm:test_vit")[1]


def test_data_describe_and_check(vitadel: Command, tmp_path: Path) -> None:
    about = json.loads(vitadel("data", "describe", "digits", "--json")[1])
    assert [split["count"] for split in about["splits"].values()] == [1293, 145, 359]
    assert vitadel("data", "check", "digits[:20]")[0] == 0
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "broken.png").write_text("not a picture")
    code, out, err = vitadel("data", "check", f"folder:{tmp_path}")
    assert code == 2
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        assert f"cannot be read: {place}/broken.png\n" in out
    assert "4 images cannot be read" in err
    assert "broken.png" in err


def test_data_show_draws_a_file(vitadel: Command, tmp_path: Path) -> None:
    words = ("data", "show", "digits[:8]", "--copies", "1", "--images", "2", "--out")
    code, out, _ = vitadel(*words, tmp_path / "a.png", "--augmentation", "mixup", "--json")
    assert (code, json.loads(out)) == (0, {"file": str(tmp_path / "a.png")})
    first = (tmp_path / "a.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    vitadel(*words, tmp_path / "b.png", "--augmentation", "mixup")
    vitadel(*words, tmp_path / "c.png", "--augmentation", "mixup", "--seed", "1")
    assert (tmp_path / "b.png").read_bytes() == first != (tmp_path / "c.png").read_bytes()
    code, _, err = vitadel(*words, tmp_path / "d.png", "--recipe", "digits-standard")
    assert code == 2
    assert "digits-standard augments nothing, so there is nothing to show. Give a set" in err


def test_progress_bars_appear_on_a_terminal(
    vitadel: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, _, err = vitadel("evaluate", trained, "--data", "digits[:16]", "--run", tmp_path / "run")
    assert code == 0
    assert "16/16" in err
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in err  # the bar itself; plain lines have none


@pytest.mark.parametrize("terminal", [False, True])
def test_flags_are_shown_as_they_are_raised(
    vitadel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    settings = ("--set=plan.optimizer.lr=1e10", "--set=plan.clip_grad=null", "--set=plan.log_every_steps=1")
    code, _, err = vitadel("train", "digits-standard", "--data", "digits[:64]", *settings, "--run", tmp_path / "run")
    assert code == 2
    plain = " ".join(err.split())
    assert plain.count("flag at step 0: the loss is no longer finite at step 2: rolled back to step 0") == 3
    assert "for the 4th time. Lower the learning rate" in plain


def test_python_minus_m() -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "vitadel", "suites", "nope"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    known = "autoattack, autoattack-plus, autoattack-rand, clean, corruptions, curve, gray-level, imagenet-a, "
    known += "imagenet-r, natural-adversarial, quick, shape-bias, spatial, transfer"
    assert done.stderr == f"vitadel: unknown suite 'nope'. Known: {known}.\n"


def test_preprocessing_of_a_run_is_used_however_its_model_is_named(tmp_path: Path) -> None:
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    base = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    for name, model in (("base", base), ("tora", models.tora(base))):
        recipe = {"name": f"{name}-recipe", "preprocess": "crop:8:12"}
        run = Run.claim(tmp_path / name, "train", {"recipe": recipe}, device="cpu")
        run.checkpoints.mkdir()
        models.save(model, run.checkpoints / "best.safetensors")
    models.save(base, tmp_path / "copied.safetensors")
    models.save_adapters(models.tora(base), tmp_path / "adapters.safetensors")
    for place in (
        "tora",
        "tora#rob",
        "tora/checkpoints/best.safetensors",
        "tora/checkpoints/best.safetensors#rob",
        f"base+{tmp_path}/adapters.safetensors",
        f"base+{tmp_path}/adapters.safetensors#rob",
    ):
        text = f"{tmp_path}/{place}"
        job = Inputs.prepare(text, "digits[:4]")
        assert job.data.preprocess == parse_preprocess("crop:8:12"), text
        assert job.name == ("tora-recipe" if place == "tora" else text)
        chosen = Inputs.prepare(text, "digits[:4]", preprocess="crop:8")
        assert chosen.data.preprocess == parse_preprocess("crop:8")
    copied = Inputs.prepare(tmp_path / "copied.safetensors", "digits[:4]")
    assert copied.data.preprocess == parse_preprocess("squash:8")


def test_assumptions_about_a_file_are_reported_and_recorded(vitadel: Command, tmp_path: Path) -> None:
    net = models.load("timm:test_vit", num_classes=10, image_size=16, patch_size=4).net
    torch.save(net.state_dict(), tmp_path / "w.pth")
    text = f"timm:test_vit@{tmp_path / 'w.pth'}"
    sizes = ("--classes", 10, "--image-size", 16, "--patch-size", 4)
    judge = ("evaluate", text, "--data", "digits[:8]", "--suite", "clean", *map(str, sizes), "--run")
    assert vitadel(*judge[:2], "--data", "digits[:8]", "--classes", "10", "--run", tmp_path / "a")[0] == 2
    code, _, err = vitadel(*judge, tmp_path / "assumed")
    assert code == 0
    assert (
        f"assumed: the weights in {text} take images of 16 x 16 in patches of 4, with mean 0.5, 0.5, 0.5 and std "
        "0.5, 0.5, 0.5 in [0, 1], as is usual for this architecture; the file does not say. Otherwise write "
        "--image-size, --patch-size, --mean, --std (image_size=..., ... in Python).\n"
    ) in err
    half = {"is": "Normalization", "mean": [0.5] * 3, "std": [0.5] * 3}
    parts = parts_of(tmp_path / "assumed")
    assert parts["assumed"] == {"normalization": half}
    assert parts["model"]["spec"]["normalization"] == half
    given = ("--mean", "0,0,0", "--std", "1,1,255/255")
    code, _, err = vitadel(*judge, tmp_path / "given", *given)
    assert code == 0
    assert "assumed" not in err
    parts = parts_of(tmp_path / "given")
    assert "assumed" not in parts
    assert parts["model"]["spec"]["normalization"] == {"is": "Normalization", "mean": [0.0] * 3, "std": [1.0] * 3}
    code, out, _ = vitadel(*judge, tmp_path / "json", "--json")
    assert code == 0
    assert json.loads(out)["evaluations"]
    assert "assumed" in parts_of(tmp_path / "json")


def test_a_study_reports_assumptions_too(vitadel: Command, tmp_path: Path) -> None:
    net = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=4).net
    torch.save(net.state_dict(), tmp_path / "w.pth")
    words = ("analyze", "correlation", f"timm:test_vit@{tmp_path / 'w.pth'}", "--data", "digits[:8]")
    sizes = ("--classes", "10", "--image-size", "8", "--patch-size", "4")
    code, _, err = vitadel(*words, *sizes, "--run", tmp_path / "run")
    assert code == 0
    assert err.startswith("assumed: the weights in timm:test_vit@")
    assert "assumed" in parts_of(tmp_path / "run")


def parts_of(run: Path) -> dict[str, Any]:
    parts = Run.open(run).manifest.parts
    assert isinstance(parts, dict)
    return parts


def test_pages_of_recipes_describe_every_setting_in_one_notation(vitadel: Command) -> None:
    page = " ".join(vitadel("recipes", "vit-b2-cifar10")[1].split())
    assert "plan.optimizer.betas = 0.9+0.99 " in page
    assert "plan.optimizer.exempt = () " in page
    assert "plan.pil_augment = none " in page
    assert "plan.epochs = " in page
    assert "[authors' code: " in page
    recipe = RECIPES["vit-b2-cifar10"]()
    for other in ("vit-b2-cifar10", "xcit-s12-imagenet", "digits-adversarial"):
        silent = [leaf.path for leaf in leaves(RECIPES[other]()) if not leaf.about]
        # options of timm's constructors, and the transforms of a chain
        assert not [path for path in silent if not path.startswith("model.options.") and path[-1] not in "0123456789"]
    written = [f"{leaf.path}={leaf.text}" for leaf in leaves(recipe) if leaf.path.startswith("plan.optimizer.")]
    assert override(recipe, written) == recipe
    model = vitadel("models", "timm:test_vit")[1]
    assert "mean = 0.5+0.5+0.5 " in model
    assert "loss ce" in vitadel("suites", "autoattack")[1]
    groups = {item.group for item in CATALOGS["recipes"].find()}  # type: ignore[union-attr]
    assert not [group for group in groups if group.endswith(".")]


def test_models_are_listed_without_timm_and_searched_with_it(vitadel: Command) -> None:
    code = (
        "import sys; from vitadel.api.catalog import CATALOGS; CATALOGS['models'].find(); print('timm' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
    names = json.loads(vitadel("models", "vit_tiny", "--json")[1])
    assert "timm:vit_tiny_patch16_224" in names
    assert all("vit_tiny" in name for name in names)
    assert "unknown model 'nonsense'" in vitadel("models", "nonsense")[2]
