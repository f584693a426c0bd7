"""The results of every study of a small network on a few images: numbers, tables, captions, curves, maps."""

from pathlib import Path

import pytest
from on_record import check  # type: ignore[import-not-found]
from small import filled, images, labels, network  # type: ignore[import-not-found]

from vitadel.analyze import Masking, PerturbationSemantics, classify_perturbations, study
from vitadel.api.analyze import as_study
from vitadel.attacks import PGD, Scaling
from vitadel.models import tora

RECORD = Path(__file__).with_name("studies.json")
THREAT = "linf:0.002"  # within which some images are broken

MASKING = Masking(
    steps=2,
    iterations=(1, 2),
    shares=(0.5, 1.0),
    curve_steps=2,
    blocks=(1, 2),
    targets=1,
    queries=2,
    scaling=Scaling(steps=1, batches=1, batch_size=2, trial_images=1, trial_attack=PGD(steps=1)),
)


@pytest.mark.parametrize(
    "text",
    [
        "feature-visualization:coordinates=1+2,steps=3",
        "convergence:steps=0+1+4,restarts=2",
        "correlation",
        "correlation:measure=cka,group=8",
        "lesion",
        "perturbations:steps=2",
        "restricted-attention",
        "saliency",
    ],
)
def test_studies(text: str) -> None:
    model = network()
    check(RECORD, text, study(model, images(), labels(model), as_study(text), threat=THREAT))


def test_gates() -> None:
    model = filled(tora(network()).double())
    check(RECORD, "tora-gates", study(model, images(), labels(model), as_study("tora-gates:images=3"), threat=THREAT))


def test_masking() -> None:
    model = network()
    result = study(model, images(), labels(model), MASKING, threat=THREAT)
    # the exhibits show these numbers and no others
    shown = ("title", "summary", "schema", "exhibits")
    check(RECORD, "masking", {key: value for key, value in result.items() if key not in shown})


def test_semantics() -> None:
    model, others = network(), {"other": network(1), "itself": network()}
    check(
        RECORD,
        "perturbation-semantics",
        classify_perturbations(model, images(), labels(model), others, THREAT, PerturbationSemantics(steps=2)),
    )
