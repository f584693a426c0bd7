"""The study of masking: verdicts on networks whose verdict is known, resuming, batches, refusals."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_models import studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import data, models
from vitadel.analyze import STUDIES, Masking, run_study, study
from vitadel.attacks import PGD, Engine, Scaling
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json
from vitadel.evaluate.context import Context
from vitadel.evaluate.store import Row
from vitadel.models import Model
from vitadel.runs import ResultFolder
from vitadel.runs.exhibits import Histograms, Lines
from vitadel.runs.schema import StudyRecord
from vitadel.threats import L2, Linf

Results = Callable[[list[int]], Iterator[tuple[int, Row]]]
SMALL = Masking(
    steps=8,
    iterations=(4, 8),
    shares=(1.0,),
    curve_steps=6,
    targets=2,
    queries=60,
    scaling=Scaling(steps=1, batches=2, batch_size=8, trial_images=8, trial_attack=PGD(steps=2)),
)


def pictures(n: int) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def own_labels(model: nn.Module, x: Tensor) -> Tensor:
    """The model's own predictions as labels, so that it is always correct."""
    with torch.no_grad():
        labels: Tensor = model.eval()(x).argmax(1)
    return labels


@pytest.fixture(scope="module")
def pointer() -> Model:
    return models.load("vitadel:masked_gradient_net", num_classes=10, seed=0)


@pytest.fixture(scope="module")
def tiny() -> Model:
    options = {"depth": 2, "embed_dim": 24, "num_heads": 3}
    return models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options, seed=0)


def evidence(result: dict[str, object]) -> dict[str, dict[str, object]]:
    verdict = result["verdict"]
    assert isinstance(verdict, dict)
    return {one["code"]: one for one in verdict["evidence"]}


def answer(result: dict[str, object]) -> str:
    verdict = result["verdict"]
    assert isinstance(verdict, dict)
    return str(verdict["answer"])


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key != "seconds"}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def hidden(pointer: Model) -> dict[str, object]:
    x = pictures(60)
    return study(pointer, x, own_labels(pointer, x), SMALL, threat="linf:24/255")


def test_a_network_with_masked_gradients_is_detected(hidden: dict[str, object]) -> None:
    assert answer(hidden) == "masked"
    result = evidence(hidden)
    gradients = hidden["gradients"]
    assert isinstance(gradients, dict)
    assert min(share["accuracy"] for share in gradients.values()) > 0.9
    assert result["zero-gradients"]["points"] == result["gaps"]["points"] == "masked"
    assert result["square"]["points"] == result["far"]["points"] == "masked"


def test_the_numbers_are_consistent(hidden: dict[str, object]) -> None:
    clean, eps, blocks, attacks = (hidden[key] for key in ("clean", "eps", "blocks", "attacks"))
    assert isinstance(clean, dict)
    assert isinstance(eps, list)
    assert isinstance(blocks, list)
    assert isinstance(attacks, list)
    assert (clean["correct"], clean["n"]) == (60, 60)
    assert [point["text"] for point in eps] == ["linf:24/255", "linf:100/255"]
    robust = [point["accuracy"]["correct"] for point in eps]
    assert robust == sorted(robust, reverse=True)
    assert [point["blocks"] for point in blocks] == [0, 1, 2]
    assert blocks[0]["original"] == blocks[0]["rescaled"] == blocks[0]["with_plain"]
    assert all(p["with_plain"]["correct"] <= p["original"]["correct"] for p in blocks)
    assert all(p["rescaled"]["correct"] <= p["rescaled_clean"]["correct"] for p in blocks)
    assert all(one["broken"] <= one["tried"] for one in attacks)
    for point in hidden["iterations"]:  # type: ignore[attr-defined]
        assert point["aas"]["correct"] <= point["pgd"]["correct"]
    json.dumps(hidden, allow_nan=False)


def test_an_unmasked_network_passes(tiny: Model) -> None:
    x = pictures(120)
    result = study(tiny, x, own_labels(tiny, x), SMALL, threat=Linf(4 / 255))
    assert answer(result) == "not masked"
    assert evidence(result)["zero-gradients"]["numbers"]["cross-entropy, images"] == 0  # type: ignore[index]


def test_at_chance_and_with_few_images_there_is_no_verdict(tiny: Model) -> None:
    x = pictures(40)
    assert answer(study(tiny, x, own_labels(tiny, x), SMALL, threat="linf:4/255")) == "cannot tell"
    wrong = (own_labels(tiny, x) + 1) % 10
    result = study(tiny, x, wrong, SMALL, threat="linf:4/255")
    assert answer(result) == "cannot tell"
    assert result["clean"]["correct"] == 0  # type: ignore[index]


def test_other_norms_are_supported(tiny: Model) -> None:
    x = pictures(12)
    result = study(tiny, x, own_labels(tiny, x), replace(SMALL, queries=0), threat=L2(0.3))
    eps = result["eps"]
    assert isinstance(eps, list)
    # the ball that holds the one of 100/255
    assert eps[-1]["eps"] == pytest.approx((3 * 64) ** 0.5 * 100 / 255)
    assert "square" not in evidence(result)


def test_results_do_not_depend_on_the_batch(pointer: Model, hidden: dict[str, object]) -> None:
    x = pictures(60)
    other = study(pointer, x, own_labels(pointer, x), SMALL, threat="linf:24/255", batch_size=23)
    assert without_times(other) == without_times(hidden)


