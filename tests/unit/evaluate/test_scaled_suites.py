"""Scaled attacks in a cascade: factors searched once, plain attacks first, and the paper's protocol."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from evaluations import evaluate  # type: ignore[import-not-found]
from torch import Tensor

from vitadel import data, robustness
from vitadel.attacks import PGD, Engine, Factors, Scaling, Square
from vitadel.attacks.attention_scaling.attack import find_attack_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.evaluate import SUITES, AttackSuite, NamedAttack, scaled_suites
from vitadel.losses import margin
from vitadel.models import Model, load
from vitadel.runs import Run
from vitadel.threats import Linf

THREAT = "linf:48/255"
FACTORS = "eval/factors/parts/factors.json"
SMALL = Scaling(batches=6, batch_size=16, trial_images=16, trial_attack=PGD(steps=5))
PLAIN = NamedAttack("pgd", PGD(steps=10, random_start=False))


@pytest.fixture(scope="module")
def model() -> Model:
    return load("vitadel:masked_gradient_net", seed=0).eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def y(model: Model, x: Tensor) -> Tensor:
    """The model's predictions, except for one image that is misclassified from the start."""
    y = model(x).argmax(1)
    y[3] = (y[3] + 1) % 10
    return y


def test_robust_images_are_attacked_again_and_scored_on_the_model_itself(model: Model, x: Tensor, y: Tensor) -> None:
    result = robustness(model, x, y, THREAT, [PLAIN], scaling=SMALL)
    assert result.broken_by[3] == "clean"
    assert "pgd" not in result.broken_by  # its gradient is zero, and it starts where the image is
    broken = [row for row, to in enumerate(result.broken_by) if to == "pgd+scaled"]
    assert broken
    assert bool((model(result.x_adv[broken]).argmax(1) != y[broken]).all())
    assert (model(result.x_adv).argmax(1) != y).tolist() == [to != "" for to in result.broken_by]
    assert {flag.code for flag in result.flags} >= {"zero-gradients", "scaled-stronger"}
    (flag,) = [flag for flag in result.flags if flag.code == "scaled-stronger"]
    assert flag.evidence == {"images": len(broken), "of": 24}


def test_the_protocol_of_the_paper_evaluates_the_rescaled_model(model: Model, x: Tensor, y: Tensor) -> None:
    result = robustness(model, x, y, THREAT, [PLAIN], scaling=SMALL)
    assert result.factors is not None
    assert result.factors.num_images == 15
    rescaled = RescaledModel(model, result.factors.attentions, result.factors.logits)
    assert result.paper_protocol == robustness(rescaled, x, y, THREAT, [PLAIN]).robust
    assert robustness(model, x, y, THREAT, [PLAIN]).paper_protocol is None


def test_a_scaled_square_is_no_evidence_against_gradients(model: Model, x: Tensor, y: Tensor) -> None:
    suite = [PLAIN, NamedAttack("square", Square(queries=1), margin)]
    result = robustness(model, x, y, THREAT, suite, scaling=SMALL)
    assert [attack.name for attack in result.attacks] == ["pgd", "square", "pgd+scaled", "square+scaled"]
    about_square = [flag.sentence for flag in result.flags if flag.code == "square-stronger"]
    assert not any("square+scaled" in sentence for sentence in about_square)


@pytest.mark.parametrize(
    ("engine", "words"),
    [(Engine(precision="bf16"), "float32, got precision='bf16'"), (Engine(compile=True), "Leave compile out")],
)
def test_lower_precision_and_compiling_are_refused(
    model: Model, x: Tensor, y: Tensor, engine: Engine, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        robustness(model, x, y, THREAT, [PLAIN], scaling=SMALL, engine=engine)


@pytest.fixture
def digits() -> data.DataSet:
    return data.load("digits[:40]", preprocess=data.Squash(8))


def claimed(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"x": 1}, device="cpu")


