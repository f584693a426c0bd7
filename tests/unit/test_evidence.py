"""The page of evidence is what the records give, every record says what made it, and verdicts have known answers."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
from evidence_claims import CLAIMS, Claim, Comparison, Earlier, Verdict, combine, decide, difference_of, mean_of
from evidence_records import MEASUREMENTS, RESULTS, ArmRecord, Records, Scores, lines_of
from jobs import Job

from vitadel.api.sweep import as_sweep
from vitadel.core.stats import Difference, accuracy, independent_difference, paired_difference
from vitadel.objectives import AttentionScaling, TrainingTime
from vitadel.recipes import RECIPES, override
from vitadel.runs import ManifestRecord
from vitadel.train import Compile

OWN = [line for line in lines_of(sorted(RESULTS.glob("*.jsonl"))) if line.get("benchmark") == "evidence"]


def scores(*correct: int, of: int = 1) -> Scores:
    return Scores(np.asarray(correct, np.int64), of)


def line(arm: str, seed: int, correct: Scores, scale: str = "full", **more: Any) -> dict[str, Any]:
    """A record of an arm of the optimizers."""
    return {
        "benchmark": "evidence",
        "measurement": "optimizers",
        "arm": arm,
        "seed": seed,
        "scale": scale,
        "n": len(correct.correct),
        "images": "same",
        "scores": {"robust": correct.to_json()},
        "commit": "0123456789",
        "file": "made-up.jsonl",
        **more,
    }


LION = Comparison("Lion, against SGD", "optimizers", ("Lion", "robust"), ("SGD", "robust"))

# ---------------------------------------------------------------- the page


def test_page_is_what_the_records_give() -> None:
    assert evidence.PAGE.read_text() == evidence.page(Records.load()), "run python benchmarks/evidence.py write"


def test_every_claim_is_on_the_page_with_its_verdict_and_command() -> None:
    page, records = evidence.PAGE.read_text(), Records.load()
    for claim in CLAIMS:
        assert f"### {claim.title}: {claim.verdict(records).value}\n" in page
    for name in {one.measurement for claim in CLAIMS for one in claim.comparisons if isinstance(one, Comparison)}:
        assert f"evidence.py run {name} " in page


def test_claim_without_records_has_no_number() -> None:
    for claim in CLAIMS:
        section = evidence.claim_section(claim, Records([], []))
        assert section[0].endswith(Verdict.UNMEASURED.value)
        own = [row for row in section if row.startswith("| ") and row.count("|") == 9][2:]
        assert len(own) == len(claim.comparisons)
        for row in own:
            assert [cell.strip() for cell in row.split("|")[2:7]] == [""] * 5


# ------------------------------------------------------------- the records


def test_there_are_records() -> None:
    assert OWN


@pytest.mark.parametrize("one", OWN, ids=lambda one: f"{one['measurement']}-{one['arm']}-{one['seed']}-{one['scale']}")
def test_record_says_what_made_it(one: dict[str, Any]) -> None:
    assert isinstance(one["seed"], int)
    assert {"python", "torch", "timm", "vitadel"} <= one["versions"].keys()
    assert one["device"]
    assert one["machine"]["processor"]
    assert len(one["commit"]) == 40
    assert int(one["commit"], 16) >= 0
    assert one["command"]
    assert all(command.startswith("vitadel ") for command in one["command"])
    assert "/tmp" not in json.dumps(one)  # noqa: S108 - absolute paths do not belong into records
    assert one["scale"] in ("full", "reduced")


@pytest.mark.parametrize("one", OWN, ids=lambda one: f"{one['measurement']}-{one['arm']}-{one['seed']}-{one['scale']}")
def test_record_is_of_a_known_measurement_and_its_means_are_those_of_its_images(one: dict[str, Any]) -> None:
    record = ArmRecord.from_json(one)
    assert record.arm in MEASUREMENTS[record.measurement].arms
    for name, own in record.scores.items():
        assert len(own.correct) == record.n
        assert own.shares.mean() == pytest.approx(one["scores"][name]["accuracy"], abs=5e-5)


def test_earlier_records_say_version_and_hardware() -> None:
    records = Records.load()
    for claim in CLAIMS:
        for one in claim.comparisons:
            if isinstance(one, Earlier):
                for keys, _ in (one.first, one.second):
                    found = records.find(keys)
                    assert found is not None
                    assert found["device"]
                    assert found["versions"]["vitadel"]


def test_comparisons_name_arms_and_earlier_records_that_exist() -> None:
    for claim in CLAIMS:
        for one in claim.comparisons:
            if isinstance(one, Comparison):
                assert {one.first[0], one.second[0]} <= MEASUREMENTS[one.measurement].arms.keys()
            else:
                assert one.estimate(Records.load()) is not None


@pytest.mark.parametrize("packed", [scores(1, 0, 0, 1, 1, 0, 1, 1, 1), scores(75, 0, 31, of=75)])
def test_scores_survive_json(packed: Scores) -> None:
    again = Scores.from_json(json.loads(json.dumps(packed.to_json())), len(packed.correct))
    assert again.of == packed.of
    assert again.correct.tolist() == packed.correct.tolist()


# ---------------------------------------------------------------- verdicts


def test_overlapping_intervals_are_undecided_and_separate_ones_decide() -> None:
    close = independent_difference(accuracy(52, 100), accuracy(48, 100))
    far = independent_difference(accuracy(90, 100), accuracy(40, 100))
    assert decide(close) is Verdict.UNDECIDED
    assert decide(far) is Verdict.HOLDS
    assert decide(Difference(-far.value, -far.high, -far.low)) is Verdict.DOES_NOT


@pytest.mark.parametrize(
    ("first_only", "second_only", "expected"),
    [
        (6, 0, Verdict.HOLDS),  # p = 2 / 64 = 0.031
        (5, 0, Verdict.UNDECIDED),  # p = 2 / 32 = 0.063
        (0, 6, Verdict.DOES_NOT),
        (9, 2, Verdict.UNDECIDED),  # p = 2 (1 + 11 + 55) / 2048 = 0.065
        (10, 1, Verdict.HOLDS),  # p = 2 (1 + 11) / 2048 = 0.012
    ],
)
def test_one_training_is_decided_by_mcnemars_exact_test(first_only: int, second_only: int, expected: Verdict) -> None:
    assert decide(paired_difference(first_only, second_only, 100)) is expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.04, 0.01, Verdict.HOLDS), (-0.06, 0.01, Verdict.UNDECIDED), (-0.2, -0.06, Verdict.DOES_NOT)],
)
def test_margin_is_compared_with_the_interval(low: float, high: float, expected: Verdict) -> None:
    # the test of no difference says nothing about a margin
    assert decide(Difference((low + high) / 2, low, high, p=1e-9), margin=-0.05) is expected


def test_claim_holds_only_if_all_of_it_does() -> None:
    holds, does_not, undecided, unmeasured = Verdict
    assert combine([holds, holds]) is holds
    assert combine([holds, undecided]) is undecided
    assert combine([holds, unmeasured, undecided]) is unmeasured
    assert combine([undecided, does_not, unmeasured]) is does_not
    assert combine([]) is unmeasured


def test_difference_of_one_training_counts_images_on_which_arms_differ() -> None:
    first, second = scores(1, 1, 1, 0, 1, 0), scores(1, 0, 0, 1, 0, 0)
    assert difference_of([first], [second]) == paired_difference(3, 1, 6)
    assert mean_of([first])[0] == 4 / 6


def test_three_seeds_that_agree_on_every_image_are_decided_by_images() -> None:
    """Seeds without variation leave Student's interval over images."""
    first, second = scores(*[1] * 60, *[0] * 40), scores(*[1] * 20, *[0] * 80)
    difference = difference_of([first] * 3, [second] * 3)
    std = np.std(first.correct - second.correct, ddof=1)
    assert difference.value == pytest.approx(0.4)
    assert difference.high - difference.low == pytest.approx(2 * 1.9842169515864165 * std / 10)  # t with 99 degrees
    assert decide(difference) is Verdict.HOLDS


