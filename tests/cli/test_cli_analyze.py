"""`vitadel analyze` and `vitadel studies`: results, figures, resuming, errors."""

import enum
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from vitadel.analyze import STUDIES
from vitadel.api.analyze import as_study
from vitadel.core.errors import UsageError
from vitadel.models import Option, load, save, tora
from vitadel.runs import Run

Command = Callable[..., tuple[int, str, str]]
Start = Callable[..., ForkServerProcess]

SMALL = "masking-quick:steps=3,iterations=2+3,shares=1,curve_steps=2,targets=1,queries=5,blocks=0+2"


@pytest.fixture(scope="module")
def studied(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str | Path, ...], Path]:
    """The words of a command, and a folder of its own to use them with."""
    folder = tmp_path_factory.mktemp("studied") / "run"
    return ("analyze", SMALL, trained, "--data", "digits[:24]", "--threat", "linf:16/255", "--run", folder), folder


def test_a_study_runs_and_is_reported(
    vitadel: Command, studied: tuple[tuple[str | Path, ...], Path], tmp_path: Path
) -> None:
    words, run = studied
    code, out, err = vitadel(*words)
    assert code == 0, err
    assert "Verdict: cannot tell" in out  # 24 images are too few
    assert "square: " in err
    drawn = {path.stem[3:] for path in (run / "figures").iterdir()}
    assert {"accuracy-and-radius", "accuracy-and-steps", "accuracy-and-rescaled-attention-layers"} <= drawn
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (run / "figures").glob("*.png"))
    parts = Run.open(run).manifest.parts
    assert isinstance(parts, dict)
    assert parts["study"]["iterations"] == [2, 3]

    result = json.loads((run / "study" / "result.json").read_text())
    code, again, _ = vitadel(*words, "--json", "--batch", "5")
    assert code == 0
    result_again = json.loads(again)
    assert result_again["verdict"] == result["verdict"]
    assert result_again["iterations"] == result["iterations"]
    assert [point["blocks"] for point in result_again["blocks"]] == [0, 2]
    assert "counts" not in again
    assert {Path(path).stem[3:] for path in result_again["figures"]} == drawn

    code, _, err = vitadel(*words, "--seed", "1")
    assert code == 2
    assert "belongs to another run; it differs in parts.seed: 0 -> 1" in err

    assert vitadel("report", run, "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Gradient masking" in page
    assert "cannot tell" in page


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in ("seconds", "sha256")}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("study", "table"),
    [
        pytest.param(SMALL, "gradients", marks=pytest.mark.slow),
        ("correlation:group=8", ""),
        ("saliency:steps=1", "maps"),
        ("lesion:draws=1", ""),
    ],
)
def test_two_ranks_match_one_rank_also_after_an_interruption(
    study: str,
    table: str,
    start: Start,
    start_two_ranks: Callable[..., list[int | None]],
    trained: Path,
    tmp_path: Path,
) -> None:
    words = ("analyze", study, trained, "--data", "digits[:22]", "--batch", "4", "--run")
    one = start(*words, tmp_path / "one")
    assert start_two_ranks(*words, tmp_path / "two") == [0, 0]
    one.join(200)
    assert one.exitcode == 0
    whole, shared = (json.loads((tmp_path / name / "study" / "result.json").read_text()) for name in ("one", "two"))
    assert without_times(shared) == without_times(whole)
    if table:
        # both processes are killed at their second part of a table, one resumes
        killed = start_two_ranks(*words, tmp_path / "less", killed_at=(f"tables/{table}", 2), lines=4)
        assert killed == [-signal.SIGKILL, -signal.SIGKILL]
        assert not (tmp_path / "less" / "study" / "result.json").exists()
        again = start(*words, tmp_path / "less")
        again.join(200)
        resumed = json.loads((tmp_path / "less" / "study" / "result.json").read_text())
        assert without_times(resumed) == without_times(whole)


def test_studies_are_listed_and_described(vitadel: Command) -> None:
    assert {"tora-gates", "masking", "masking-quick"} <= set(json.loads(vitadel("studies", "--json")[1]))
    assert "masking-quick" in vitadel("studies")[1]
    assert json.loads(vitadel("studies", "masking", "--json")[1])["queries"] == 5000
    assert vitadel("studies", "gates") == vitadel("studies", "tora-gates")  # the name in earlier versions
    about = vitadel("studies", "masking")[1]
    assert "10+20+50+100+200+500+1000" in about


