"""The studies of perturbations by name, with every kind of setting they have, as the command line writes them."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from vitadel.analyze import STUDIES, Convergence, FeatureVisualization, Perturbations, PerturbationSemantics, Saliency
from vitadel.analyze import study as run
from vitadel.analyze.attacked_images import Sign, Stretch
from vitadel.analyze.base import Study
from vitadel.analyze.feature_visualization import Start
from vitadel.analyze.saliency_maps import Method
from vitadel.api.analyze import as_study
from vitadel.core.errors import UsageError
from vitadel.models import load, tora
from vitadel.runs.schema import FORMER_STUDY_NAMES, StudyRecord


@pytest.mark.parametrize(
    ("text", "study"),
    [
        ("perturbations", Perturbations()),
        (
            "perturbations:stretch=level,sign=clean-adversarial,patch=16,step_size=1/2550",
            Perturbations(stretch=Stretch.LEVEL, sign=Sign.REMOVED, patch=16, step_size=1 / 2550),
        ),
        (
            "perturbation-semantics:classifiers=zoo:a+runs/b,gray=true",
            PerturbationSemantics(classifiers=("zoo:a", "runs/b"), gray=True),
        ),
        (
            "feature-visualization:coordinates=3+5,starts=text+images,norm=l2,eps=30",
            FeatureVisualization(coordinates=(3, 5), starts=(Start.TEXT, Start.IMAGES), norm="l2", eps=30.0),
        ),
        (
            "saliency:methods=eigencam+rollout,center=true,layer=blocks.3.out",
            Saliency(methods=(Method.EIGENCAM, Method.ROLLOUT), center=True, layer="blocks.3.out"),
        ),
        ("convergence:steps=0+10,restarts=2,step_size=none", Convergence(steps=(0, 10), restarts=2)),
    ],
)
def test_settings_are_parsed_as_written(text: str, study: Study) -> None:
    assert as_study(text) == study
    assert STUDIES[text.partition(":")[0]]().about


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("perturbations:sign=minus", "unknown perturbations:sign 'minus'.*Known: adversarial-clean, clean-adversarial"),
        ("feature-visualization:starts=text+cod", "unknown feature-visualization:starts 'cod'. Did you mean 'code'"),
        ("saliency:methods=eigencm", "Did you mean 'eigencam'"),
        ("convergence:steps=0", "not 0 alone"),
    ],
)
def test_unknown_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_study(text)


@pytest.mark.parametrize("text", ["convergence:steps=0+1", "tora-gates", "lesion", "perturbations:steps=1", "saliency"])
def test_one_image_is_enough(text: str) -> None:
    model = load("timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 2})
    model = tora(model) if text == "tora-gates" else model
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    result = run(model, x, torch.tensor([1]), as_study(text))
    assert result["n"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "feature-visualization:coordinates=1,steps=2",
        "convergence:steps=0+2",
        "correlation",
        "correlation:measure=cka,group=8",
        "lesion",
        "perturbations:steps=1",
        "saliency",
    ],
)
def test_progress_ends_at_its_total(text: str) -> None:
    model = load("timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 2})
    x, y = torch.rand(19, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(19) % 5
    reports: dict[str, list[tuple[int, int]]] = {}

    def notify(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        reports.setdefault(what, []).append((done, total))

    run(model, x, y, as_study(text), batch_size=4, progress=notify)
    assert reports
    for steps in reports.values():
        assert len({total for _, total in steps}) == 1
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] > 0


def test_models_and_images_without_values_are_refused() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    with pytest.raises(UsageError, match="the weights of the model are on the meta device and have no values"):
        run(model, x, y, Convergence())
    with pytest.raises(UsageError, match="the images are on the meta device and have no values"):
        run(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), x.to("meta"), y, Convergence())


@pytest.mark.parametrize(("former", "name"), FORMER_STUDY_NAMES.items())
def test_names_of_earlier_versions_are_read(former: str, name: str) -> None:
    assert as_study(former) == STUDIES[name]()
    content = {"study": former, "title": "Title", "summary": "Summary.", "exhibits": [], "n": 3}
    assert StudyRecord.from_json(content).study == name
