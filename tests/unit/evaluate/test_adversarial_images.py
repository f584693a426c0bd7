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
def subject() -> tuple[Steep, DataSet]:
    digits, model = data.load("digits[:40]", preprocess=Squash(8)), Steep()
    labels = (digits.test.images(torch.arange(40)).flatten(1).mean(1) > 0.31).long()
    return model, replace(digits, test=replace(digits.test, labels=labels))


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.8)], ids=str)
def test_every_broken_image_is_kept_inside_the_threat_and_fools(
    subject: tuple[Steep, DataSet], threat: Threat, tmp_path: Path
) -> None:
    model, dataset = subject
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=threat, keep_images=True)
    rows = run.results(str(summary["name"])).rows()
    fell = [int(str(row)) for row, to in zip(rows["index"], rows["broken_by"], strict=True) if to]
    found = read_adversarial_images(run.results(str(summary["name"])).folder / "found", dataset.test)
    assert 0 < len(fell) < 40
    assert sorted(found) == fell
    x0, x = dataset.test.images(torch.tensor(fell)), torch.stack([found[row] for row in fell])
    assert bool((model(x).argmax(1) != dataset.test.labels[torch.tensor(fell)]).all())
    assert bool((threat.distance(x, x0) <= threat.eps).all())
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def test_a_larger_radius_has_the_images_broken_within_smaller_ones(
    subject: tuple[Steep, DataSet], tmp_path: Path
) -> None:
    model, dataset = subject
    suite, run = replace(SUITE, eps_scales=(0.2, 0.5, 1.0)), Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    fallen = []
    for summary in evaluate(model, dataset, suite, run, threat=Linf(0.1), keep_images=True):
        rows = run.results(str(summary["name"])).rows()
        fell = [int(str(row)) for row, to in zip(rows["index"], rows["broken_by"], strict=True) if to]
        found = read_adversarial_images(run.results(str(summary["name"])).folder / "found", dataset.test)
        assert sorted(found) == fell
        x = torch.stack([found[row] for row in fell])
        assert bool((model(x).argmax(1) != dataset.test.labels[torch.tensor(fell)]).all())
        fallen.append(len(fell))
    assert 0 < fallen[0] < fallen[1] < fallen[2]


def test_an_image_that_rounding_would_save_is_kept_exactly(tmp_path: Path) -> None:
    """The threshold lies between the image found and its rounded twin."""
    digits = data.load("digits[:4]", preprocess=Squash(8))
    x0 = digits.test.images(torch.arange(4))
    x = (x0 + 0.01).clamp(0, 1)
    model = Steep(float(x[0].mean()) - 1e-7)
    labels = torch.tensor([0, 1, 1, 1])
    split = replace(digits.test, labels=labels)
    ctx = Context(model, split, store=ResultFolder(tmp_path))
    ImageFiles(ctx, everything=True).keep([{"index": 0, "success": True, "x_adv": x[0]}])
    assert torch.equal(read_adversarial_images(tmp_path / "found", split)[0], x[0])


def test_a_lost_or_damaged_file_of_images_is_named(subject: tuple[Steep, DataSet], tmp_path: Path) -> None:
    model, dataset = subject
    run = Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)
    folder = run.results(str(summary["name"])).folder / "found"
    file = min(folder.glob("*.npz"))
    content = file.read_bytes()
    for place in range(0, len(content), 29):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            found = read_adversarial_images(folder, dataset.test)
        except UsageError as error:
            assert_named(error, file)
        else:
            file.write_bytes(content)
            intact = read_adversarial_images(folder, dataset.test)
            assert found.keys() == intact.keys()
            assert all(torch.equal(found[row], intact[row]) for row in intact)
    file.unlink()
    with pytest.raises(UsageError, match=r"found has lost \d+ of the adversarial images, .* or delete .*two-linf"):
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)
    shutil.rmtree(folder.parent)  # what the error says
    assert evaluate(model, dataset, SUITE, run, threat=Linf(0.05), keep_images=True)[0]["robust"] == summary["robust"]


def assert_named(error: UsageError, file: Path) -> None:
    assert f"cannot read {file}: " in str(error)


def test_nothing_kept_is_said_so(subject: tuple[Steep, DataSet], tmp_path: Path) -> None:
    _, dataset = subject
    with pytest.raises(UsageError, match="Evaluate with keep_images=True \\(--keep-images\\)"):
        read_adversarial_images(tmp_path, dataset.test)


def test_attacks_of_one_name_are_refused() -> None:
    twice = AttackSuite("twice", "", (NamedAttack("pgd", PGD()), NamedAttack("pgd", PGD(steps=3))))
    with pytest.raises(UsageError, match="needs a name of its own, got 'pgd'"):
        twice.stages(Linf(0.1))


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_the_summary_says_in_what_precision_was_searched(
    subject: tuple[Steep, DataSet], precision: str, tmp_path: Path
) -> None:
    model, dataset = subject
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    (summary,) = evaluate(model, dataset, SUITE, run, threat=Linf(0.05), engine=Engine(precision=precision))
    assert summary["search_precision"] == precision
