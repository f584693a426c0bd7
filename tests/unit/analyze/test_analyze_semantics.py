"""What other models predict from perturbations: classifiers with known predictions, controls, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_models import studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import PerturbationSemantics, classify_perturbations, study
from vitadel.analyze.attacked_images import Sign, Stretch
from vitadel.analyze.perturbation_semantics import rank_of
from vitadel.core.errors import UsageError
from vitadel.core.stats import accuracy
from vitadel.models import Option, load, save
from vitadel.runs import ResultFolder
from vitadel.threats import Linf

EPS, CLASSES = 0.1, 8
SMALL: dict[str, Option] = {"depth": 1, "embed_dim": 48}


class Stripes(nn.Module):
    """Class k is given by the brightness of row k: its perturbations darken that row, and lighten all others."""

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(strength))

    def forward(self, x: Tensor) -> Tensor:
        return 20 * self.strength * x.mean((1, 3))[:, :CLASSES]


class DarkestRow(nn.Module):
    """Predicts the row that is darkest (or brightest, if turned) of its input, and records that input."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned = turned
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.clone())
        rows = x.mean((1, 3))[:, :CLASSES]
        return rows if self.turned else -rows


@pytest.fixture
def x() -> Tensor:
    return 0.3 + 0.4 * torch.rand(40, 3, CLASSES, CLASSES, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y() -> Tensor:
    return torch.arange(40) % CLASSES


# steps long enough to cross the ball, so that what is left of the random start is nothing
FULL = PerturbationSemantics(steps=10, step_size=EPS / 4, images=3)


def scores(result: dict[str, Any], name: str, shown: str, top: str = "top1") -> float:
    return float(result["scores"][name][shown][top]["accuracy"])


def test_a_classifier_of_perturbations_is_always_correct(x: Tensor, y: Tensor) -> None:
    reads, turned = DarkestRow(), DarkestRow(turned=True)
    result: dict[str, Any] = classify_perturbations(
        Stripes(), x, y, {"reads": reads, "turned": turned}, Linf(EPS), FULL
    )
    assert scores(result, "reads", "perturbation") == 1
    assert scores(result, "turned", "perturbation") == 0
    assert result["scores"]["reads"]["perturbation"]["top1"]["low"] == pytest.approx(accuracy(40, 40).low)
    # shuffled labels are right as often as two labels in a random order agree
    assert scores(result, "reads", "shuffled") < 0.35
    assert scores(result, "reads", "perturbation", "top5") == 1
    assert result["chance"] == {"top1": 1 / 8, "top5": 5 / 8}
    removed = PerturbationSemantics(steps=10, step_size=EPS / 4, sign=Sign.REMOVED)
    other: dict[str, Any] = classify_perturbations(
        Stripes(), x, y, {"reads": reads, "turned": turned}, Linf(EPS), removed
    )
    assert scores(other, "reads", "perturbation") == 0
    assert scores(other, "turned", "perturbation") == 1


def test_the_control_shuffles_all_labels_once(x: Tensor, y: Tensor) -> None:
    result: dict[str, Any] = classify_perturbations(Stripes(), x, y, {"reads": DarkestRow()}, Linf(EPS), FULL, seed=3)
    again: dict[str, Any] = classify_perturbations(
        Stripes(), x, y, {"reads": DarkestRow()}, Linf(EPS), FULL, seed=3, batch_size=7
    )
    other: dict[str, Any] = classify_perturbations(Stripes(), x, y, {"reads": DarkestRow()}, Linf(EPS), FULL, seed=4)
    assert again["scores"] == result["scores"]
    actual = [scores(one, "reads", "shuffled") for one in (result, other)]
    assert actual[0] != actual[1] or result["scores"]["reads"]["shuffled"] != other["scores"]["reads"]["shuffled"]


def test_classifiers_get_stretched_eight_bit_images(x: Tensor, y: Tensor) -> None:
    reads = DarkestRow()
    classify_perturbations(Stripes(), x[:5], y[:5], {"reads": reads}, Linf(EPS), FULL)
    clean, seen = reads.seen
    torch.testing.assert_close(clean, x[:5])
    levels = seen * 255
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
    for image in range(5):
        rows = seen[image].mean((0, 2))
        assert rows.tolist() == pytest.approx([0.0 if row == int(y[image]) else 1.0 for row in range(CLASSES)])
    gray = DarkestRow()
    classify_perturbations(
        Stripes(),
        x[:5],
        y[:5],
        {"g": gray},
        Linf(EPS),
        PerturbationSemantics(steps=1, gray=True, stretch=Stretch.LEVEL),
    )
    assert torch.equal(gray.seen[1][:, 0], gray.seen[1][:, 2])


def test_ranks_count_ties_against_the_label() -> None:
    z = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [5.0, 5.0, 5.0]])
    assert rank_of(z, torch.tensor([2, 0, 1])).tolist() == [1, 1, 2]
    assert rank_of(z, torch.tensor([0, 2, 2])).tolist() == [0, 2, 2]


