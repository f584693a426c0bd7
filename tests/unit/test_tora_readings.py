"""The comparison of TORA's readings: lines are complete and told apart, and the patterns have known answers."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tora_readings
from evidence_claims import Verdict
from evidence_records import Scores
from jobs import Job
from tora_readings import READINGS, Result, against_baselines, beats_baselines, grouped, monotone, similar_heads, table

from vitadel.objectives import TORATraining
from vitadel.recipes import RECIPES, override
from vitadel.threats import parse_threat

RESULTS = sorted((Path(tora_readings.__file__).parent / "results").glob("tora-readings-*.jsonl"))
START = "zoo:cifar10-vit-tiny-short"


def call(tmp_path: Path, *words: str) -> list[str]:
    """A command for two methods on digits."""
    return [
        *("--recipe", "digits-tora", "--start", START, "--data", "digits", "--work", str(tmp_path / "work")),
        *("--out", str(tmp_path / "out.jsonl"), "--readings", "default", "single adapter", "--weights", "0.1"),
        *words,
    ]


def scores(correct: int, n: int = 100) -> Scores:
    return Scores(np.asarray([1] * correct + [0] * (n - correct), np.int64))


def line(reading: str, weight: float, seed: int, head: str, clean: int, quick: int, **more: Any) -> dict[str, Any]:
    """A record with these many correct images of 100."""
    kinds = {"clean": clean, "quick": quick, **{name: more.pop(name) for name in ("autoattack",) if name in more}}
    about = {
        "recipe": "r",
        "data": "d",
        "threat": "linf:0.1",
        "epochs": 1,
        "n": None,
        "start": {"name": "s"},
        "set": [],
    }
    return {
        **about,
        **{"reading": reading, "lambda": weight, "seed": seed, "head": head},
        "images": {kind: {"n": 100, "sha256": "same"} for kind in kinds if kind != "clean"},
        "scores": {kind: scores(number).to_json() for kind, number in kinds.items()},
        **more,
    }


def results(*lines: dict[str, Any]) -> tora_readings.Results:
    (one,) = grouped(lines).values()
    return one


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("recipe", "threat", "eps"), [("digits-tora", "linf:12/255", 12), ("cifar10-tora-short", "linf:2/255", 2)]
)
def test_threat_is_that_of_training_and_selection(recipe: str, threat: str, eps: int) -> None:
    made = override(RECIPES[recipe](), tora_readings.radius_settings(threat))
    assert isinstance(made.objective, TORATraining)
    assert made.objective.threat == made.selection.threat == parse_threat(threat)
    assert getattr(made.objective.attack, "step_size", 0) == pytest.approx(2 * eps / 3 / 255)
    # the radius of the recipe changes nothing
    own = RECIPES[recipe]().objective
    assert isinstance(own, TORATraining)
    same = override(RECIPES[recipe](), tora_readings.radius_settings(f"linf:{round(own.threat.eps * 255)}/255"))
    assert isinstance(same.objective, TORATraining)
    assert same.objective.threat == own.threat
    assert getattr(same.objective.attack, "step_size", 0) == pytest.approx(getattr(own.attack, "step_size", 1))


@pytest.mark.parametrize("recipe", ["digits-tora", "cifar10-tora-short"])
@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_is_a_recipe(recipe: str, reading: str) -> None:
    made = override(RECIPES[recipe](), [*tora_readings.radius_settings("linf:4/255"), *READINGS[reading]])
    assert made.model.tuning is not None
    if ", width" in reading or reading.startswith("width"):
        assert made.model.tuning.reduction == int(reading.rpartition("/")[2])


def test_baselines_have_the_width_of_the_reading() -> None:
    assert tora_readings.baselines_of("default") == ("AdapterFusion", "single adapter")
    assert tora_readings.baselines_of("recursion through the fusion, tokens") == ("AdapterFusion", "single adapter")
    assert tora_readings.baselines_of("width D/16") == ("AdapterFusion, width D/16", "single adapter, width D/16")
    assert {name for one in READINGS for name in tora_readings.baselines_of(one)} <= READINGS.keys()
    for name in ("AdapterFusion", "single adapter, width D/16", "head only"):
        assert tora_readings.baselines_of(name) == ()


# --------------------------------------------------------- folders and keys


@pytest.mark.parametrize(
    "other",
    [
        ("--threat", "linf:12/255"),
        ("--set", "plan.epochs=3"),
        ("--set", "model.tuning.prediction=probabilities"),
        ("--start", "zoo:cifar10-xcit-tiny-short"),
    ],
)
def test_other_trainings_have_other_folders_and_lines(tmp_path: Path, other: tuple[str, str]) -> None:
    plain, changed = (tora_readings.parsed(call(tmp_path, *words)) for words in ((), other))
    about = [tora_readings.shared(args) for args in (plain, changed)]
    tasks = [tora_readings.tasks_of(args, one) for args, one in zip((plain, changed), about, strict=True)]
    assert {one.train.name for one in tasks[0]}.isdisjoint(one.train.name for one in tasks[1])
    for task in tasks[0]:
        made = [{**about[0], **task.keys, "autoattack_n": 0}]
        assert tora_readings.is_recorded(task, about[0], made)
        assert not tora_readings.is_recorded(task, about[1], made)


def test_other_images_are_another_evaluation_of_one_training(tmp_path: Path) -> None:
    few, many = (tora_readings.parsed(call(tmp_path, "-n", n, "--autoattack-n", "8")) for n in ("16", "32"))
    one, other = (tora_readings.tasks_of(args, tora_readings.shared(args))[0] for args in (few, many))
    assert one.train == other.train
    assert one.tests["quick"].name != other.tests["quick"].name
    assert one.tests["autoattack"] == other.tests["autoattack"]
    made = [{**tora_readings.shared(few), **one.keys, "autoattack_n": 8}]
    assert tora_readings.is_recorded(one, tora_readings.shared(few), made)
    assert not tora_readings.is_recorded(one, tora_readings.shared(many), made)
    # a line with AutoAttack is enough for a call without, and not the other way around
    assert tora_readings.is_recorded(replace(one, autoattack_n=0), tora_readings.shared(few), made)
    assert not tora_readings.is_recorded(one, tora_readings.shared(few), [{**made[0], "autoattack_n": 0}])


def test_what_is_recorded_is_not_run_again_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = call(tmp_path)
    args = tora_readings.parsed(words)
    about = tora_readings.shared(args)
    single = next(task for task in tora_readings.tasks_of(args, about) if task.reading == "single adapter")
    (tmp_path / "out.jsonl").write_text(json.dumps({**about, **single.keys, "autoattack_n": 0}) + "\n")
    started: list[str] = []

    def run_all(jobs: list[Job], *_: object) -> dict[str, float]:
        """All but the last evaluation succeed."""
        started.extend(job.name for job in jobs)
        return {job.name: 1.0 for job in jobs[:-1]}

    monkeypatch.setattr(tora_readings, "run_all", run_all)
    monkeypatch.setattr(tora_readings, "record_of", lambda task, about, work: {**about, **task.keys})
    monkeypatch.setattr(sys, "argv", ["tora_readings.py", *words])
    with pytest.raises(SystemExit) as exit_:
        tora_readings.main()
    assert exit_.value.code == 1
    assert not any("single" in name for name in started)
    lines = [json.loads(one) for one in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["head"] for one in lines] == ["joint", "joint", "acc"]  # no line of the head that is not evaluated
    assert "not done: default, lambda 0.1, seed 0, head rob\n" in capsys.readouterr().err


def test_line_needs_autoattack_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = tora_readings.parsed(call(tmp_path, "--autoattack-n", "8"))

    def run_all(jobs: list[Job], *_: object) -> dict[str, float]:
        return {job.name: 1.0 for job in jobs if "autoattack" not in job.name}

    monkeypatch.setattr(tora_readings, "run_all", run_all)
    monkeypatch.setattr(tora_readings, "record_of", lambda task, about, work: {**about, **task.keys})
    left = tora_readings.run(args)
    assert [(task.reading, task.head) for task in left] == [("default", "joint"), ("single adapter", "joint")]


# ---------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("acc", "rob", "expected"),
    [((90, 20), (88, 20), True), ((90, 20), (87, 40), False), ((90, 20), (90, 19), False)],
)
def test_heads_are_similar(acc: tuple[int, int], rob: tuple[int, int], expected: bool) -> None:
    made = results(line("default", 0.1, 0, "acc", *acc), line("default", 0.1, 0, "rob", *rob))
    assert similar_heads(made, "default") is expected
    assert similar_heads(results(line("single adapter", 0.1, 0, "joint", 90, 20)), "single adapter") is None


@pytest.mark.parametrize(
    ("low", "high", "expected"), [((90, 20), (80, 30), True), ((80, 20), (90, 30), False), ((90, 20), (80, 10), False)]
)
def test_lambda_trades_accuracy_for_robustness(low: tuple[int, int], high: tuple[int, int], expected: bool) -> None:
    lines = [line("default", 0.1, 0, "joint", *low), line("default", 0.9, 0, "joint", *high)]
    assert monotone(results(*lines), "default") is expected
    assert monotone(results(lines[0]), "default") is None


def test_autoattack_decides_where_it_was_recorded() -> None:
    lines = [
        line("default", 0.1, 0, "joint", 90, 20, autoattack=15),
        line("default", 0.9, 0, "joint", 80, 60, autoattack=10),
    ]
    assert monotone(results(*lines), "default") is False
    lines[1]["scores"].pop("autoattack")
    assert monotone(results(*lines), "default") is True


def compared(ours: tuple[int, int], other: tuple[int, int], seeds: int = 3) -> tora_readings.Results:
    return results(
        *(
            line(reading, 0.1, seed, "joint", *pair[:1], 99, autoattack=pair[1])
            for seed in range(seeds)
            for reading, pair in (("default", ours), ("AdapterFusion", other), ("single adapter", other))
        )
    )


@pytest.mark.parametrize(
    ("ours", "other", "expected"),
    [
        ((98, 60), (90, 30), "yes"),
        ((90, 30), (90, 60), "no"),
        ((70, 60), (90, 30), "no"),  # less accurate
        ((90, 31), (90, 30), "undecided"),
    ],
)
def test_baselines_are_beaten_by_intervals(ours: tuple[int, int], other: tuple[int, int], expected: str) -> None:
    assert beats_baselines(compared(ours, other), "default") == expected
    assert beats_baselines(compared(ours, other, seeds=1), "default") == f"({expected})"
    assert beats_baselines(compared(ours, other), "AdapterFusion") == ""


def test_same_images_are_paired_and_others_are_not() -> None:
    paired = against_baselines(compared((90, 40), (90, 30)), "default")[0]
    assert paired.attack == "autoattack"
    lines = [
        line(reading, 0.1, seed, "joint", 90, 99, autoattack=robust)
        for seed in range(3)
        for reading, robust in (("default", 40), ("AdapterFusion", 30))
    ]
    for one in lines[1::2]:
        one["images"]["autoattack"]["sha256"] = "others"
    unpaired = against_baselines(results(*lines), "default")[0]
    assert unpaired.robust.value == pytest.approx(paired.robust.value)
    assert unpaired.robust.high - unpaired.robust.low > paired.robust.high - paired.robust.low
    assert (paired.verdict, unpaired.verdict) == (Verdict.HOLDS, Verdict.UNDECIDED)


def test_calls_of_other_settings_are_not_averaged() -> None:
    lines = [line("default", 0.1, 0, "joint", 90, 20), line("default", 0.1, 0, "joint", 10, 5, threat="linf:0.2")]
    first, second = grouped(lines).values()
    assert [one["default"][0.1]["joint"][0].percent("clean") for one in (first, second)] == [90, 10]
    # of one group, a line with AutoAttack counts before one without
    both = [line("default", 0.1, 0, "joint", 90, 20, autoattack=1), lines[0]]
    assert "autoattack" in results(*both)["default"][0.1]["joint"][0].scores


# ----------------------------------------------------------------- records


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_documentation_has_the_table_of_the_records(file: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tora.md").read_text()
    for made in grouped(tora_readings.records_of(file)).values():
        assert "\n".join(table(made)) in page, f"run python benchmarks/tora_readings.py --table {file.name}"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_records_are_complete(file: Path) -> None:
    for one in tora_readings.records_of(file):
        assert one["settings"] == list(READINGS[one["reading"]])
        assert {"versions", "device", "start", "epochs", "threat"} <= one.keys()
        assert "/tmp" not in json.dumps(one)  # noqa: S108 - absolute paths do not belong into records
        made = Result.of(one)
        assert set(made.scores) == {"clean", "quick", *(["autoattack"] if one["autoattack_n"] else [])}
        assert 100 * one["quick"]["clean"]["accuracy"] == pytest.approx(made.percent("clean"), abs=0.006)


@pytest.mark.slow
@pytest.mark.timeout(600)  # trains two networks
def test_interrupted_call_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitadel.recipes import train_recipe

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    short = ["plan.epochs=1", "plan.warmup_epochs=0"]
    train_recipe(override(RECIPES["digits-class-token"](), short), tmp_path / "start", data_spec="digits[:64]")
    settings = [part for one in short for part in ("--set", one)]
    words = call(tmp_path, "--start", str(tmp_path / "start"), *settings, "-n", "16", "--autoattack-n", "8")
    assert len(tora_readings.run(tora_readings.parsed([*words, "--within", "1"]))) == 4
    assert not (tmp_path / "out.jsonl").exists()
    assert tora_readings.run(tora_readings.parsed(words)) == []
    made = tora_readings.records_of(tmp_path / "out.jsonl")
    assert {(one["reading"], one["head"]) for one in made} == {
        *(("default", head) for head in ("joint", "acc", "rob")),
        ("single adapter", "joint"),
    }
    assert len(made) == 4
    assert str(tmp_path) not in (tmp_path / "out.jsonl").read_text()
    assert tora_readings.run(tora_readings.parsed(words)) == []  # nothing is written twice
    assert len(tora_readings.records_of(tmp_path / "out.jsonl")) == 4
