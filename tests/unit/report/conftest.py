"""Made-up runs whose summaries are counted from their rows, so that every number on a page is known."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitadel.core.files import read_json, write_json
from vitadel.core.flags import Flag
from vitadel.core.stats import accuracy
from vitadel.runs import Run, fingerprint
from vitadel.runs.exhibits import Exhibit
from vitadel.runs.schema import AttackRecord, Gallery, Measure, StudyRecord, SuiteRecord, ThreatRecord

MARKUP = "<script>alert(1)</script>"
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
        part = manifest["parts"]
        for name in way:
            part = part[name]
        part[last] = value
        hashes = {name: fingerprint(part) for name, part in manifest["parts"].items()}
        write_json(folder / "manifest.json", {**manifest, "hashes": hashes})

    def claim(self, folder: str, name: str, parameters: int | None = None, spec: str = "vit") -> Run:
        """An empty run of a model whose weights depend on its name."""
        size = {} if parameters is None else {"parameters": parameters}
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        model = {"name": name, "spec": {"is": "Timm", "name": spec}, **size, "sha256": sha256}
        return Run.claim(self.root / folder, "evaluate", {"model": model, "data": DATA, "seed": 0}, device="cpu")

    def evaluate(self, folder: str, name: str, robust: Mapping[int, int], *, clean_only: bool = False) -> Path:
        """A run over N images, 4 misclassified before any attack; `robust` gives their number at each eps in 1/255."""
        run = self.claim(folder, name)
        for eps, left in robust.items():
            broken = [ATTACKS[i % 3 == 2] for i in range(N - 4 - left)]
            self.attack(run, f"linf-{eps}_255", [""] * left + broken + ["clean"] * 4, eps / 255)
        if clean_only:
            self.attack(run, "clean", [""] * (N - 4) + ["clean"] * 4, None)
        return run.folder

    def attack(
        self,
        run: Run,
        name: str,
        broken_by: Sequence[str],
        eps: float | None,
        flags: Sequence[Flag] = (),
        suite: str = "curve",
    ) -> None:
        """A suite of attacks with these broken images."""
        n, distance = len(broken_by), eps or 0.0
        columns = {
            "label": [0] * n,
            "clean_prediction": [int(one == "clean") for one in broken_by],
            "prediction": [int(one != "") for one in broken_by],
            "broken_by": broken_by,
            "distance": [distance] * n,
        }
        correct, robust = sum(one != "clean" for one in broken_by), list(broken_by).count("")
        record = SuiteRecord(
            name,
            suite,
            n,
            clean=accuracy(correct, n),
            threat=None if eps is None else ThreatRecord.of(f"linf:{round(255 * eps)}/255", eps),
            robust=None if eps is None else accuracy(robust, n),
            attacks=() if eps is None else _attacks(broken_by),
            flags=flags,
            seconds=1.5,
        )
        self.finish(run, record, columns)

    def perturb(
        self,
        run: Run,
        suite: str,
        correct: Sequence[float],
        *,
        clean: Sequence[int] | None = None,
        measures: Sequence[Measure] | None = None,
        columns: Mapping[str, Sequence[object]] | None = None,
        **more: Any,
    ) -> None:
        """A suite of perturbations with a score for each image, whose main measure is their mean."""
        n, mean = len(correct), sum(correct) / len(correct)
        predictions = [0] * n if clean is None else [1 - one for one in clean]
        main = Measure("mean over all cells", mean, mean - 0.05, mean + 0.05, n, main=True)
        fields: dict[str, Any] = {
            "title": suite.title(),
            "sentence": f"Measured by {suite}.",
            "conventions": {"jpeg": 85},
            "threat": None,
            "flags": (),
            **more,
        }
        record = SuiteRecord(
            suite,
            suite,
            n,
            clean=None if clean is None else accuracy(sum(clean), n),
            robust=None,
            attacks=(),
            seconds=1.0,
            measures=[main] if measures is None else measures,
            **fields,
        )
        rows: dict[str, Sequence[object]] = {
            "label": [0] * n,
            "clean_prediction": predictions,
            "correct": list(correct),
            **(columns or {}),
        }
        self.finish(run, record, rows)

    def finish(self, run: Run, record: SuiteRecord, columns: Mapping[str, Sequence[object]]) -> Path:
        """A summary and its rows, of images called image-0, image-1, ..."""
        index = range(record.n)
        rows: dict[str, Sequence[object]] = {"index": list(index), "id": [f"image-{i}" for i in index], **columns}
        run.results(record.name).finish(rows, record.to_json())
        return run.folder

    def study(
        self, folder: str, name: str, *exhibits: Exhibit, study: str = "made-up", weights: str = "ab" * 32
    ) -> Path:
        """A finished study that shows these exhibits."""
        parts = {"study": {"is": "MadeUp"}, "model": {"name": name, "sha256": weights}, "seed": 0}
        run = Run.claim(self.root / folder, "analyze", parts, device="cpu")
        record = StudyRecord(study, f"About {study}", f"Measured in {name}.", exhibits)
        write_json(run.folder / "study" / "result.json", record.to_json())
        return run.folder

    def gallery(self, folder: Path, name: str, *, eps: float, norm: str = "linf") -> None:
        """Three images: one broken, one robust, one misclassified before."""
        clean = np.full((3, 4, 4, 3), 128, np.uint8)
        adversarial = (clean / 255).astype(np.float32)
        adversarial[0, 0, :3] += np.array([-eps, 0, eps], np.float32)[:, None]
        gallery = Gallery(
            clean=clean,
            adversarial=adversarial,
            label=[0, 1, 0],
            clean_prediction=[0, 1, 1],
            prediction=[1, 1, 1],
            broken_by=["apgd-ce", "", "clean"],
            classes=[MARKUP, "dog"],
            eps=eps,
            norm=norm,
        )
        gallery.write(folder / "eval" / name / "gallery.npz")


def _attacks(broken_by: Sequence[str]) -> list[AttackRecord]:
    tried, records = sum(one != "clean" for one in broken_by), list[AttackRecord]()
    for name in ATTACKS:
        broken = list(broken_by).count(name)
        records.append(AttackRecord(name, tried, broken, forwards=1234, backwards=0, seconds=0.5))
        tried -= broken
    return records


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def two_runs(make: Maker) -> list[Path]:
    """A model that is not robust and one that is."""
    return [
        make.evaluate("plain-eval", "plain", {1: 20, 4: 6, 8: 0}, clean_only=True),
        make.evaluate("twin-eval", "twin", {1: 33, 4: 28, 8: 19}),
    ]


@pytest.fixture
def known_interval() -> Callable[[int, int], dict[str, float]]:
    """Wilson's interval by its formula."""
    return wilson