def test_an_interrupted_study_resumes_at_the_next_image(
    pointer: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, settings = pictures(30), replace(SMALL, queries=20)
    y, known = own_labels(pointer, x), {"threat": Linf(24 / 255), "batch_size": 4}
    whole = study(pointer, x, y, settings, **known)  # type: ignore[arg-type]
    searched: list[tuple[str, int]] = []
    stream = Context.stream

    def counted(self: Context, table: str, results: Results, **options: Any) -> None:
        def recorded(missing: list[int]) -> Iterator[tuple[int, Row]]:
            for index, row in results(missing):
                searched.append((table, index))
                yield index, row

        stream(self, table, recorded, **options)

    monkeypatch.setattr(Context, "stream", counted)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, pointer, x, y, settings, stop_after=0.4, stop_in="pgd-4", **known)
    assert not (tmp_path / "result.json").exists()
    assert 0 < len(ResultFolder(tmp_path).read("pgd-4")["index"]) < 30
    resumed = studied_in(tmp_path, pointer, x, y, settings, **known)
    assert without_times(resumed) == without_times(whole)
    assert len(set(searched)) == len(searched)  # nothing is computed twice
    assert read_json(tmp_path / "result.json") == resumed
    count = len(searched)
    assert studied_in(tmp_path, pointer, x, y, settings, **known) == resumed
    assert len(searched) == count


def test_exhibits_show_the_numbers(hidden: dict[str, Any]) -> None:
    record = StudyRecord.from_json(hidden)
    assert record.summary.startswith("Verdict: masked (evidence for it from square")
    evidence, attacks, zero, gaps = record.tables
    assert [row[0] for row in evidence.rows] == [one["code"] for one in hidden["verdict"]["evidence"]]
    assert [list(row[1:3]) for row in attacks.rows] == [[one["tried"], one["broken"]] for one in hidden["attacks"]]
    assert [row[1] for row in zero.rows] == [one["accuracy"] for one in hidden["gradients"].values()]
    assert len(gaps.rows) == 2 * len(hidden["gaps"]["plain"])
    (histograms,) = (one for one in record.exhibits if isinstance(one, Histograms))
    for panel, one in zip(histograms.panels, hidden["gaps"]["plain"], strict=True):
        assert one["name"].startswith(panel.name)
        assert sum(panel.shares[0]) == pytest.approx(1)  # type: ignore[arg-type]
    radii, steps, blocks = (one for one in record.exhibits if isinstance(one, Lines))
    assert radii.lines[0].x == pytest.approx([0, 24, 100])
    assert list(radii.lines[0].y) == [1, *(point["accuracy"]["accuracy"] for point in hidden["eps"])]
    assert list(steps.lines[0].y) == [point["pgd"]["accuracy"] for point in hidden["iterations"]]
    assert list(blocks.lines[0].y) == [point["original"]["accuracy"] for point in hidden["blocks"]]


def test_the_model_is_left_unchanged(tiny: Model) -> None:
    x = pictures(8)
    labels = own_labels(tiny, x)
    before, state = tiny(x), torch.random.get_rng_state()
    tiny.train()
    study(tiny, x, labels, replace(SMALL, queries=5), threat="linf:4/255")
    assert tiny.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(tiny.eval()(x), before)
    assert all(weight.requires_grad for weight in tiny.parameters())


def test_unsupported_models_are_refused(tiny: Model) -> None:
    x, y = pictures(4), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(UsageError, match="ResNet has no attention, so there is no softmax that could mask a gradient"):
        study(models.load("timm:test_resnet", num_classes=10), x, y, Masking())
    with pytest.raises(UsageError, match="through a model's taps, and this Flatten has none"):
        study(nn.Flatten(), x, y, Masking())
    half = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2).half()
    with pytest.raises(UsageError, match="what float32 can hold, got torch.float16 weights"):
        study(half, x, y, Masking())
    with pytest.raises(UsageError, match=r"of shape \[4, 10\] for 4 images, the data has labels from 0 to 12"):
        study(tiny, x, torch.tensor([0, 1, 2, 12]), Masking())
    with pytest.raises(UsageError, match=r"pixels in \[0, 1\]"):
        study(tiny, 2 * x, y, Masking())


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"queries": -1}, {"iterations": ()}, {"shares": (0.0,)}])
def test_invalid_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="Masking"):
        replace(Masking(), **wrong)  # type: ignore[arg-type]


def test_every_study_describes_itself() -> None:
    for make in STUDIES.values():
        assert make().about


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "known"), [("digits-masked-gradient", "masked"), ("digits-adversarial", "not masked")]
)
def test_trained_networks(recipe: str, known: str, tmp_path: Path) -> None:
    from vitadel.recipes import RECIPES, train_recipe

    model = train_recipe(RECIPES[recipe](), tmp_path / "run")
    split = data.load("digits", preprocess=data.Squash(8)).split("test")
    ctx = Context(model, split, threat=Linf(24 / 255), engine=Engine(precision="float32"))
    result = run_study(Masking.quick(), ctx).to_json()
    assert answer(result) == known
    if known == "masked":
        shared = evidence(result)["shared"]["numbers"]
        assert shared["by_both_share"] >= 0.8  # type: ignore[index]
