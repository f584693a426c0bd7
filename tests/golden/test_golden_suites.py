"""All results of every suite on a small network and a few images."""

from pathlib import Path

import pytest
from on_record import check  # type: ignore[import-not-found]
from small import CLASSES, IMAGES, SIDE, images, labels, network  # type: ignore[import-not-found]

from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import SUITES, Context, Suite, evaluate_suite
from vitadel.evaluate.suites import Corruptions, GrayLevel, NaturalAdversarial, Spatial, Transfer
from vitadel.models import Model, save
from vitadel.runs import Run
from vitadel.threats import L2, Linf

RECORD = Path(__file__).with_name("suites.json")
# what depends on the time, on the machine or on the code
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


PERTURBATIONS: dict[str, Suite] = {
    "corruptions": Corruptions(),
    "corruptions of one kind": Corruptions(names=("fog", "jpeg_compression")),
    "gray-level": GrayLevel(levels=2, steps=2),
    "natural-adversarial": NaturalAdversarial(),
    "spatial": Spatial(translations=3, rotations=3, grid_images=4),
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbations(name: str, model: Model, dataset: DataSet, tmp_path: Path) -> None:
    run, suite = claim(tmp_path / "run"), PERTURBATIONS[name]
    (record,) = evaluate_suite(suite, Context(model, dataset.test, dataset), run.results)
    check(RECORD, name, without({"summary": record.to_json(), "rows": run.results(suite.name).rows()}))


def test_transfer(model: Model, dataset: DataSet, tmp_path: Path) -> None:
    for seed in (1, 2):
        save(network(seed).float(), tmp_path / f"other-{seed}.safetensors")
    suite = Transfer(sources=tuple(str(tmp_path / f"other-{seed}.safetensors") for seed in (1, 2)), steps=3)
    ctx = Context(model, dataset.test, dataset, Linf(0.01))
    (record,) = evaluate_suite(suite, ctx, claim(tmp_path / "run").results)
    check(RECORD, "transfer", without(record.to_json()))


@pytest.mark.parametrize(("suite", "threat"), [("clean", None), ("quick", Linf(0.002)), ("curve", L2(0.1))])
def test_attacks(suite: str, threat: Linf | L2 | None, model: Model, dataset: DataSet, tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    ctx = Context(model, dataset.test, dataset, threat)
    records = evaluate_suite(SUITES[suite], ctx, run.results)
    rows = {record.name: run.results(record.name).rows() for record in records}
    check(RECORD, suite, without({"summaries": [record.to_json() for record in records], "rows": rows}))
