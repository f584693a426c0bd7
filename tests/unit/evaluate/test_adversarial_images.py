"""Adversarial images can be kept small, and still fool the model when they are read back."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluations import evaluate  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import data
from vitadel.attacks import FGSM, PGD, Engine
from vitadel.core.errors import UsageError
from vitadel.core.files import write_npz
from vitadel.data import DataSet, Squash
from vitadel.evaluate import AttackSuite, Context, NamedAttack, read_adversarial_images
from vitadel.evaluate.adversarial_images import ImageFiles
from vitadel.runs import ResultFolder, Run
from vitadel.threats import L2, Linf, Threat

SUITE = AttackSuite("two", "for the tests", (NamedAttack("fgsm", FGSM()), NamedAttack("pgd", PGD(steps=5))))


class Steep(nn.Module):
    """Class 1 where the mean ink exceeds a threshold."""

    def __init__(self, threshold: float = 0.31) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(threshold))

    def forward(self, x: Tensor) -> Tensor:
        logit_difference = 20 * (x.flatten(1).mean(1) - self.threshold)
        return torch.stack([-logit_difference, logit_difference, *[logit_difference * 0 - 100] * 8], 1)


@pytest.fixture
def steep_model_and_data() -> tuple[Steep, DataSet]:
    digits, model = data.load("digits[:40]", preprocess=Squash(8)), Steep()
    labels = (digits.test.images(torch.arange(40)).flatten(1).mean(1) > 0.31).long()
    return model, replace(digits, test=replace(digits.test, labels=labels))


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.8)], ids=str)
def test_stored_images_are_inside_the_threat_and_misclassified(
    steep_model_and_data: tuple[Steep, DataSet], threat: Threat, tmp_path: Path
) -> None:
    model, dataset = steep_model_and_data
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=threat, keep_images=True)
    rows = run.results(str(summary["name"])).rows()
    broken = [int(str(row)) for row, to in zip(rows["index"], rows["broken_by"], strict=True) if to]
    result = read_adversarial_images(run.results(str(summary["name"])).folder / "found", dataset.test)
    assert 0 < len(broken) < 40
    assert sorted(result) == broken
    x0, x = dataset.test.images(torch.tensor(broken)), torch.stack([result[row] for row in broken])
    assert bool((model(x).argmax(1) != dataset.test.labels[torch.tensor(broken)]).all())
    assert bool((threat.distance(x, x0) <= threat.eps).all())
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def test_a_larger_radius_includes_images_of_smaller_ones(
    steep_model_and_data: tuple[Steep, DataSet], tmp_path: Path
) -> None:
    model, dataset = steep_model_and_data
    suite, run = replace(SUITE, eps_scales=(0.2, 0.5, 1.0)), Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    num_broken = []
    for summary in evaluate(model, dataset, suite, run, threat=Linf(0.1), keep_images=True):
        rows = run.results(str(summary["name"])).rows()
        broken = [int(str(row)) for row, to in zip(rows["index"], rows["broken_by"], strict=True) if to]
        result = read_adversarial_images(run.results(str(summary["name"])).folder / "found", dataset.test)
        assert sorted(result) == broken
        x = torch.stack([result[row] for row in broken])
        assert bool((model(x).argmax(1) != dataset.test.labels[torch.tensor(broken)]).all())
        num_broken.append(len(broken))
    assert 0 < num_broken[0] < num_broken[1] < num_broken[2]


def test_an_image_that_rounding_would_correct_is_stored_exactly(tmp_path: Path) -> None:
    """The threshold is between the adversarial example and its rounded copy."""
    digits = data.load("digits[:4]", preprocess=Squash(8))
    x0 = digits.test.images(torch.arange(4))
    x = (x0 + 0.01).clamp(0, 1)
    model = Steep(float(x[0].mean()) - 1e-7)
    labels = torch.tensor([0, 1, 1, 1])
    split = replace(digits.test, labels=labels)
    ctx = Context(model, split, store=ResultFolder(tmp_path))
    ImageFiles(ctx, everything=True).keep([{"index": 0, "success": True, "x_adv": x[0]}])
    assert torch.equal(read_adversarial_images(tmp_path / "found", split)[0], x[0])


def test_a_lost_or_damaged_file_of_images_is_named(steep_model_and_data: tuple[Steep, DataSet], tmp_path: Path) -> None:
    model, dataset = steep_model_and_data
    run = Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)
    folder = run.results(str(summary["name"])).folder / "found"
    file = min(folder.glob("*.npz"))
    content = file.read_bytes()
    for place in range(0, len(content), 29):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            result = read_adversarial_images(folder, dataset.test)
        except UsageError as error:
            assert_named(error, file)
        else:
            file.write_bytes(content)
            intact = read_adversarial_images(folder, dataset.test)
            assert result.keys() == intact.keys()
            assert all(torch.equal(result[row], intact[row]) for row in intact)
    file.unlink()
    with pytest.raises(UsageError, match=r"found has lost \d+ of the adversarial images, .* or delete .*two-linf"):
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)
    shutil.rmtree(folder.parent)  # as the error advises
    assert evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)[0]["robust"] == summary["robust"]


def assert_named(error: UsageError, file: Path) -> None:
    assert f"cannot read {file}: " in str(error)


@pytest.mark.parametrize(
    ("name", "forged", "message"),
    [
        (
            "deltas",
            torch.zeros(1, 3, 9, 9),
            r"perturbation of shape \[3, 9, 9\], and the images are \[3, 8, 8\]\. Give the images",
        ),
        ("rows", torch.tensor([4]), "of image 4, and there are 4 images"),
        ("rows", torch.tensor([-1]), "of image -1, and there are 4 images"),
        ("rows", torch.tensor([2, 3]), "has 1 deltas of 2 images"),
        ("rows", torch.tensor([2.0]), "rows is float32"),
        ("deltas", torch.zeros(3, 8, 8), "deltas is float32"),
    ],
    ids=str,
)
def test_perturbations_that_do_not_fit_the_images_are_refused(
    tmp_path: Path, name: str, forged: Tensor, message: str
) -> None:
    digits = data.load("digits[:4]", preprocess=Squash(8))
    arrays = {"rows": torch.tensor([2]), "deltas": torch.full((1, 3, 8, 8), 0.25)}
    arrays |= {"exact_rows": torch.zeros(0, dtype=torch.int64), "exact_deltas": torch.zeros(0, 3, 8, 8)}
    file = tmp_path / "found" / "2.npz"
    write_npz(file, {key: value.numpy() for key, value in arrays.items()})
    x0 = digits.test.images(torch.tensor([2]))[0]
    assert torch.equal(read_adversarial_images(tmp_path / "found", digits.test)[2], (x0 + 0.25).clamp(0, 1))
    write_npz(file, {key: value.numpy() for key, value in {**arrays, name: forged}.items()})
    with pytest.raises(UsageError, match=message) as error:
        read_adversarial_images(tmp_path / "found", digits.test)
    assert str(file) in str(error.value)


def test_missing_adversarial_images_are_reported(steep_model_and_data: tuple[Steep, DataSet], tmp_path: Path) -> None:
    _, dataset = steep_model_and_data
    with pytest.raises(UsageError, match="Evaluate with keep_images=True \\(--keep-images\\)"):
        read_adversarial_images(tmp_path, dataset.test)


def test_attacks_of_the_same_name_are_refused() -> None:
    twice = AttackSuite("twice", "", (NamedAttack("pgd", PGD()), NamedAttack("pgd", PGD(steps=3))))
    with pytest.raises(UsageError, match="needs its own name, got 'pgd'"):
        twice.stages(Linf(0.1))


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_the_summary_records_the_precision_of_the_search(
    steep_model_and_data: tuple[Steep, DataSet], precision: str, tmp_path: Path
) -> None:
    model, dataset = steep_model_and_data
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=Linf(0.05), engine=Engine(precision=precision))
    assert summary["search_precision"] == precision