def test_predictions_under_images_are_of_the_first_classifier(x: Tensor, y: Tensor) -> None:
    result: dict[str, Any] = classify_perturbations(
        Stripes(), x, y, {"reads": DarkestRow(), "t": DarkestRow(True)}, Linf(EPS), FULL
    )
    pictures = next(one for one in result["exhibits"] if one["kind"] == "pictures")
    assert [row[1]["note"] for row in pictures["cells"]] == [f"predicted {label}, correct" for label in range(3)]
    bars = result["exhibits"][0]
    assert bars["groups"] == ["reads", "t"]
    assert bars["title"] == "Perturbations classified, top-1"  # five of eight would mean little
    assert "top-1 accuracy of reads is 100.0%" in result["summary"]


def test_studies_resume_and_other_weights_are_evaluated_again(x: Tensor, y: Tensor, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    for path, seed in ((first, 1), (second, 2)):
        name = "timm:vit_tiny_patch16_224"
        save(load(name, num_classes=CLASSES, image_size=16, patch_size=8, options=SMALL, seed=seed), path)
    settings = PerturbationSemantics(classifiers=(str(first),), steps=2)

    folder, known = tmp_path / "run", {"threat": Linf(EPS), "batch_size": 8}
    with pytest.raises(KeyboardInterrupt):
        studied_in(folder, Stripes(), x, y, settings, stop_after=0.5, **known)
    (table,) = [path.name for path in (folder / "tables").iterdir()]
    assert 16 < len(ResultFolder(folder).read(table)["index"]) < 40
    resumed = studied_in(folder, Stripes(), x, y, settings, **known)
    straight: dict[str, Any] = study(Stripes(), x, y, settings, threat=Linf(EPS))
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}
    assert "resized for" in str(resumed["exhibits"])  # eight pixels shown to a network of sixteen
    first.write_bytes(second.read_bytes())
    other = studied_in(folder, Stripes(), x, y, settings, **known)
    assert other["classifiers"] != straight["classifiers"]
    assert len(list((folder / "tables").iterdir())) == 2


def test_few_classes_have_no_top_five(x: Tensor) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 3))[:, :2]

    result: dict[str, Any] = classify_perturbations(
        Two(), x[:4], torch.tensor([0, 1, 0, 1]), {"two": Two()}, Linf(EPS), FULL
    )
    assert list(result["scores"]["two"]["clean"]) == ["top1"]
    np.testing.assert_allclose(result["chance"]["top1"], 0.5)


def test_models_are_left_unchanged(x: Tensor, y: Tensor) -> None:
    model = load("timm:test_resnet", num_classes=CLASSES, image_size=32).train()
    other = load("timm:test_resnet", num_classes=CLASSES, image_size=32, seed=1).train()
    before = {key: value.clone() for key, value in other.state_dict().items()}
    classify_perturbations(
        model, x[:3].repeat(1, 1, 4, 4), y[:3], {"other": other}, "linf:8/255", PerturbationSemantics(steps=1)
    )
    assert model.training
    assert other.training
    assert all(torch.equal(before[key], value) for key, value in other.state_dict().items())


def test_a_network_of_another_size_sees_resized_images_without_overshoot(y: Tensor) -> None:
    sharp = (torch.rand(5, 3, CLASSES, CLASSES, generator=torch.Generator().manual_seed(2)) > 0.5).float()
    other = load("timm:test_vit", num_classes=CLASSES, image_size=16, patch_size=8, options=SMALL)
    seen: list[Tensor] = []
    other.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    classify_perturbations(Stripes(), sharp, y[:5], {"other": other}, Linf(EPS), FULL)
    resized = nn.functional.interpolate(sharp, size=(16, 16), mode="bicubic", antialias=True)
    assert resized.min() < 0 < 1 < resized.max()
    assert any(torch.equal(one, resized.clamp(0, 1)) for one in seen)
    assert all(one.shape[2:] == (16, 16) and one.min() >= 0 and one.max() <= 1 for one in seen)


def test_invalid_settings_are_refused(x: Tensor, y: Tensor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model was named .* Write perturbation-semantics:classifiers=MODEL"):
        study(Stripes(), x, y, PerturbationSemantics())
    with pytest.raises(UsageError, match=r"no model was given .* \{'resnet': model\}"):
        classify_perturbations(Stripes(), x, y, {})
    with pytest.raises(UsageError, match="names a model twice: a, a"):
        PerturbationSemantics(classifiers=("a", "a"))
    save(load("timm:test_resnet", num_classes=3, image_size=32), path := tmp_path / "three.safetensors")
    model = load("timm:test_resnet", num_classes=5, image_size=32)
    with pytest.raises(UsageError, match=r"the studied model has 5 classes, the classifier .* has 3"):
        PerturbationSemantics(classifiers=(str(path),)).check(model)
    with pytest.raises(UsageError, match="is not a model: no such file or folder"):
        PerturbationSemantics(classifiers=("nowhere",)).check(model)

    class ThreeClasses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 3))[:, :3]

    with pytest.raises(UsageError, match="few has 3 classes, the data has a label 7"):
        classify_perturbations(Stripes(), x, y, {"few": ThreeClasses()}, Linf(EPS), FULL)
