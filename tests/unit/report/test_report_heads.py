"""Runs of the heads of one model are distinguished by the head, under one name."""

import html
import re
from pathlib import Path
from typing import Any

from vitadel.report import summarize, write_report
from vitadel.runs import Run


def measured(make: Any, folder: str, name: str, head: str, sha256: str = "ab" * 32, tuning: str = "tora") -> Path:
    spec = {"is": "ModelSpec", "name": "timm:vit", "tuning": {"is": "AdapterConfig", "tuning": tuning, "head": head}}
    parts = {"model": {"name": name, "spec": spec, "sha256": sha256}, "data": {"spec": "digits"}, "seed": 0}
    run = Run.claim(make.root / folder, "evaluate", parts, device="cpu")
    make.attack(run, "linf-8_255", [""] * 20 + ["square"] * 16 + ["clean"] * 4, 8 / 255)
    return run.folder


def labels(runs: list[Path]) -> list[str]:
    return [row.model for row in summarize(runs)]


def test_heads_of_one_model_share_its_name(make: Any) -> None:
    runs = [
        measured(make, "joint", "digits-tora", "joint"),
        measured(make, "acc", "runs/tora#acc", "acc"),
        measured(make, "rob", "runs/tora#rob", "rob"),
        measured(make, "kept", "runs/tora#kept", "kept"),
    ]
    assert labels(runs) == ["digits-tora#joint", "digits-tora#acc", "digits-tora#rob", "digits-tora#kept"]
    assert labels(runs[1:3]) == ["runs/tora#acc", "runs/tora#rob"]
    assert labels(runs[:1]) == ["digits-tora"]
    text = write_report(runs, make.root / "page.html").read_text()
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
    assert "digits-tora#rob timm:vit; predicts with its robust head" in shown
    assert "digits-tora#joint timm:vit; predicts with the mean of its heads" in shown


def test_other_weights_are_another_model(make: Any) -> None:
    runs = [
        measured(make, "joint", "digits-tora", "joint"),
        measured(make, "rob", "runs/other#rob", "rob", sha256="cd" * 32),
    ]
    assert labels(runs) == ["digits-tora", "runs/other#rob"]


def test_a_head_measured_twice_is_distinguished_by_its_folder(make: Any) -> None:
    runs = [measured(make, folder, "runs/tora#rob", "rob") for folder in ("one", "two")]
    assert labels(runs) == ["runs/tora#rob (one)", "runs/tora#rob (two)"]


def test_a_single_head_is_not_named(make: Any) -> None:
    run = measured(make, "single", "digits-single", "joint", tuning="single")
    assert labels([run]) == ["digits-single"]
    assert "mean of its heads" not in write_report([run], make.root / "page.html").read_text()