def test_seeds_that_disagree_are_undecided_however_many_images() -> None:
    """Means of +30, -20 and +20 points: Student's half-width of three trainings alone is 66 points."""
    arms = [
        ([1] * 600 + [0] * 400, [1] * 300 + [0] * 700),
        ([1] * 300 + [0] * 700, [1] * 500 + [0] * 500),
        ([1] * 500 + [0] * 500, [1] * 300 + [0] * 700),
    ]
    first, second = ([scores(*pair[place]) for pair in arms] for place in (0, 1))
    difference = difference_of(first, second)
    assert difference.value == pytest.approx(0.1)
    assert difference.high - difference.low > 2 * 0.6
    assert decide(difference) is Verdict.UNDECIDED


def test_one_seed_of_a_training_decides_nothing() -> None:
    better, worse = scores(*[1] * 100), scores(*[0] * 100)
    records = Records.of([line("Lion", 0, better), line("SGD", 0, worse)])
    estimate = LION.estimate(records)
    assert estimate is not None
    assert LION.verdict(estimate) is Verdict.HOLDS  # as a pair of models
    assert replace(LION, trained=True).verdict(estimate) is Verdict.UNDECIDED


def test_only_seeds_that_both_arms_have_count() -> None:
    better, worse = scores(1, 1, 1, 1), scores(0, 0, 0, 0)
    records = Records.of(
        [line("Lion", 0, better), line("Lion", 1, worse), line("SGD", 1, worse), line("SGD", 2, better)]
    )
    estimate = LION.estimate(records)
    assert estimate is not None
    assert (estimate.seeds, estimate.difference.value) == (1, 0)
    assert LION.estimate(Records.of([line("Lion", 0, better)])) is None