def test_factors_are_stored_and_not_searched_again(
    model: Model, digits: data.DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, threat = AttackSuite("own", "", (PLAIN,)), Linf(48 / 255)
    whole = evaluate(model, digits, suite, claimed(tmp_path / "a"), threat=threat, scaling=SMALL)
    kept = read_json(tmp_path / "a" / FACTORS)
    assert [summary["name"] for summary in whole] == ["own-linf-48_255", "own-linf-48_255-paper-protocol"]
    assert whole[0]["scaling"] == kept
    assert "scaling" not in whole[1]
    assert [summary["suite"] for summary in whole] == ["own", "own-paper-protocol"]
    assert "rescaled-model" in {flag["code"] for flag in whole[1]["flags"]}
    assert "rescaled-model" not in {flag["code"] for flag in whole[0]["flags"]}

    other_run = claimed(tmp_path / "b")
    (tmp_path / "b" / FACTORS).parent.mkdir(parents=True)
    (tmp_path / "b" / FACTORS).write_bytes((tmp_path / "a" / FACTORS).read_bytes())
    monkeypatch.setattr(scaled_suites, "find_attack_factors", lambda *args, **kwargs: pytest.fail("searched again"))
    again = evaluate(model, digits, suite, other_run, threat=threat, scaling=SMALL)
    for one, other in zip(whole, again, strict=True):
        assert one["robust"] == other["robust"]


@pytest.mark.parametrize("split", ["train", "evaluated"])
def test_factors_are_searched_on_training_images_unless_the_evaluated_ones_are_wanted(
    model: Model, digits: data.DataSet, tmp_path: Path, split: str
) -> None:
    """Jain & Dutta 2024, algorithm 1, lines 1 and 2: mini-batches of the training set."""
    suite, threat = AttackSuite("own", "", (PLAIN,)), Linf(48 / 255)
    few = replace(SMALL, batches=2, batch_size=8, trial_images=8, split=split)
    both = evaluate(model, digits, suite, claimed(tmp_path / "a"), threat=threat, scaling=few)
    x, y = digits.split("train" if split == "train" else "test").tensors(16)
    by_hand = find_attack_factors(model, x, y, threat, few).best
    for summary in both:
        flagged = [flag["evidence"] for flag in summary["flags"] if flag["code"] == "factors-of-evaluated-images"]
        assert flagged == ([] if split == "train" else [{"images": 16}])
    found = both[0]["scaling"]
    assert (found["split"], found["images"]) == (split, 16)
    assert scaled_suites.factors_of(found) == by_hand
    assert by_hand != find_attack_factors(model, *digits.split("holdout").tensors(16), threat, few).best


def test_without_training_images_the_evaluated_ones_are_searched_and_that_is_flagged(
    model: Model, x: Tensor, y: Tensor, digits: data.DataSet, tmp_path: Path
) -> None:
    few = replace(SMALL, batches=2, batch_size=8, trial_images=8)
    (sentence,) = (
        flag.sentence
        for flag in robustness(model, x, y, THREAT, [PLAIN], scaling=few).flags
        if flag.code == "factors-of-evaluated-images"
    )
    assert sentence.startswith("the factors were searched on 16 of the evaluated images")
    given = robustness(model, x, y, THREAT, [PLAIN], scaling=Scaling.manual(0.5))
    assert "factors-of-evaluated-images" not in {flag.code for flag in given.flags}, "a given factor is not a choice"
    suite = AttackSuite("own", "", (PLAIN,))
    images = replace(digits, train=None, holdout=None)
    told, _ = evaluate(model, images, suite, claimed(tmp_path / "a"), threat=Linf(48 / 255), scaling=few)
    assert told["scaling"]["split"] == "evaluated"


def test_damaged_factors_are_named(model: Model, digits: data.DataSet, tmp_path: Path) -> None:
    run, suite = claimed(tmp_path / "a"), AttackSuite("own", "", (PLAIN,))
    damaged: tuple[tuple[dict[str, object], str], ...] = (
        ({}, "factors is missing"),
        ({"factors": {}}, r"factors\.attentions is missing"),
        ({"factors": {"attentions": 3}}, r"factors\.attentions should be a list, got 3"),
        ({"factors": {"attentions": ["x"]}}, r"factors\.attentions\[0\] should be a number, got 'x'"),
        ({"factors": {"attentions": [1.0]}, "tried": 3}, "tried should be a list, got 3"),
    )
    for content, message in damaged:
        write_json(tmp_path / "a" / FACTORS, {"seconds": 1.0, **content})
        with pytest.raises(UsageError, match=rf"parts/factors\.json: {message}\. Delete the file"):
            evaluate(model, digits, suite, run, threat=Linf(48 / 255), scaling=SMALL)


def test_all_radii_of_a_curve_share_the_factors_of_the_threat(
    model: Model, digits: data.DataSet, tmp_path: Path
) -> None:
    suite = AttackSuite("own", "", (PLAIN,), (0.5, 1.0))
    records = evaluate(model, digits, suite, claimed(tmp_path / "a"), threat=Linf(48 / 255), scaling=SMALL)
    assert len(records) == 4
    assert records[0]["scaling"] == records[1]["scaling"]


def test_a_suite_without_attacks_needs_no_factors(model: Model, digits: data.DataSet, tmp_path: Path) -> None:
    (record,) = evaluate(model, digits, SUITES["clean"], claimed(tmp_path / "a"), scaling=SMALL)
    assert record["robust"] is None
    assert not (tmp_path / "a" / FACTORS).exists()


def test_factors_survive_writing_and_reading() -> None:
    factors = Factors((1e-7, 0.3333333333333333), 0.5, 1.25, 3, 7)
    written = json.loads(json.dumps({"factors": asdict(factors)}))
    assert scaled_suites.factors_of(written) == factors
    assert scaled_suites.with_scaled((PLAIN,), factors)[0] is PLAIN
    assert replace(PLAIN, name="pgd+scaled").name == scaled_suites.with_scaled((PLAIN,), factors)[1].name
