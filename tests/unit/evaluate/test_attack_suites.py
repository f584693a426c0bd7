"""The cascade: known verdicts on a model whose radii are known, nothing attacked twice, nothing computed twice."""

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluations import evaluate  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import data, models
from vitadel.attacks import FGSM, PGD
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate import SUITES, AttackSuite, Context, NamedAttack, TensorImages, sanity_flags, validation_scores
from vitadel.goals import Untargeted, runner_up
from vitadel.losses import margin
from vitadel.runs import Run
from vitadel.threats import L2, Linf

SUITE = AttackSuite("two", "for the tests", (NamedAttack("fgsm", FGSM()), NamedAttack("pgd", PGD(steps=5), margin)))


class Ink(nn.Module):
    """Class 1 where the mean ink exceeds a threshold, else class 0: the Linf distance to the other class is known."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(threshold))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        logit_difference = 20 * (x.flatten(1).mean(1) - self.threshold)
        return torch.stack([-logit_difference, logit_difference, *[logit_difference * 0 - 100] * 8], 1)

    def prediction(self, x: Tensor) -> Tensor:
        return (x.flatten(1).mean(1) > self.threshold).long()


def linf_radius(x: Tensor, threshold: float) -> list[float]:
    """The smallest eps whose ball and box reach the threshold, by bisection on what a uniform shift reaches."""
    radii = []
    for image in x:
        up = float(image.mean()) <= threshold
        low, high = 0.0, 1.0
        for _ in range(50):
            eps = (low + high) / 2
            reach = float((image + (eps if up else -eps)).clamp(0, 1).mean())
            low, high = (low, eps) if (reach > threshold) == up else (eps, high)
        radii.append(high)
    return radii


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return data.load("digits[:60]", preprocess=Squash(8))


@pytest.fixture
def relabeled(digits: DataSet) -> tuple[Ink, DataSet]:
    """The digits with the labels that the ink model gives, so that every image is correct before an attack."""
    from dataclasses import replace

    model = Ink(0.31)
    labels = model.prediction(digits.test.images(torch.arange(60)))
    return model, replace(digits, test=replace(digits.test, labels=labels))


def claim(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"seed": 0}, device="cpu")


def test_results_match_the_known_radius(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run, eps = claim(tmp_path / "run"), 0.05
    (summary,) = evaluate(model, dataset, SUITE, run, threat=Linf(eps), batch=16)
    rows = run.results(str(summary["name"])).rows()
    radii = linf_radius(dataset.test.images(torch.arange(60)), 0.31)
    safe = [abs(radius - eps) > 1e-4 for radius in radii]
    assert sum(safe) > 50
    expected = ["" if radius > eps else "fgsm" for radius in radii]
    assert [to for to, sure in zip(rows["broken_by"], safe, strict=True) if sure] == [
        to for to, sure in zip(expected, safe, strict=True) if sure
    ]
    assert 5 < expected.count("fgsm") < 55
    assert max(float(str(size)) for size in rows["distance"]) <= eps * (1 + 1e-5)
    assert rows["id"] == list(dataset.test.ids)


def test_a_broken_image_is_not_attacked_again(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    (summary,) = evaluate(model, dataset, SUITE, claim(tmp_path / "run"), threat=Linf(0.05), batch=60)
    attacks = summary["attacks"]
    assert isinstance(attacks, list)
    fgsm, pgd = attacks
    assert fgsm["tried"] == 60
    assert pgd["tried"] == 60 - fgsm["broken"]
    assert (fgsm["forwards"], fgsm["backwards"]) == (2 * 60, 60)
    assert (pgd["forwards"], pgd["backwards"]) == (6 * pgd["tried"], 6 * pgd["tried"])


@pytest.mark.parametrize("batch", [7, 60])
def test_results_do_not_depend_on_the_batch(relabeled: tuple[Ink, DataSet], tmp_path: Path, batch: int) -> None:
    model, dataset = relabeled
    tables = []
    for name, size in (("one", 16), ("other", batch)):
        run = claim(tmp_path / name)
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=size, seed=4)
        tables.append(run.results("two-linf-0.05").rows())
    for column in ("index", "broken_by", "prediction", "distance"):
        assert tables[0][column] == tables[1][column]


def test_an_interrupted_suite_computes_only_missing_rows(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    whole = claim(tmp_path / "whole")
    evaluate(model, dataset, SUITE, whole, threat=Linf(0.05), batch=8)

    def interrupt(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if what.endswith("pgd") and done >= 10:
            raise KeyboardInterrupt

    broken = claim(tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, dataset, SUITE, broken, threat=Linf(0.05), batch=8, notify=interrupt)
    tables = broken.results("two-linf-0.05")
    assert tables.read("clean")["index"] == tables.read("fgsm")["index"] == list(range(60))
    assert len(tables.read("pgd")["index"]) == 10
    progress: list[tuple[str, int]] = []
    evaluate(
        model,
        dataset,
        SUITE,
        broken,
        threat=Linf(0.05),
        batch=10,
        notify=lambda w, done, t, n: progress.append((w, done)),
    )
    num_robust = 60 - sum(to == "fgsm" for to in whole.results("two-linf-0.05").rows()["broken_by"])
    assert progress == [("two-linf-0.05 pgd", done) for done in range(11, num_robust + 1)]
    before, after = (run.results("two-linf-0.05") for run in (whole, broken))
    costs = {"seconds"}
    assert {k: v for k, v in before.rows().items() if k not in costs} == {
        k: v for k, v in after.rows().items() if k not in costs
    }
    assert before.read_verified()[0]["robust"] == after.read_verified()[0]["robust"]
    model.seen = 0
    evaluate(model, dataset, SUITE, broken, threat=Linf(0.05), batch=10)
    assert model.seen == 0


def test_a_curve_never_increases_and_keeps_broken_images(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    suite = AttackSuite("steps", "", SUITE.attacks, (0.5, 1.0, 2.0))
    summaries = evaluate(model, dataset, suite, run, threat=Linf(0.04), batch=60)
    assert [summary["name"] for summary in summaries] == ["steps-linf-0.02", "steps-linf-0.04", "steps-linf-0.08"]
    small, large = run.results("steps-linf-0.02").rows(), run.results("steps-linf-0.04").rows()
    for before, after, size in zip(small["broken_by"], large["broken_by"], small["distance"], strict=True):
        if before:
            assert after == before
            assert float(str(size)) <= 0.02 * (1 + 1e-5)
    attacks = summaries[1]["attacks"]
    assert isinstance(attacks, list)
    assert attacks[0]["tried"] == small["broken_by"].count("")


def test_misclassified_images_count_against_both_accuracies(digits: DataSet, tmp_path: Path) -> None:
    model = Ink(0.31)
    (summary,) = evaluate(model, digits, SUITE, claim(tmp_path / "run"), threat=L2(0.01), batch=60)
    right = int((model.prediction(digits.test.images(torch.arange(60))) == digits.test.labels).sum())
    clean, robust = summary["clean"], summary["robust"]
    assert isinstance(clean, dict)
    assert isinstance(robust, dict)
    assert clean["correct"] == right
    assert robust["correct"] <= right


def test_a_clean_suite_needs_no_threat(digits: DataSet, tmp_path: Path) -> None:
    (summary,) = evaluate(Ink(0.31), digits, SUITES["clean"], claim(tmp_path / "run"), batch=60)
    assert summary["threat"] is summary["robust"] is None


def test_a_targeted_attack_must_reach_its_target(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    suite = AttackSuite("aimed", "", (NamedAttack("pgd", PGD(steps=5), target=runner_up),))
    run = claim(tmp_path / "run")
    evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    rows = run.results("aimed-linf-0.05").rows()
    for label, prediction, to in zip(rows["label"], rows["prediction"], rows["broken_by"], strict=True):
        assert (prediction == 1 - int(str(label))) == (to == "pgd")


def test_the_gallery_shows_the_first_images_also_robust_ones(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60)
    rows = run.results("two-linf-0.05")
    shown = np.load(rows.folder / "gallery.npz")
    first = dataset.test.images(torch.arange(8)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(shown["clean"], np.round(first * 255).astype(np.uint8))
    assert shown["broken_by"].tolist() == rows.rows()["broken_by"][:8]
    assert 0 < np.abs(shown["adversarial"] - first).max() <= 0.05 + 1e-6


@pytest.mark.parametrize(
    "entry", [NamedAttack("fgsm", FGSM()), NamedAttack("pgd", PGD(steps=2))], ids=lambda entry: entry.name
)
def test_a_stored_image_does_not_hold_its_batch(
    relabeled: tuple[Ink, DataSet], tmp_path: Path, entry: NamedAttack
) -> None:
    """A view of one image is saved with the whole memory behind it."""
    model, digits = relabeled
    run = Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    suite = AttackSuite("one", "", (entry,), eps_scales=(0.5, 1.0))
    summaries = evaluate(model, digits, suite, run, threat=Linf(0.04))
    files = [file for one in summaries for file in (run.results(str(one["name"])).folder / "shown").glob("*")]
    assert files
    pixels = digits.test.images(torch.tensor([0])).nbytes
    assert max(file.stat().st_size for file in files) < pixels + 2000


def test_a_deleted_file_is_written_again(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    suite = AttackSuite("steps", "", SUITE.attacks, (1.0, 2.0))
    before = evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    files = [path for path in (run.folder / "eval").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"rows.parquet", "summary.json", "gallery.npz", "0.safetensors"}
    for path in files:
        path.unlink()
        after = evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
        for one, other in zip(before, after, strict=True):
            assert {key: one[key] for key in ("clean", "robust", "n", "flags")} == {
                key: other[key] for key in ("clean", "robust", "n", "flags")
            }
        assert path.exists() or path.parent.name == "shown"


def test_a_damaged_summary_is_named_when_resuming(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60)
    path = run.results("two-linf-0.05").folder / "summary.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"summary\.json lacks name, .* Delete .*summary\.json and run"):
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60)
    path.unlink()
    assert evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60)[0]["n"] == 60


def test_the_gallery_omits_images_without_stored_pixels(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    suite = AttackSuite("steps", "", SUITE.attacks, (1.0, 2.0))
    evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    small, large = (run.results(f"steps-linf-{eps}") for eps in ("0.05", "0.1"))
    broken_rows = [row for row, to in enumerate(small.rows()["broken_by"][:8]) if to]
    (small.folder / "shown" / f"{broken_rows[0]}.safetensors").unlink()
    (small.folder / "shown" / f"{broken_rows[1]}.safetensors").write_bytes(b"damaged")
    shutil.rmtree(large.folder)
    with pytest.raises(
        UsageError, match=rf"shown/{broken_rows[1]}\.safetensors is truncated .* Delete it: the gallery then"
    ):
        evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    (small.folder / "shown" / f"{broken_rows[1]}.safetensors").unlink()
    evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    shown = np.load(large.folder / "gallery.npz")
    kept = [row for row in range(8) if row not in broken_rows[:2]]
    assert shown["broken_by"].tolist() == [large.rows()["broken_by"][row] for row in kept]
    assert len(shown["clean"]) == len(shown["adversarial"]) == len(shown["label"]) == 6


def test_the_gallery_shows_attacks_of_smaller_radii(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled
    run = claim(tmp_path / "run")
    suite = AttackSuite("steps", "", SUITE.attacks, (1.0, 2.0))
    evaluate(model, dataset, suite, run, threat=Linf(0.05), batch=60)
    small, large = (np.load(run.results(f"steps-linf-{eps}").folder / "gallery.npz") for eps in ("0.05", "0.1"))
    is_broken = small["broken_by"] != ""
    assert is_broken.any()
    np.testing.assert_array_equal(small["adversarial"][is_broken], large["adversarial"][is_broken])
    assert (np.abs(large["adversarial"] - large["clean"] / 255).max((1, 2, 3)) > 0.04).all()


def test_quick_scores_agree_with_the_cascade(relabeled: tuple[Ink, DataSet]) -> None:
    model, dataset = relabeled
    scores = validation_scores(model, dataset.test, FGSM(), Linf(0.05), seed=0, batch=7)
    radii = linf_radius(dataset.test.images(torch.arange(60)), 0.31)
    assert scores["clean"] == 1.0
    assert scores["robust"] == pytest.approx(sum(radius > 0.05 for radius in radii) / 60, abs=1 / 60)
    assert list(scores) == ["clean", "fgsm", "robust"]
    assert scores["fgsm"] == scores["robust"]  # the same attack twice
    assert list(validation_scores(model, dataset.test, None, None, seed=0)) == ["clean"]


def test_the_one_step_attack_is_made_once(relabeled: tuple[Ink, DataSet]) -> None:
    """Where it breaks every image: a pass to classify, one for the gradient and one to judge, and nothing more."""
    model, dataset = relabeled
    seen: list[int] = []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    scores = validation_scores(model, dataset.test, FGSM(), Linf(1.0), seed=0, batch=60)
    handle.remove()
    assert scores == {"clean": 1.0, "fgsm": 0.0, "robust": 0.0}
    assert sum(seen) == 3 * 60


def test_one_step_can_succeed_where_more_fail() -> None:
    """A minimum of the margin, which one full step crosses, as with leaked labels.

    With margin 100 (x - 1/2)^2 - 0.5, x = 0.48 is misclassified, and a step of 0.1 in loss ends at 0.58: correct.
    """

    class Valley(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.9)

        def forward(self, x: Tensor) -> Tensor:
            margin = 100 * (self.drop(x).mean((1, 2, 3)) - 0.5).square() - 0.5
            return torch.stack([margin, torch.zeros_like(margin)], 1)

    pixels = torch.full((6, 3, 2, 2), 122, dtype=torch.uint8)  # 122 / 255 = 0.478
    pixels[:2] = 102  # 0.4: correct, and after the step to 0.5 not
    split = Split("test", tuple("abcdef"), torch.zeros(6, dtype=torch.long), InMemory(pixels))
    model = Valley().train()
    scores = validation_scores(model, split, FGSM(), Linf(0.1), seed=0, batch=4)
    assert scores == {"clean": 2 / 6, "fgsm": 4 / 6, "robust": 0.0}
    assert model.drop.training


def test_the_robust_head_of_a_tora_model_is_scored_too(digits: DataSet) -> None:
    backbone = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options={"depth": 2})
    model = models.tora(backbone, models.AdapterConfig(reduction=4), num_classes=10, seed=0).eval()
    assert isinstance(model.net, models.AdaptedViT)
    torch.manual_seed(0)
    nn.init.normal_(next(model.net.heads["rob"].parameters()))
    images = digits.test.take(torch.arange(40))
    scores = validation_scores(model, images, FGSM(), Linf(0.2), seed=0, batch=16)
    assert list(scores) == ["clean", "rob_clean", "rob_fgsm", "fgsm", "robust"]
    x, y = images.images(torch.arange(40)), images.labels
    x_adv = FGSM().craft(model, x, Untargeted(y), Linf(0.2), seed=0)
    head = models.with_head(model, "rob")
    with torch.no_grad():
        assert scores["rob_clean"] == int((head(x).argmax(1) == y).sum()) / 40
        assert scores["rob_fgsm"] == int((head(x_adv).argmax(1) == y).sum()) / 40


def test_known_faults_raise_their_flags(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled

    class Stepped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model((x * 255).round() / 255)
            return logits

    (summary,) = evaluate(Stepped(), dataset, SUITE, claim(tmp_path / "run"), threat=Linf(0.05), batch=16)
    flags = summary["flags"]
    assert isinstance(flags, list)
    assert [flag["code"] for flag in flags] == ["zero-gradients", "zero-gradients"]
    # one gradient per image for FGSM, six for PGD unless the start already fools, over all batches
    attacks = summary["attacks"]
    assert isinstance(attacks, list)
    gradients = 6 * 60 - 5 * attacks[1]["broken"]
    assert flags[0]["evidence"] == {"zero": 60, "gradients": 60}
    assert flags[1]["evidence"] == {"zero": gradients - attacks[1]["broken"], "gradients": gradients}
    (clean,) = evaluate(model, dataset, SUITE, claim(tmp_path / "other"), threat=Linf(0.05), batch=16)
    assert clean["flags"] == []


def test_flags_do_not_depend_on_the_batch(relabeled: tuple[Ink, DataSet], tmp_path: Path) -> None:
    model, dataset = relabeled

    class PartlyStepped(nn.Module):
        """No gradient where the mean ink is small: for a few of the images."""

        def forward(self, x: Tensor) -> Tensor:
            faint = (x.detach().flatten(1).mean(1) < 0.255)[:, None, None, None]
            logits: Tensor = model(torch.where(faint, (x * 255).round() / 255, x))
            return logits

    result = []
    for batch in (1, 7, 60):
        run = claim(tmp_path / str(batch))
        (summary,) = evaluate(PartlyStepped(), dataset, SUITE, run, threat=Linf(0.01), batch=batch)
        result.append(summary["flags"])
    assert result[0] == result[1] == result[2]
    flags = result[0]
    assert isinstance(flags, list)
    # all sixty images count, not only those of batches in which a gradient was missing
    assert flags[0]["evidence"]["gradients"] == 60
    assert flags[0]["evidence"]["zero"] == 4


def test_randomized_models_and_probabilities_are_detected() -> None:
    x = torch.rand(8, 3, 4, 4)
    noisy = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    assert sanity_flags(noisy, x) == ()

    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.randn(len(x), 5)

    assert [flag.code for flag in sanity_flags(Noise(), x)] == ["randomized"]
    assert [flag.code for flag in sanity_flags(nn.Sequential(noisy, nn.Softmax(1)), x)] == ["probabilities"]


@pytest.mark.parametrize("fault", ["nan", "few classes", "shape"])
def test_models_that_cannot_be_evaluated_are_refused(digits: DataSet, tmp_path: Path, fault: str) -> None:
    class Faulty(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if fault == "nan":
                return torch.full((len(x), 10), float("nan"))
            return torch.zeros(len(x), 3) if fault == "few classes" else torch.zeros(len(x))

    message = {
        "nan": "NaN or infinite logits for 60 of 60",
        "few classes": r"outputs of shape \[60, 3\]",
        "shape": r"shape \[60\]",
    }
    with pytest.raises(UsageError, match=message[fault]):
        evaluate(Faulty(), digits, SUITE, claim(tmp_path / "run"), threat=Linf(0.1), batch=60)


def test_invalid_arguments_are_named(digits: DataSet, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="suite 'two' attacks, so it needs a threat"):
        evaluate(Ink(0.3), digits, SUITE, claim(tmp_path / "a"))
    with pytest.raises(UsageError, match="Engine.batch_size must be at least 1, got 0"):
        evaluate(Ink(0.3), digits, SUITE, claim(tmp_path / "b"), threat=Linf(0.1), batch=0)
    with pytest.raises(UsageError, match="allows every image of shape"):
        evaluate(Ink(0.3), digits, SUITE, run := claim(tmp_path / "c"), threat=L2(1000))
    assert not (run.folder / "eval").exists()


def test_seconds_include_the_clean_pass(digits: DataSet, tmp_path: Path) -> None:
    class Slow(Ink):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.01)
            return super().forward(x)

    (summary,) = evaluate(Slow(0.3), digits, SUITES["clean"], claim(tmp_path / "clean"), batch=20)
    assert 0.03 <= float(str(summary["seconds"])) < 10  # three batches
    (summary,) = evaluate(Slow(0.3), digits, SUITE, claim(tmp_path / "two"), threat=Linf(0.05), batch=20)
    attack_records = summary["attacks"]
    assert isinstance(attack_records, list)
    attacks = sum(attack["seconds"] for attack in attack_records)
    assert float(str(summary["seconds"])) >= attacks + 0.03 - 0.002  # each is rounded to a thousandth


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("clean", "correct_selected", "no", "have correct_selected = 'no', which is no float"),
        ("clean", "top_other_classes", [10], "has [10] for the classes that an attack aims at"),
        ("fgsm", "success", "no", "have success = 'no', which is no bool"),
        ("fgsm", "success", None, "have success = None, which is no bool"),
        ("fgsm", "success", "", "have no column 'success'"),
        ("flags", "evidence", 7, "have evidence = 7, which is no str"),
    ],
)
def test_forged_rows_of_an_interrupted_attack_are_refused(
    relabeled: tuple[Ink, DataSet], tmp_path: Path, table: str, column: str, value: object, message: str
) -> None:
    model, dataset = relabeled

    def interrupt(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if what.endswith("pgd"):
            raise KeyboardInterrupt

    run = claim(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60, notify=interrupt)
    results = run.results("two-linf-0.05")
    results.append("flags", {"index": [3], "order": [0], "code": ["a"], "sentence": ["b"], "evidence": ["{}"]})
    stored = results.read(table)
    forged = {**stored, column: [value] * len(stored["index"])}
    if value == "":
        del forged[column]
    shutil.rmtree(results.table(table))
    results.append(table, forged)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        evaluate(model, dataset, SUITE, run, threat=Linf(0.05), batch=60)
    assert "tables" in str(error.value)
    assert results.read("pgd")["index"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[1]", "7"])
def test_damaged_evidence_of_a_flag_is_a_one_line_error(text: str) -> None:
    ctx = Context(Ink(0.3), TensorImages(torch.rand(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64)))
    ctx.add_flags([Flag("zero-gradients", "there were none", {"zero": 60})])
    assert [dict(flag.evidence) for flag in ctx.flags()] == [{"zero": 60}]
    row = {"index": 1, "order": 1, "code": "stateful", "sentence": "it has state", "evidence": text}
    ctx.store.append("flags", {name: [value] for name, value in row.items()})
    with pytest.raises(UsageError, match=r"flags in the run folder are damaged .* Evaluate into another run folder\."):
        ctx.flags()
