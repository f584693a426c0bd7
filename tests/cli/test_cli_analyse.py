"""`vitadel analyse` and `vitadel studies`: results, figures, resuming, mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vitadel.runs import Run

Command = Callable[..., tuple[int, str, str]]

SMALL = "masking-quick:steps=3,iterations=2+3,shares=1,curve_steps=2,targets=1,queries=5,blocks=0+2"


@pytest.fixture(scope="module")
def studied(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str | Path, ...], Path]:
    """The words of a command, and a folder of its own to use them with."""
    folder = tmp_path_factory.mktemp("studied") / "run"
    return ("analyse", SMALL, trained, "--data", "digits[:24]", "--threat", "linf:16/255", "--run", folder), folder


def test_a_study_from_beginning_to_page(
    vitadel: Command, studied: tuple[tuple[str | Path, ...], Path], tmp_path: Path
) -> None:
    words, run = studied
    code, out, err = vitadel(*words)
    assert code == 0, err
    assert "verdict: cannot tell" in out  # 24 images are too few
    assert "square: " in err
    names = {f"{name}.{kind}" for name in ("gaps", "eps", "iterations", "blocks") for kind in ("png", "pdf")}
    assert {path.name for path in (run / "figures").iterdir()} == names
    assert (run / "figures" / "gaps.png").read_bytes().startswith(b"\x89PNG")
    parts = Run.open(run).manifest["parts"]
    assert isinstance(parts, dict)
    assert parts["study"]["iterations"] == [2, 3]

    result = json.loads((run / "study" / "result.json").read_text())
    code, again, _ = vitadel(*words, "--json", "--batch", "5")
    assert code == 0
    told = json.loads(again)
    assert told["verdict"] == result["verdict"]
    assert told["iterations"] == result["iterations"]
    assert [point["blocks"] for point in told["blocks"]] == [0, 2]
    assert "counts" not in again
    assert [Path(path).name for path in told["figures"]][:2] == ["gaps.png", "gaps.pdf"]

    code, _, err = vitadel(*words, "--seed", "1")
    assert code == 2
    assert "belongs to another run; it differs in parts.seed: 0 -> 1" in err

    assert vitadel("report", run, "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Is the gradient hidden?" in page
    assert "cannot tell" in page


def test_what_there_is(vitadel: Command) -> None:
    assert set(json.loads(vitadel("studies", "--json")[1])) == {"masking", "masking-quick"}
    assert "masking-quick" in vitadel("studies")[1]
    assert json.loads(vitadel("studies", "masking", "--json")[1])["queries"] == 5000
    about = vitadel("studies", "masking")[1]
    assert "10+20+50+100+200+500+1000" in about


def test_mistakes(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    def told(study: str, model: str | Path = trained, *more: str) -> str:
        code, out, err = vitadel("analyse", study, model, "--data", "digits[:8]", "--run", tmp_path / "run", *more)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    assert "unknown study 'maskin'. Did you mean 'masking'" in told("maskin")
    assert "unknown setting of masking 'query'" in told("masking:query=3")
    assert "masking:queries wants a whole number, got 'x'" in told("masking:queries=x")
    assert "several with + between them, got '1/2'" in told("masking:iterations=1/2")
    assert "unknown masking:scaling 'ass'. Did you mean 'aas'" in told("masking:scaling=ass")
    assert "Masking.steps must be at least 1" in told("masking:steps=0")
    assert "ResNet has no attention" in told("masking", "timm:test_resnet", "--classes", "10")
    assert "unknown threat 'lnf'" in told("masking", trained, "--threat", "lnf:8/255")
    assert "unknown split 'validation'" in told("masking", trained, "--split", "validation")
    assert "unknown study 'maskin'" in vitadel("studies", "maskin")[2]
    assert not (tmp_path / "run").exists()
