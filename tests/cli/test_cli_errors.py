"""A user's mistake is one line and exit code 2; nothing written is lost."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitadel import cli, models

Command = Callable[..., tuple[int, str, str]]


def mistake(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.startswith("vitadel: ")
    assert err.count("\n") == 1, err
    return err


def test_unknown_arguments_are_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    run = ("--run", tmp_path / "run")
    assert "Did you mean 'digits-standard'" in mistake(vitadel("train", "digits-standart", *run))
    assert "unknown setting of TrainingConfig 'epoch'" in mistake(
        vitadel("train", "digits-standard", "--set", "plan.epoch=3", *run)
    )
    assert "unknown suite or attack 'quik'. Did you mean 'quick'" in mistake(
        vitadel("evaluate", trained, "--data", "digits", "--suite", "quik", *run)
    )
    evaluate = ("evaluate", trained, "--data", "digits[:8]", *run)
    assert "unknown threat 'lnf'. Did you mean 'linf'" in mistake(vitadel(*evaluate, "--threat", "lnf:8/255"))
    assert "is too large a number" in mistake(vitadel(*evaluate, "--threat", "l2:1e400"))
    assert "the seed must lie in [-9223372036854775808, 9223372036854775807], got 999" in mistake(
        vitadel(*evaluate, "--seed", "99999999999999999999999")
    )
    assert "write 8/255, not 8" in mistake(vitadel(*evaluate, "--threat", "linf:8"))
    assert "is not a model: no such file or folder" in mistake(
        vitadel("evaluate", "runs/nope", "--data", "digits", *run)
    )
    assert "timm has no model" in mistake(vitadel("evaluate", "timm:vit_tinny", "--data", "digits", *run))
    assert "unknown attack 'pdg'. Did you mean 'pgd'" in mistake(
        vitadel("attack", trained, "--data", "digits", "--attack", "pdg", *run)
    )
    attack = ("attack", trained, "--data", "digits[:8]", *run, "--attack")
    assert "unknown setting of pgd 'step'" in mistake(vitadel(*attack, "pgd:step=3"))
    assert "pgd:steps needs a whole number, got 'x'" in mistake(vitadel(*attack, "pgd:steps=x"))
    assert "has no target" in mistake(vitadel(*attack, "pgd:loss=kl,target=runner-up"))
    assert "unknown loss 'mse'" in mistake(vitadel(*attack, "pgd:loss=mse"))
    assert "Missing option" in mistake(vitadel("evaluate", trained))
    assert "No such command 'evalate'" in mistake(vitadel("evalate"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("evaluate M --norm L2 --eps 0.5", "evaluate has no option '--norm'. Norm and radius are written together: "),
        ("evaluate M --norm L2 --eps 0.5", "write --threat l2:0.5. See `vitadel evaluate --help`."),
        ("attack M --eps=4/255", "write --threat linf:4/255."),
        ("robustness M", "No such command 'robustness'. See `vitadel --help`."),
        ("evaluate M --batch_size 3", "Write --batch-size 3."),
        ("evaluate M --attack pgd", "Write --suite pgd."),
        ("evaluate M --gpu 1", "Write --device cuda:1."),
        ("evaluate M --run R --data D more", "Got unexpected extra argument(s) (more). See"),
        ("train R --epochs=3", "Write --set plan.epochs=3."),
        ("train R --eps 8/255", "write --set objective.threat=linf:8/255."),
        ("train R --device cuda:2", "Write CUDA_VISIBLE_DEVICES=2 vitadel train"),
        ("sweep R --device cpu", "Write CUDA_VISIBLE_DEVICES= vitadel sweep"),
        ("demo --device cuda", "demo has no option '--device'. Training uses the GPU if available."),
        ("report R --xyz", "report has no option '--xyz'. See `vitadel report --help`."),
        ("--norm linf", "there is no option '--norm'. See `vitadel --help`."),
    ],
)
def test_an_unknown_option_is_refused_with_what_to_write(vitadel: Command, words: str, wanted: str) -> None:
    assert wanted in mistake(vitadel(*words.split()))


@pytest.mark.parametrize("words", [(), ("data",)])
def test_no_command_prints_the_whole_help(vitadel: Command, words: tuple[str, ...]) -> None:
    code, out, err = vitadel(*words)
    assert (code, err) == (2, "")
    assert out == vitadel(*words, "--help")[1]


def test_numbers_out_of_range_are_refused_before_a_folder_is_taken(
    vitadel: Command, trained: Path, tmp_path: Path
) -> None:
    run = ("--run", tmp_path / "run")
    train = ("train", "digits-standard", "--data", "digits[:64]", *run, "--set")
    for setting, message in (
        ("selection.images=-1", "Selection.images must be at least 1, got -1"),
        ("selection.split=tset", "unknown selection.split 'tset'"),
        ("plan.optimizer.betas=1,1", "AdamW.betas[0] must lie in [0, 1), got 1.0"),
        ("seed=18446744073709551616", "--set seed is too large a number: got '18446744073709551616'"),
        ("preprocess=squash:99999999", "Squash.size must lie in [1, 4096], got 99999999"),
        ("model.image_size=100000", "ModelConfig.image_size must lie in [1, 4096], got 100000"),
    ):
        assert message in mistake(vitadel(*train, setting))
    evaluate = ("evaluate", trained, "--data", "digits[:8]", *run)
    assert "Squash.size must lie in" in mistake(vitadel(*evaluate, "--preprocess", "squash:99999999"))
    assert "'linf:8/255/2' is not a number" in mistake(vitadel(*evaluate, "--threat", "linf:8/255/2"))
    assert "has too many digits" in mistake(vitadel(*evaluate, "--threat", "linf:1/1e999999999"))
    assert "Engine.batch_size must lie in [1, 2147483647]" in mistake(vitadel(*evaluate, "--batch", "9999999999"))
    assert "allows every image of shape (3, 8, 8)" in mistake(
        vitadel(*evaluate, "--suite", "curve", "--threat", "l2:4")
    )
    transfer = (*evaluate, "--suite", f"transfer:sources={trained}", "--threat", "l2:1000")
    assert "allows every image of shape (3, 8, 8)" in mistake(vitadel(*transfer))
    assert "GrayLevel.levels must lie in (0, 255]" in mistake(vitadel(*evaluate, "--suite", "gray-level:levels=0"))
    attack = ("attack", trained, "--data", "digits[:8]", *run, "--attack")
    assert "PGD.steps must be at least 1, got -1" in mistake(vitadel(*attack, "pgd:steps=-1"))
    assert "FGSM.step_size must be positive, got -0.1" in mistake(vitadel(*attack, "fgsm:step_size=-0.1"))
    refused = mistake(vitadel(*attack, "fgsm", "--scaling", "aas:trial_images=0"))
    assert "Scaling.trial_images must be at least 1, got 0" in refused
    assert "Scaling.grid[0] must be positive" in mistake(vitadel(*attack, "fgsm", "--scaling", "0"))
    analyze = ("analyze", "saliency", trained, "--data", "digits[:8]", *run)
    assert "allows every image of shape (3, 8, 8)" in mistake(vitadel(*analyze, "--threat", "l1:1000"))
    assert not (tmp_path / "run").exists()


def test_a_shortened_warmup_is_not_reported_before_a_refusal(vitadel: Command, tmp_path: Path) -> None:
    run = ("--run", tmp_path / "run")
    words = ("digits-standard", "--set", "plan.epochs=1", "--data", "digits[:8]")
    assert "is not a model" in mistake(vitadel("train", *words, "--set", "model.start=nowhere.safetensors", *run))
    assert "too large a number" in mistake(vitadel("sweep", *words, "--axis", "plan.clip_grad=1,1e400", *run))
    assert not (tmp_path / "run").exists()


def test_missing_data_is_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    evaluate = ("evaluate", trained, "--run", tmp_path / "run", "--data")
    assert "there is no folder" in mistake(vitadel(*evaluate, f"folder:{tmp_path / 'nope'}"))
    assert "unknown split 'validation'" in mistake(vitadel(*evaluate, "digits[:8]", "--split", "validation"))
    assert "[:0]" in mistake(vitadel(*evaluate, "digits[:0]"))


def test_a_model_for_other_classes_is_refused(vitadel: Command, tmp_path: Path) -> None:
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=3, image_size=8, patch_size=2, options=options)
    models.save(model, tmp_path / "three.safetensors")
    words = ("evaluate", tmp_path / "three.safetensors", "--data", "digits[:8]", "--run", tmp_path / "run")
    error = mistake(vitadel(*words))
    assert "the model has 3 output classes and digits[:8] has 10" in error
    assert "Choose a model with 10 classes" in error
    for command in (("evaluate",), ("attack", "--attack", "pgd"), ("analyze", "correlation")):
        words = (*command, "timm:test_vit", "--data", "digits[:8]", "--run", tmp_path / "run")
        assert "the model has 1000 output classes and digits[:8] has 10" in mistake(vitadel(*words))
    assert not (tmp_path / "run").exists()


def test_a_trained_head_is_never_replaced_for_evaluation(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    net = models.load("timm:test_resnet", num_classes=4).net
    torch.save(net.state_dict(), tmp_path / "four.pth")
    for model, own in ((trained, 10), (f"timm:test_resnet@{tmp_path / 'four.pth'}", 4)):
        words = ("evaluate", model, "--data", "digits[:8]", "--classes", "7", "--run", tmp_path / "run")
        assert f"has {own} classes, not 7, and a new head" in (error := mistake(vitadel(*words)))
        assert error.endswith(f"Write num_classes={own} (--num-classes {own}).\n")
    same = ("evaluate", trained, "--data", "digits[:8]", "--suite", "clean", "--classes", "10")
    assert vitadel(*same, "--run", tmp_path / "run")[0] == 0


def test_weights_for_other_image_sizes_are_not_evaluated(vitadel: Command, tmp_path: Path) -> None:
    net = models.load("timm:test_vit", num_classes=10, image_size=32, patch_size=4).net
    torch.save(net.state_dict(), tmp_path / "w.pth")
    text = f"timm:test_vit@{tmp_path / 'w.pth'}"
    for command in (("evaluate",), ("attack", "--attack", "pgd"), ("analyze", "correlation")):
        words = (*command, text, "--data", "digits[:8]", "--classes", "10", "--run", tmp_path / "run")
        error = mistake(vitadel(*words))
        assert "have patches of 4, a grid of 8 x 8 tokens, so they are of images of 32 x 32; timm:test_vit was" in error
        assert "Write --image-size 32 --patch-size 4 (" in error
    assert not (tmp_path / "run").exists()


def test_invalid_sizes_and_normalizations_are_refused(vitadel: Command, tmp_path: Path) -> None:
    words = ("evaluate", "timm:test_vit", "--data", "digits[:8]", "--run", tmp_path / "run")
    for flags, message in (
        (("--classes", "1000000000"), "num_classes must be a whole number from 1 to 65536, got 1000000000"),
        (("--image-size", "100000"), "image_size must be a whole number from 1 to 4096, got 100000"),
        (("--patch-size", "-1"), "patch_size must be a whole number from 1 to 128, got -1"),
        (("--mean", "0.5,0.5,0.5"), "needs mean and std"),
        (("--std", "0.5,0.5,0.5"), "needs mean and std"),
        (
            ("--mean", "0.5,0.5", "--std", "0.5"),
            "--mean needs one number, or three, one per channel, got '0.5,0.5'. Write --mean 0.5,0.5,0.5.",
        ),
        (("--mean", "a,b,c", "--std", "1,1,1"), "--mean is not a number: got 'a'"),
        (("--mean", "0,0,0", "--std", "1,1,0"), "one mean and one positive std per channel"),
    ):
        assert message in mistake(vitadel(*words, *flags))
    train = ("train", "digits-standard", "--data", "digits[:64]", "--run", tmp_path / "run", "--set")
    for setting, message in (
        ("model.options.depth=-1", "the option depth must be a whole number from 1 to 256, got -1"),
        ("model.options.embed_dim=1000000000", "the option embed_dim must be a whole number from 1 to 65536, got"),
        ("model.options.depth=" + "[" * 5000, "model.options.depth needs a number, true, false or a word"),
        ("model.options.checkpoint_path=w.pth", "unknown option of timm:test_vit 'checkpoint_path'"),
        ("model.image_size=100000", "ModelConfig.image_size must lie in [1, 4096], got 100000"),
    ):
        assert message in mistake(vitadel(*train, setting))
    assert not (tmp_path / "run").exists()


def test_a_model_with_nan_weights_is_refused(vitadel: Command, tmp_path: Path) -> None:
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    with torch.no_grad():
        model.net.get_parameter("head.weight").fill_(float("nan"))
    models.save(model, tmp_path / "nan.safetensors")
    words = ("evaluate", tmp_path / "nan.safetensors", "--data", "digits[:8]", "--run", tmp_path / "run")
    assert "NaN or infinite logits" in mistake(vitadel(*words))


def test_a_truncated_checkpoint_is_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    whole = (trained / "checkpoints" / "best.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    words = ("evaluate", tmp_path / "cut.safetensors", "--data", "digits[:8]", "--run", tmp_path / "run")
    assert "is truncated or not a safetensors file" in mistake(vitadel(*words))


def test_an_unwritable_folder_is_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("evaluate", trained, "--data", "digits[:8]", "--run", tmp_path / "file" / "run")
    assert "cannot write" in mistake(vitadel(*words))
    assert "a report is one file in a folder" in mistake(
        vitadel("report", trained, "--out", tmp_path / "file" / "page.html")
    )


def test_a_folder_that_is_not_a_run_is_refused(vitadel: Command, tmp_path: Path) -> None:
    assert "is not a run folder" in mistake(vitadel("report", tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    words = ("train", "digits-standard", "--run", tmp_path)
    assert "is not empty and not a run folder" in mistake(vitadel(*words))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_error_lines_are_bounded_and_without_control_characters(
    vitadel: Command, trained: Path, tmp_path: Path
) -> None:
    words = ("evaluate", trained, "--data", "digits[:8]", "--run", tmp_path / "run", "--threat")
    error = mistake(vitadel(*words, "linf:" + "7" * 6000))
    assert len(error) < 1600
    assert "77... has too many digits" in error
    error = mistake(vitadel("report", tmp_path / "red\x1b[31m\u202e"))
    assert "red\\x1b[31m\\u202e is not a run folder" in error
    assert error.rstrip("\n").isprintable()


@pytest.mark.parametrize("side", [10_000, 14_000])
def test_huge_pictures_are_one_line_of_error(
    vitadel: Command, tmp_path: Path, recwarn: pytest.WarningsRecorder, side: int
) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split / "a"
        folder.mkdir(parents=True)
        Image.new("1", (side, side)).save(folder / "0.png")
    error = mistake(vitadel("data", "show", f"folder:{tmp_path}", "--out", tmp_path / "a.png"))
    assert re.search(rf"cannot read the image .*{tmp_path}/train/a/0\.png: .*pixels", error)
    assert not recwarn.list
    assert not (tmp_path / "a.png").exists()


def test_control_c_exits_with_130_and_keeps_results(
    vitadel: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitadel.runs import ResultFolder

    append = ResultFolder.append

    def interrupted(self: ResultFolder, table: str, columns: dict[str, list[object]]) -> None:
        append(self, table, columns)
        raise KeyboardInterrupt

    monkeypatch.setattr(ResultFolder, "append", interrupted)
    words = ("evaluate", trained, "--data", "digits[:8]", "--batch", "4", "--run", tmp_path / "run")
    code, _, err = vitadel(*words)
    assert code == 130
    assert err.splitlines()[-1] == "vitadel: stopped. Finished work is kept: the same command resumes."
    results = ResultFolder(tmp_path / "run" / "eval" / "quick-linf-8_255")
    assert results.read("clean")["index"] == list(range(8))
    assert not results.finished


def test_control_c_before_the_command_starts_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitadel.cli.app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "vitadel: stopped.\n")


def test_commands_have_exactly_these_options() -> None:
    """Configuration belongs in recipes: a new flag has to be written down here."""
    from typer.main import get_command

    from vitadel.cli import app

    command = get_command(app)
    result = {
        name: sorted(option for parameter in sub.params for option in parameter.opts if option.startswith("--"))
        for name, sub in command.commands.items()  # type: ignore[attr-defined]
        if name != "data"
    }
    sweep = ["--attack", "--axis", "--data", "--json", "--model", "--run", "--set", "--small", "--study"]
    judge = [
        "--batch-size",
        "--num-classes",
        "--device",
        "--compile",
        "--data",
        "--json",
        "--precision",
        "--preprocess",
        "--run",
        "--seed",
    ]
    judge += ["--keep-images", "--split", "--threat", "--image-size", "--patch-size", "--mean", "--std"]
    assert {name: [o for o in options if o != "--help"] for name, options in result.items()} == {
        "demo": ["--json", "--out"],
        "train": ["--data", "--json", "--run", "--set"],
        "sweep": sorted(["--suite", "--test-data", "--threat", *sweep]),
        "sweeps": ["--json"],
        "attack": sorted([*judge, "--attack", "--scaling", "--skip-unreadable"]),
        "evaluate": sorted([*judge, "--scaling", "--skip-unreadable", "--suite"]),
        "report": ["--baseline", "--json", "--out", "--tables"],
        "recipes": ["--json"],
        "models": ["--image-size", "--json", "--num-classes", "--patch-size"],
        "attacks": ["--json"],
        "scalings": ["--json"],
        "suites": ["--json"],
        "analyze": sorted({*judge, "--skip-unreadable"} - {"--compile", "--precision", "--keep-images"}),
        "studies": ["--json"],
    }