def test_invalid_arguments_are_refused(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    def error(study: str, model: str | Path = trained, *more: str) -> str:
        code, out, err = vitadel("analyze", study, model, "--data", "digits[:8]", "--run", tmp_path / "run", *more)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    assert "unknown study 'maskin'. Did you mean 'masking'" in error("maskin")
    assert "unknown setting of masking 'query'" in error("masking:query=3")
    assert "masking:queries needs a whole number, got 'x'" in error("masking:queries=x")
    assert "several with + between them, got '1/2'" in error("masking:iterations=1/2")
    assert "unknown masking:scaling 'ass'. Did you mean 'aas'" in error("masking:scaling=ass")
    assert "Masking.steps must be at least 1" in error("masking:steps=0")
    assert "ResNet has no attention" in error("masking", "timm:test_resnet", "--classes", "10")
    assert "unknown threat 'lnf'" in error("masking", trained, "--threat", "lnf:8/255")
    assert "unknown split 'validation'" in error("masking", trained, "--split", "validation")
    assert "unknown study 'msking'. Did you mean 'masking'" in vitadel("studies", "msking")[2]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TORA model for the digits, fresh."""
    options: dict[str, Option] = {"depth": 2, "embed_dim": 48}
    base = load("timm:deit_tiny_patch16_224", num_classes=10, image_size=8, patch_size=2, options=options)
    save(tora(base), path := tmp_path_factory.mktemp("gated") / "model.safetensors")
    return path


def test_a_study_with_exhibits_runs_and_is_reported(vitadel: Command, gated: Path, tmp_path: Path) -> None:
    words = ("analyze", "tora-gates:images=2,blocks=1", gated, "--data", "digits[:9]", "--run")
    code, out, err = vitadel(*words, tmp_path / "one")
    assert code == 0, err
    assert out.startswith(f"Gates of the adapters: {gated}\nOn 9 images the gates give the robustness adapter 0.500")
    assert "Share per block (table)" in out
    assert "0.5000" in out
    names = ["share-of-the-accuracy-adapter", "share-of-the-robustness-adapter", "mean-share-per-block"]
    files = {f"{number:02d}-{name}.{kind}" for number, name in enumerate(names, 1) for kind in ("png", "pdf")}
    assert {path.name for path in (tmp_path / "one" / "figures").iterdir()} == files
    parts = Run.open(tmp_path / "one").manifest.parts
    assert isinstance(parts, dict)
    assert parts["study"] == {"is": "TORAGates", "images": 2, "blocks": [1]}
    assert "threat" not in parts

    code, printed, _ = vitadel(*words, tmp_path / "one", "--json", "--batch", "4")
    assert code == 0
    assert "base64" not in printed
    result = json.loads(printed)
    assert result["shares"]["rob"]["mean"] == [0.5, 0.5]
    assert [one["kind"] for one in result["exhibits"]] == ["pictures", "pictures", "lines", "table"]
    assert "base64" in (tmp_path / "one" / "study" / "result.json").read_text()

    assert vitadel("analyze", "tora-gates", f"{gated}#rob", "--data", "digits[:9]", "--run", tmp_path / "two")[0] == 0
    assert vitadel("report", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<h3>Share of the robustness adapter</h3>") == 1
    assert page.count("<figcaption>") == 6  # three figures of each run, each under its name
    assert f"{gated.stem}#rob" in page
    assert f"{gated.stem}#joint" in page


def test_models_without_gates_are_refused(vitadel: Command, trained: Path, gated: Path, tmp_path: Path) -> None:
    words = ("--data", "digits[:8]", "--run", tmp_path / "run")
    code, _, err = vitadel("analyze", "tora-gates", trained, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "reads the gates of a TORA model" in err
    code, _, err = vitadel("analyze", "tora-gates", gated, *words, "--threat", "linf:8/255")
    assert (code, err.count("\n")) == (2, 1)
    assert 'the study tora-gates attacks nothing, got threat="linf:8/255" (--threat linf:8/255). Leave it out' in err
    assert "has 2 blocks" in vitadel("analyze", "tora-gates:blocks=7", gated, *words)[2]
    assert not (tmp_path / "run").exists()


class Per(enum.Enum):
    ROW = "row"
    HEAD = "head"


@dataclass(frozen=True)
class Settings:
    """Every kind of setting that can be written."""

    count: int = 1
    share: float = 0.5
    deep: bool = False
    against: str | None = None
    names: tuple[str, ...] = ("a",)
    shares: tuple[float, ...] = (0.5,)
    per: Per = Per.ROW
    limit: int | None = 3


def test_settings_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "every", Settings)

    def read(text: str) -> object:
        return as_study(f"every:{text}")

    assert read("") == Settings()
    assert read("count=4,share=1/4,deep=true") == Settings(count=4, share=0.25, deep=True)
    assert read("against=timm:vit@w.pth+a#rob") == Settings(against="timm:vit@w.pth+a#rob")
    assert read("names=fog+snow,shares=1/2+2") == Settings(names=("fog", "snow"), shares=(0.5, 2.0))
    assert read("names=,per=head") == Settings(names=(), per=Per.HEAD)
    assert read("against=none,limit=none") == Settings(against=None, limit=None)
    assert read("limit=7") == Settings(limit=7)
    for text, message in {
        "deep=yes": "every:deep needs true or false, got 'yes'",
        "per=haed": "unknown every:per 'haed'. Did you mean 'head'? Known: head, row",
        "limit=x": "every:limit needs a whole number, got 'x'",
        "share=half": "every:share",
        "names=a+": "every:names needs a word, got nothing",
        "deeper=true": "unknown setting of every 'deeper'. Did you mean 'deep'?",
        "deep": "the setting 'deep' of every has no value. Write every:deep=VALUE",
    }.items():
        with pytest.raises(UsageError) as raised:
            read(text)
        assert message in str(raised.value)
