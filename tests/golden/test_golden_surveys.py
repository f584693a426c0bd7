"""All that every survey and every suite of attacks says about a small network on a few images."""

from pathlib import Path

import pytest
from on_record import check  # type: ignore[import-not-found]
from small import CLASSES, IMAGES, SIDE, images, labels, network  # type: ignore[import-not-found]

from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import SUITES, Context, evaluate_suite, survey
from vitadel.evaluate.suites import Corruptions, GrayLevel, NaturalAdversarial, Spatial, Transfer
from vitadel.evaluate.suites.base import Suite, Survey
from vitadel.models import Model, save
from vitadel.runs import ResultFolder, Run
from vitadel.threats import L2, Linf

RECORD = Path(__file__).with_name("surveys.json")
# what depends on the moment, on the machine or on the code
ELSEWHERE = {"seconds", "versions", "sources"}


@pytest.fixture(scope="module")
def model() -> Model:
    return network().float()


@pytest.fixture(scope="module")
def dataset(model: Model) -> DataSet:
    pixels = (images() * 255).round().byte()
    ids = tuple(f"class/{number}.png" for number in range(IMAGES))
    split = Split("test", ids, labels(model), InMemory(pixels))
    return DataSet("made", tuple(f"class-{number}" for number in range(CLASSES)), Squash(SIDE), None, None, split)


def claim(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"seed": 0}, device="cpu")


def without(value: object) -> object:
    if isinstance(value, dict):
        return {key: without(one) for key, one in value.items() if key not in ELSEWHERE}
    return [without(one) for one in value] if isinstance(value, list) else value


SURVEYS: dict[str, Survey | Suite] = {
    "corruptions": Corruptions(),
    "corruptions of one kind": Corruptions(names=("fog", "jpeg_compression")),
    "gray-level": GrayLevel(levels=2, steps=2),
    "natural-adversarial": NaturalAdversarial(),
    "spatial": Spatial(translations=3, rotations=3, grid_images=4),
}


@pytest.mark.parametrize("name", SURVEYS)
def test_surveys(name: str, model: Model, dataset: DataSet, tmp_path: Path) -> None:
    settings, threat = SURVEYS[name], Linf(0.004) if name == "gray-level" else None
    summary = survey(model, dataset, settings, claim(tmp_path / "run"), threat=threat)
    rows = ResultFolder(tmp_path / "run" / "eval" / settings.name).rows()
    check(RECORD, name, without({"summary": summary, "rows": rows}))


def test_transfer(model: Model, dataset: DataSet, tmp_path: Path) -> None:
    for seed in (1, 2):
        save(network(seed).float(), tmp_path / f"other-{seed}.safetensors")
    settings = Transfer(sources=tuple(str(tmp_path / f"other-{seed}.safetensors") for seed in (1, 2)), steps=3)
    summary = survey(model, dataset, settings, claim(tmp_path / "run"), threat=Linf(0.01))
    check(RECORD, "transfer", without(summary))


@pytest.mark.parametrize(("suite", "threat"), [("clean", None), ("quick", Linf(0.002)), ("curve", L2(0.1))])
def test_suites(suite: str, threat: Linf | L2 | None, model: Model, dataset: DataSet, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    ctx = Context(model, dataset.test, dataset, threat)
    records = evaluate_suite(SUITES[suite], ctx, run.results)
    rows = {record.name: run.results(record.name).rows() for record in records}
    check(RECORD, suite, without({"summaries": [record.to_json() for record in records], "rows": rows}))