def test_full_scale_replaces_the_reduced_one_and_smoke_is_never_shown() -> None:
    worse, better = scores(0, 0), scores(1, 1)
    lines = [line("Lion", 0, better), line("Lion", 0, worse, "reduced"), line("Lion", 1, worse, "smoke")]
    assert [one.scale for one in Records.of(lines).arm("optimizers", "Lion")] == ["full"]
    assert Records.of(lines[2:]).arm("optimizers", "Lion") == []


def test_arms_on_different_images_are_not_compared() -> None:
    records = Records.of([line("Lion", 0, scores(1, 1)), line("SGD", 0, scores(0, 0), images="others")])
    with pytest.raises(AssertionError, match="different images"):
        LION.estimate(records)


def test_images_can_be_limited_to_those_that_both_classify_correctly() -> None:
    clean = {"Lion": scores(1, 1, 0, 1), "SGD": scores(1, 1, 1, 0)}
    robust = {"Lion": scores(1, 1, 0, 1), "SGD": scores(0, 1, 1, 0)}
    lines = [line(arm, 0, robust[arm]) for arm in clean]
    for one in lines:
        one["scores"]["clean"] = clean[one["arm"]].to_json()
    estimate = replace(LION, given="clean").estimate(Records.of(lines))
    assert estimate is not None
    assert (estimate.n, estimate.first[0], estimate.second[0]) == (2, 1.0, 0.5)


def test_earlier_records_stand_in_only_until_something_is_measured() -> None:
    keys = {"benchmark": "old"}
    sides = ({**keys, "arm": "Lion"}, ("worst",)), ({**keys, "arm": "SGD"}, ("worst",))
    old = Earlier("old", "python old.py", *sides, 100, judged=False, stands_in=True)
    claim = Claim("Somebody 2021", "Lion is better", (LION, old))
    lines = [
        {**side, "worst": worst, "versions": {"vitadel": "0123456"}, "file": "old.jsonl"}
        for (side, _), worst in zip(sides, (0.9, 0.1), strict=True)
    ]
    assert claim.verdict(Records.of([])) is Verdict.UNMEASURED
    assert claim.verdict(Records.of(lines)) is Verdict.HOLDS
    same = [line("Lion", 0, scores(1, 0)), line("SGD", 0, scores(1, 0))]
    assert claim.verdict(Records.of([*lines, *same])) is Verdict.UNDECIDED


