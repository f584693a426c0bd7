"""Made-up runs whose summaries are counted from their rows, so that every number on a page has a known answer."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.core.files import read_json, write_json
from vitadel.runs import Run, fingerprint

HOSTILE = "<script>alert(1)</script>"
N = 40
ATTACKS = ("apgd-ce", "square")
DATA = {"spec": "digits", "preprocess": {"size": 8}, "classes": {"n": 2}, "splits": {"test": {"sha256": "feedc0de"}}}


def wilson(correct: int, n: int) -> dict[str, float]:
    z = 1.959963984540054
    center = (correct + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(correct * (n - correct) / n + z * z / 4)
    return {"correct": correct, "n": n, "accuracy": correct / n, "low": max(0, center - half), "high": center + half}


@dataclass(frozen=True)
class Maker:
    """Writes run folders under `root`."""

    root: Path

    def train(self, folder: str, name: str) -> Path:
        recipe = {"is": "Recipe", "name": name, "model": {"is": "Timm", "name": "vit"}, "objective": {"is": "Standard"}}
        parts = {"recipe": recipe, "data": DATA, "seed": 3}
        run = Run.claim(self.root / folder, "train", parts, device="cpu")
        for step in range(1, 9):
            run.log("step", step=step, epoch=0, loss=2.0 / step, lr=0.1 * step, adversarial_accuracy=step / 10)
        for step in (4, 8):
            run.log("holdout", step=step, clean=0.5 + step / 20, robust=None)
        return run.folder

    def change(self, folder: Path, value: object, *path: str) -> None:
        """Make another run of a run: `change(folder, 3, "model", "parameters")` changes a part of its manifest."""
        manifest: dict[str, Any] = read_json(folder / "manifest.json")
        *way, last = path
        place = manifest["parts"]
        for name in way:
            place = place[name]
        place[last] = value
        hashes = {name: fingerprint(part) for name, part in manifest["parts"].items()}
        write_json(folder / "manifest.json", {**manifest, "hashes": hashes})

    def claim(self, folder: str, name: str, parameters: int | None = None, spec: str = "vit") -> Run:
        """A run of nothing yet on a model whose weights go by its name."""
        size = {} if parameters is None else {"parameters": parameters}
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        model = {"name": name, "spec": {"is": "Timm", "name": spec}, **size, "sha256": sha256}
        return Run.claim(self.root / folder, "evaluate", {"model": model, "data": DATA, "seed": 0}, device="cpu")

    def evaluate(self, folder: str, name: str, standing: Mapping[int, int], *, clean_only: bool = False) -> Path:
        """A run over N images, 4 of them wrong before; `standing` gives the survivors at each eps in 1/255."""
        run = self.claim(folder, name)
        for eps, left in standing.items():
            fallen = [ATTACKS[i % 3 == 2] for i in range(N - 4 - left)]
            self.write(run, f"linf-{eps}_255", [""] * left + fallen + ["clean"] * 4, eps / 255)
        if clean_only:
            self.write(run, "clean", [""] * (N - 4) + ["clean"] * 4, None)
        return run.folder

    def write(
        self,
        run: Run,
        name: str,
        fell_to: Sequence[str],
        eps: float | None,
        flags: Sequence[object] = (),
        suite: str = "curve",
    ) -> None:
        n, size = len(fell_to), eps or 0.0
        columns = {"label": [0] * n, "clean_prediction": [int(f == "clean") for f in fell_to]}
        columns |= {"prediction": [int(f != "") for f in fell_to], "forwards": [9] * n, "backwards": [8] * n}
        rows = run.rows(name)
        ids = [f"image-{i}" for i in range(n)]
        rows.add({"row": list(range(n)), "id": ids, "fell_to": fell_to, "size": [size] * n, **columns})
        right = sum(f != "clean" for f in fell_to)
        threat = None if eps is None else {"norm": "linf", "eps": eps, "text": f"linf:{round(255 * eps)}/255"}
        robust = None if eps is None else wilson(list(fell_to).count(""), n)
        about = {"name": name, "suite": suite, "threat": threat, "n": n, "flags": list(flags), "seconds": 1.5}
        rows.close({**about, "clean": wilson(right, n), "robust": robust, "attacks": _attacks(fell_to, eps)})

    def survey(
        self,
        run: Run,
        suite: str,
        right: Sequence[float],
        *,
        clean: Sequence[int] | None = None,
        measures: Sequence[Mapping[str, object]] | None = None,
        **more: object,
    ) -> None:
        """A survey of as many images as `right` has verdicts, whose main measure is their mean."""
        n, rows = len(right), run.rows(suite)
        said = [0] * n if clean is None else [1 - one for one in clean]
        ids = [f"image-{i}" for i in range(n)]
        rows.add({"row": list(range(n)), "id": ids, "label": [0] * n, "clean_prediction": said, "right": list(right)})
        mean = sum(right) / n
        main = {"name": "mean over all cells", "value": mean, "low": mean - 0.05, "high": mean + 0.05, "n": n}
        main |= {"kind": "accuracy", "higher_is_better": True, "main": True}
        told = {"name": suite, "suite": suite, "n": n, "threat": None, "robust": None, "attacks": [], "flags": []}
        told |= {"clean": None if clean is None else wilson(sum(clean), n), "seconds": 1.0, "title": suite.title()}
        told |= {"sentence": f"Found by {suite}.", "measures": [main] if measures is None else list(measures)}
        rows.close({**told, "conventions": {"jpeg": 85}, "exhibits": [], **more})

    def gallery(self, folder: Path, name: str, *, eps: float, norm: str = "linf") -> None:
        clean = np.full((3, 4, 4, 3), 128, np.uint8)
        adversarial = (clean / 255).astype(np.float32)
        adversarial[0, 0, :3] += np.array([-eps, 0, eps], np.float32)[:, None]
        np.savez(
            folder / "eval" / name / "gallery.npz",
            clean=clean,
            adversarial=adversarial,
            label=np.array([0, 1, 0]),
            clean_prediction=np.array([0, 1, 1]),
            prediction=np.array([1, 1, 1]),
            fell_to=np.array(["apgd-ce", "", "clean"]),
            classes=np.array([HOSTILE, "dog"]),
            eps=np.float64(eps),
            norm=np.array(norm),
        )


def _attacks(fell_to: Sequence[str], eps: float | None) -> list[dict[str, object]]:
    tried, told = sum(f != "clean" for f in fell_to), list[dict[str, object]]()
    for name in ATTACKS if eps is not None else ():
        fell = list(fell_to).count(name)
        told.append({"name": name, "tried": tried, "fell": fell, "forwards": 1234, "backwards": 0, "seconds": 0.5})
        tried -= fell
    return told


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def two_runs(make: Maker) -> list[Path]:
    """A model that collapses and its robust twin."""
    return [
        make.evaluate("plain-eval", "plain", {1: 20, 4: 6, 8: 0}, clean_only=True),
        make.evaluate("twin-eval", "twin", {1: 33, 4: 28, 8: 19}),
    ]


@pytest.fixture
def known_interval() -> Callable[[int, int], dict[str, float]]:
    return wilson
