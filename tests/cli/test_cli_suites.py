"""Suites with settings from the command line: interrupted, two processes, bad images, errors."""

import json
import signal
import socket
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitadel.core.errors import UsageError
from vitadel.evaluate import SUITES
from vitadel.evaluate.parsing import as_suites
from vitadel.evaluate.suites import Corruptions, GrayLevel, Transfer
from vitadel.models import load, save
from vitadel.runs import ResultFolder, Run

Command = Callable[..., tuple[int, str, str]]
Start = Callable[..., ForkServerProcess]

DEADLINE = 200.0
SUITE = "corruptions:names=gaussian_noise+fog+contrast,severities=2+5"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of 16 px."""
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    made = load("timm:test_vit", num_classes=10, image_size=16, patch_size=4, options=options)
    save(made, path := tmp_path_factory.mktemp("small") / "small.safetensors")
    return path


def without_time(summary: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in summary.items() if key != "seconds"}


def test_a_suite_runs_and_is_reported(vitadel: Command, model: Path, tmp_path: Path) -> None:
    words = ("evaluate", model, "--data", "digits[:12]", "--suite", f"clean,{SUITE},gray-level:steps=2", "--run")
    code, out, err = vitadel(*words, tmp_path / "run")
    assert code == 0, err
    assert "mean over 6 cells" in out
    assert "PGD-2 at 1 gray level" in out
    assert "of 12 images are classified correctly" in out.replace("\n", " ")
    assert Run.open(tmp_path / "run").evaluations() == ["clean", "corruptions", "gray-level"]
    suite = Run.open(tmp_path / "run").manifest.parts["suite"]
    assert suite[1]["severities"] == [2, 5]
    assert suite[2] == {"is": "GrayLevel", "levels": 1.0, "steps": 2, "iterate": "last"}
    code, output, _ = vitadel(*words, tmp_path / "run", "--json", "--batch", "5")
    assert code == 0
    assert "base64" not in output
    first, second, third = json.loads(output)["evaluations"]
    assert (first["name"], second["name"], third["name"]) == ("clean", "corruptions", "gray-level")
    assert second["measures"][0]["main"] is True
    assert "base64" in (tmp_path / "run" / "eval" / "corruptions" / "summary.json").read_text()
    assert vitadel("report", tmp_path / "run", "--out", tmp_path / "page.html")[0] == 0


def test_a_suite_killed_and_resumed_on_two_ranks_gives_the_same_result(
    start: Start, model: Path, tmp_path: Path
) -> None:
    words = ("evaluate", model, "--data", "digits[:31]", "--suite", SUITE, "--skip-unreadable", "--run")
    whole = start(*words, tmp_path / "whole", "--batch", "64")
    killed = start(*words, tmp_path / "killed", "--batch", "7", killed_at=("tables/fog-5/", 1))
    for process in (whole, killed):
        process.join(DEADLINE)
    assert (whole.exitcode, killed.exitcode) == (0, -signal.SIGKILL)
    left = ResultFolder(tmp_path / "killed" / "eval" / "corruptions")
    assert len(left.read("fog-2")["index"]) == 31
    assert left.read("fog-5") == {}
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    pair = [
        start(*words, tmp_path / "killed", environment={**place, "RANK": number, "LOCAL_RANK": number})
        for number in ("0", "1")
    ]
    for process in pair:
        process.join(DEADLINE)
    assert [process.exitcode for process in pair] == [0, 0]
    expected, result = (ResultFolder(tmp_path / run / "eval" / "corruptions") for run in ("whole", "killed"))
    assert result.rows() == expected.rows()
    assert without_time(result.read_verified()[0]) == without_time(expected.read_verified()[0])


def test_a_damaged_image_is_named_and_skipped_only_on_request(vitadel: Command, tmp_path: Path) -> None:
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    save(load("timm:test_vit", num_classes=2, image_size=16, patch_size=4, options=options), tmp_path / "m.safetensors")
    rng = np.random.default_rng(0)
    for number in range(6):
        path = tmp_path / "data" / "test" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    broken = tmp_path / "data" / "test" / "b" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    model, images = tmp_path / "m.safetensors", f"folder:{tmp_path / 'data'}"
    words = ("evaluate", model, "--data", images, "--suite", "quick,corruptions:names=fog")
    code, _, err = vitadel(*words, "--run", tmp_path / "refused")
    assert code == 2
    assert "cannot read the image" in err
    assert "test/b/3.png" in err
    code, out, err = vitadel(*words, "--skip-unreadable", "--json", "--run", tmp_path / "run")
    assert code == 0, err
    for summary in json.loads(out)["evaluations"]:
        assert summary["n"] == 5
        flag = next(flag for flag in summary["flags"] if flag["code"] == "images-skipped")
        assert flag["sentence"] == "1 images were skipped on request: test/b/3.png: cannot be read"
    assert Run.open(tmp_path / "run").manifest.parts["skipped"] == ["test/b/3.png: cannot be read"]


def test_another_file_of_the_same_name_is_another_run(vitadel: Command, model: Path, tmp_path: Path) -> None:
    def write(seed: int) -> None:
        options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
        other = load("timm:test_vit", num_classes=10, image_size=16, patch_size=4, options=options, seed=seed)
        save(other, tmp_path / "other.safetensors")
        (tmp_path / "ice").mkdir(exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "ice" / "a.png")

    def words(suite: str) -> tuple[str | Path, ...]:
        place = tmp_path / suite.partition(":")[0]
        return ("evaluate", model, "--data", "digits[:4]", "--suite", suite, "--run", place, "--json")

    suites = (
        f"transfer:sources={tmp_path / 'other.safetensors'},steps=1",
        f"corruptions:names=frost,severities=1,frost={tmp_path / 'ice'}",
    )
    write(seed=1)
    first = [vitadel(*words(suite)) for suite in suites]
    assert [code for code, _, _ in first] == [0, 0]
    assert [vitadel(*words(suite))[:2] for suite in suites] == [one[:2] for one in first]
    write(seed=2)
    for suite in suites:
        code, _, err = vitadel(*words(suite))
        assert code == 2
        assert "belongs to another run; it differs in parts.files" in err


def test_suites_are_listed_and_described(vitadel: Command) -> None:
    known = json.loads(vitadel("suites", "--json")[1])
    assert {"quick", "corruptions", "gray-level", "spatial", "transfer", "shape-bias", "imagenet-a"} <= set(known)
    assert json.loads(vitadel("suites", "spatial", "--json")[1])["rotations"] == 31
    about = vitadel("suites", "corruptions")[1]
    assert "1+2+3+4+5" in about
    assert "AlexNet" in about


def test_commas_separate_suites_and_settings() -> None:
    assert as_suites("quick") == [SUITES["quick"]]
    assert as_suites("clean,corruptions:severities=1+3,jpeg=85,gray-level") == [
        SUITES["clean"],
        Corruptions(severities=(1, 3), jpeg=85),
        GrayLevel(),
    ]
    assert as_suites("transfer:steps=3,sources=timm:a@b.pth+runs/x,clean") == [
        Transfer(sources=("timm:a@b.pth", "runs/x"), steps=3),
        SUITES["clean"],
    ]
    for text, message in {
        "corrupt": "unknown suite or attack 'corrupt'. Did you mean 'corruptions'?",
        "": "unknown suite or attack ''",
        "quick:steps=3": "the suite quick runs attacks and has no settings",
        "quick,steps=3": "the suite quick runs attacks and has no settings",
        "corruptions:severity=3": "unknown setting of corruptions 'severity'. Did you mean 'severities'?",
        "corruptions:jpeg=x": "corruptions:jpeg needs a whole number, got 'x'",
        "imagenet-a:label_space=some": "unknown imagenet-a:label_space 'some'. Known: all, subset",
        "clean,clean": "the suite clean is named twice",
    }.items():
        with pytest.raises(UsageError) as raised:
            as_suites(text)
        assert message in str(raised.value)


def test_invalid_arguments_are_refused(vitadel: Command, model: Path, trained: Path, tmp_path: Path) -> None:
    def error_of(suite: str, data: str = "digits[:4]", *more: str | Path, of: Path = model) -> str:
        words = ("evaluate", of, "--data", data, "--suite", suite, "--run", tmp_path / "run", *more)
        code, out, err = vitadel(*words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    path = tmp_path / "cues" / "cat" / "cat1-dog1.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(path)
    cue = f"cue-conflict:{tmp_path / 'cues'}"
    assert "are not the classes of a model, so quick does not apply" in error_of("quick", cue)
    assert "the model has 10 classes, not the 1000 of ImageNet" in error_of("shape-bias", cue)
    assert "about cue-conflict stimuli" in error_of("shape-bias")
    assert "Write --data imagenet-r:DIR" in error_of("imagenet-r")
    assert "at least 16 px a side, got 8" in error_of("corruptions", of=trained)
    assert "needs other models" in error_of("transfer")
    assert "keep_images=True (--keep-images) is about suites of attacks" in error_of(
        "gray-level", "digits[:4]", "--keep-images"
    )
    assert 'scaling="aas" (--scaling aas) is about suites of attacks' in error_of(
        "spatial", "digits[:4]", "--scaling", "aas"
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_is_checked_before_it_is_used(vitadel: Command, tmp_path: Path) -> None:
    path = tmp_path / "cues" / "cat" / "cat1-dog1.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(path)
    code, out, err = vitadel("data", "check", f"cue-conflict:{tmp_path / 'cues'}")
    assert code == 2
    assert "missing: class airplane: no images" in out
    assert "is not complete: 16 entries are missing, the first is class airplane: no images" in err
    code, out, _ = vitadel("data", "check", f"imagenet-c:{tmp_path}", "--json")
    assert code == 2
    assert len(json.loads(out)["missing"]) == 95