def test_random_draws_are_a_sample_as_seeds_are() -> None:
    """Three draws of two images, compared as three trainings would be."""
    first, second = ([scores(1, 1), scores(1, 0), scores(1, 1)], [scores(0, 0), scores(1, 0), scores(0, 1)])
    lines = [line("Lion", 0, scores(0, 0)), line("SGD", 0, scores(0, 0))]
    for one, draws in zip(lines, (first, second), strict=True):
        one["scores"] |= {f"draw {number}": own.to_json() for number, own in enumerate(draws)}
    drawn = Comparison("drawn", "optimizers", ("Lion", "draw *"), ("SGD", "draw *"))
    estimate = drawn.estimate(Records.of(lines))
    assert estimate is not None
    assert estimate.difference == difference_of(first, second)
    assert estimate.difference.value == pytest.approx(0.5)


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("name", MEASUREMENTS)
@pytest.mark.parametrize("scale", ["full", "reduced", "smoke"])
def test_commands_have_nothing_left_to_fill_in(
    name: str, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scale not in MEASUREMENTS[name].values:
        return
    data = ["folder:/there/cifar10", "imagenet:/there/val", "cue-conflict:/there/cues"]
    given = [part for spec in data for part in ("--data", spec)]
    command = ["evidence.py", "run", name, *given, "--work", str(tmp_path), "--out", str(tmp_path / "out.jsonl")]
    monkeypatch.setattr(sys, "argv", [*command, "--scale", scale, "--start", "/there/start", "--weights", "/there/w"])
    for task in evidence.tasks_of(evidence.parsed()):
        assert not any("{" in word or "}" in word for job in task.jobs for word in job.command)
        assert not any("/there" in command for command in task.commands)
        assert all(shlex.split(command)[0] == "vitadel" for command in task.commands)
        assert len({job.name for job in task.jobs}) == len(task.jobs)


@pytest.mark.parametrize("name", [name for name, one in MEASUREMENTS.items() if one.data == "cifar"])
def test_trainings_at_full_scale_can_be_set_up(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU is needed for is resolved here: recipes, tables, rows and settings exist."""
    command = ["evidence.py", "run", name, "--data", f"folder:{tmp_path}", "--work", "work", "--out", "out.jsonl"]
    monkeypatch.setattr(sys, "argv", [*command, "--start", "zoo:cifar10-vit-tiny-short"])
    trained = 0
    for words in (job.command for task in evidence.tasks_of(evidence.parsed()) for job in task.jobs):
        chosen = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        axes = [words[place + 1] for place, word in enumerate(words) if word == "--axis"]
        if words[0] == "sweep":
            sweep = as_sweep(words[1], axes, chosen, data=f"folder:{tmp_path}", small=True)
            (recipe,) = (one.recipe for one in sweep.combinations())
        elif words[0] == "train":
            recipe = override(RECIPES[words[1]](), chosen)
        else:
            continue
        trained += 1
        assert recipe.plan.epochs <= 20
        assert f"seed={recipe.seed}" in chosen
        if isinstance(recipe.objective, AttentionScaling):
            assert recipe.plan.compile is Compile.OFF
    assert trained == len(MEASUREMENTS[name].arms) * 3


def test_smoke_run_of_attention_scaling_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["evidence.py", "run", "attention-scaling-training", "--data", "digits", "--work", "w", "--out", "o"]
    monkeypatch.setattr(sys, "argv", [*command, "--scale", "smoke", "--seeds", "0"])
    words = {task.arm: task.jobs[0].command for task in evidence.tasks_of(evidence.parsed())}["AAS-AT"]
    chosen = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    recipe = override(RECIPES[words[1]](), chosen)
    assert isinstance(recipe.objective, AttentionScaling)
    times = (TrainingTime(epoch + 0.5, recipe.plan.epochs, updates=2) for epoch in range(recipe.plan.epochs))
    assert any(recipe.objective.searches_at(time) for time in times)


def test_what_is_recorded_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    lines = [line(arm, seed, scores(1), "smoke") for arm in ("SGD", "Lion") for seed in (0, 1, 2)]
    out.write_text("".join(json.dumps(one) + "\n" for one in lines[1:]))
    command = ["evidence.py", "run", "optimizers", "--data", "digits", "--work", str(tmp_path), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--scale", "smoke"])
    started: list[str] = []

    def run_all(jobs: list[Job], *_: object) -> dict[str, float]:
        started.extend(job.name for job in jobs)
        return {}

    monkeypatch.setattr(evidence, "run_all", run_all)
    with pytest.raises(SystemExit) as exit_:
        evidence.main()
    assert started == ["optimizers-SGD-0-0"]  # the only one without a record
    assert exit_.value.code == 1  # and it was not done
    assert len(out.read_text().splitlines()) == 5


def test_record_without_a_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("VITADEL_COMMIT", "unknown")
    with pytest.raises(SystemExit, match="needs the commit"):
        evidence.commit_of(ManifestRecord("evaluate", {}))
    with pytest.raises(SystemExit, match="changes"):
        evidence.commit_of(ManifestRecord("evaluate", {}, commit=f"{commit}+changes"))
    monkeypatch.setenv("VITADEL_COMMIT", commit)
    assert evidence.commit_of(ManifestRecord("evaluate", {})) == commit


@pytest.mark.slow
@pytest.mark.timeout(600)  # trains two networks and attacks both
def test_smoke_run_records_every_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # --device cpu sets it; undone afterwards
    out = tmp_path / "out.jsonl"
    command = ["evidence.py", "run", "optimizers", "--data", "digits[:64]", "--work", str(tmp_path / "work")]
    options = ["--out", str(out), "--scale", "smoke", "--seeds", "0", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, *options])
    with pytest.raises(SystemExit) as exit_:
        evidence.main()
    assert exit_.value.code == 0
    records = Records.of(lines_of([out]))
    assert [one.arm for one in records.arms] == ["SGD", "Lion"]
    for one in records.arms:
        (summary,) = (tmp_path / "work").glob(f"optimizers/{one.arm}-0/*/test/eval/*/summary.json")
        assert one.n == 64
        assert one.scores["clean"].correct.sum() == json.loads(summary.read_text())["clean"]["correct"]
        assert (one.scores["robust"].correct <= one.scores["clean"].correct).all()
    assert records.arms[0].images == records.arms[1].images
