"""The studies of perturbations by name, with every kind of setting they have, as the command line writes them."""

from pathlib import Path

import pytest

from vitadel.analyse import STUDIES, Accumulate, Convergence, Perturbations, Saliency, Semantics
from vitadel.analyse.accumulate import Norm, Start
from vitadel.analyse.perturbed import Sign, Stretch
from vitadel.analyse.sight import Method
from vitadel.analyse.study import Parts, Study
from vitadel.cli.analyse import read_study
from vitadel.errors import UsageError


@pytest.mark.parametrize(
    ("text", "study"),
    [
        ("perturbations", Perturbations()),
        (
            "perturbations:stretch=level,sign=clean-adversarial,patch=16,step_size=1/2550",
            Perturbations(stretch=Stretch.LEVEL, sign=Sign.REMOVED, patch=16, step_size=1 / 2550),
        ),
        ("semantics:classifiers=zoo:a+runs/b,grey=true", Semantics(classifiers=("zoo:a", "runs/b"), grey=True)),
        (
            "accumulate:coordinates=3+5,starts=text+images,norm=l2,eps=30",
            Accumulate(coordinates=(3, 5), starts=(Start.TEXT, Start.IMAGES), norm=Norm.L2, eps=30.0),
        ),
        (
            "saliency:methods=eigencam+rollout,centre=true,layer=blocks.3.out",
            Saliency(methods=(Method.EIGENCAM, Method.ROLLOUT), centre=True, layer="blocks.3.out"),
        ),
        ("convergence:steps=0+10,restarts=2,step_size=none", Convergence(steps=(0, 10), restarts=2)),
    ],
)
def test_settings_as_they_are_written(text: str, study: Study) -> None:
    assert read_study(text) == study
    assert STUDIES[text.partition(":")[0]]().about


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("perturbations:sign=minus", "unknown perturbations:sign 'minus'.*Known: adversarial-clean, clean-adversarial"),
        ("accumulate:starts=text+cod", "unknown accumulate:starts 'cod'. Did you mean 'code'"),
        ("saliency:methods=eigencm", "Did you mean 'eigencam'"),
        ("convergence:steps=0", "not 0 alone"),
    ],
)
def test_settings_that_are_not_known(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_study(text)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", r"one\.json is no part of a study\. Delete it and run the same command again"),
        ('{"seconds": "long"}', r"one\.json is no part of a study"),
        ('{"seconds": 1, "sha256": "00"}', r"one\.json is damaged or was edited"),
        ("[1", r"one\.json is not readable JSON .* or delete it and run the same command again"),
    ],
)
def test_a_damaged_part_of_a_study_is_named(tmp_path: Path, content: str, told: str) -> None:
    made = Parts(tmp_path).once("one", lambda: {"share": 0.1})
    path = tmp_path / "parts" / "one.json"
    assert Parts(tmp_path).once("one", lambda: pytest.fail("made again")) == made
    path.write_text(content)
    with pytest.raises(UsageError, match=told):
        Parts(tmp_path).once("one", lambda: {"share": 0.2})
    path.unlink()
    assert Parts(tmp_path).once("one", lambda: {"share": 0.2})["share"] == 0.2
