"""Which numbers share a column, the ranks, and the differences from the baseline."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.stats import paired_difference
from vitadel.report.comparison.models import ColumnKind, Comparison, compare_models
from vitadel.report.reader import read_runs
from vitadel.runs import Run
from vitadel.runs.schema import Measure, ThreatRecord

EPS = 8 / 255


def table(runs: Sequence[Path], baseline: str | None = None) -> Comparison:
    result = compare_models(read_runs(runs), baseline)
    assert result is not None
    return result


def attacked(make: Any, run: Run, suite: str, robust: Sequence[int], flags: Sequence[Flag] = ()) -> None:
    """Ten images, the last misclassified before; those named are robust."""
    broken = ["" if i in robust else "apgd-ce" for i in range(9)]
    make.attack(run, f"{suite}-linf-8_255", [*broken, "clean"], EPS, flags, suite=suite)


def values(result: Comparison) -> dict[str, list[float | None]]:
    """Per model the numbers of its row."""
    return {row.label: [None if score is None else score.value for score in row.scores] for row in result.rows}


@pytest.fixture
def three(make: Any) -> list[Path]:
    """Models on the same ten images: of the first AutoAttack left 3 and PGD 2, of the second AutoAttack left 5."""
    first, second, third = (make.claim(name, name, size) for name, size in (("a", 5), ("b", 20), ("c", None)))
    attacked(make, first, "autoattack", [0, 1, 2])
    attacked(make, first, "attack", [0, 1])
    attacked(make, second, "autoattack", [0, 1, 2, 3, 4])
    attacked(make, third, "quick", [1, 8])
    for run, right in ((first, 7), (second, 4)):
        make.perturb(run, "corruptions", [1.0] * right + [0.0] * (10 - right), clean=[1] * 9 + [0])
    return [run.folder for run in (first, second, third)]


def test_columns_are_clean_autoattack_best_known_and_suites(three: list[Path]) -> None:
    result = table(three)
    kinds = [ColumnKind.CLEAN, ColumnKind.AUTOATTACK, ColumnKind.BEST_KNOWN, ColumnKind.SUITE]
    assert [column.kind for column in result.columns] == kinds
    assert [column.title for column in result.columns] == ["Clean", "AutoAttack", "Best known", "Corruptions"]
    assert [column.about for column in result.columns] == ["", "linf:8/255", "linf:8/255", "mean over all cells"]
    assert values(result) == {"b": [0.9, 0.5, 0.5, 0.4], "a": [0.9, 0.3, 0.2, 0.7], "c": [0.9, None, 0.2, None]}
    best = {row.label: row.scores[2] for row in result.rows}
    assert [best[label].note for label in "abc"] == ["attack", "autoattack", "quick"]  # type: ignore[union-attr]
    assert {row.label: row.parameters for row in result.rows} == {"a": 5, "b": 20, "c": None}


def test_rank_is_by_best_known_and_ties_share_one(three: list[Path]) -> None:
    result = table(three)
    assert result.columns[result.ranked_by].kind is ColumnKind.BEST_KNOWN
    assert [(row.label, row.rank) for row in result.rows] == [("b", 1), ("a", 2), ("c", 2)]


def test_ties_are_ordered_by_clean_accuracy(make: Any) -> None:
    clean = {"a": 6, "b": 9, "c": 7}
    runs = [make.claim(name, name) for name in clean]
    for run, right in zip(runs, clean.values(), strict=True):
        make.perturb(run, "corruptions", [1.0] * 5 + [0.0] * 5, clean=[1] * right + [0] * (10 - right))
    result = table([run.folder for run in runs])
    assert [(row.label, row.rank) for row in result.rows] == [("b", 1), ("c", 1), ("a", 1)]


def test_a_unique_best_of_a_column_is_marked(three: list[Path]) -> None:
    marked = {(r.label, at) for r in table(three).rows for at, s in enumerate(r.scores) if s and s.best}
    assert marked == {("b", 1), ("b", 2), ("a", 3)}
    assert not any(score and score.best for row in table(three[:1]).rows for score in row.scores)


def test_measures_to_minimize_are_best_when_low(make: Any) -> None:
    errors = {"a": 80.0, "b": 70.0}
    runs = [make.claim(name, name) for name in errors]
    for run, value in zip(runs, errors.values(), strict=True):
        mce = Measure("mCE", value, kind="mCE", higher_is_better=False, main=True)
        make.perturb(run, "corruptions", [0.0], measures=[mce])
    result = table([run.folder for run in runs])
    assert [(row.label, row.rank) for row in result.rows] == [("b", 1), ("a", 2)]
    assert [row.scores[0].best for row in result.rows] == [True, False]  # type: ignore[union-attr]
    assert not result.columns[0].is_share


def gray_level(make: Any, run: Run, pgd: Sequence[float], fgsm: Sequence[float], mce: float | None = None) -> None:
    """A suite of which models are compared by two shares and, if it is defined, an error."""
    n, mean = len(pgd), sum(fgsm) / len(fgsm)
    measures = [
        Measure("relative", 0.5),
        Measure("FGSM", mean, mean - 0.05, mean + 0.05, n, column="fgsm_correct"),
        Measure("mCE", mce, kind="mCE", higher_is_better=False, column="mce"),
        Measure("PGD-8", sum(pgd) / n, n=n, main=True),
    ]
    columns = {"fgsm_correct": list(fgsm), "mce": [90.0 - 10 * one for one in pgd]}
    make.perturb(run, "gray-level", pgd, clean=[1] * n, measures=measures, columns=columns)


def test_a_measure_with_a_column_in_the_rows_is_a_column(make: Any) -> None:
    runs = {name: make.claim(name, name) for name in "ab"}
    gray_level(make, runs["a"], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], 80.0)
    gray_level(make, runs["b"], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], 70.0)
    make.perturb(runs["b"], "spatial", [1.0, 0.0, 0.0, 0.0], clean=[1] * 4)
    result = table([run.folder for run in runs.values()], "a")
    assert [column.about for column in result.columns] == ["", "PGD-8", "FGSM", "mCE", "mean over all cells"]
    assert [column.key for column in result.columns[1:4]] == ["gray-level", "gray-level FGSM", "gray-level mCE"]
    assert values(result) == {"b": [1.0, 0.5, 0.75, 70.0, 0.25], "a": [1.0, 0.25, 0.5, 80.0, None]}
    assert result.columns[result.ranked_by].about == "PGD-8"
    scores = {row.label: row.scores for row in result.rows}["b"]
    tests = [None if score is None or score.paired is None else score.paired for score in scores[1:4]]
    # of b against a, image by image; a lower error is better, so mCE counts as PGD does
    assert [(one.first_better, one.second_better, one.n) for one in tests if one] == [(2, 1, 4), (1, 0, 4), (2, 1, 4)]
    assert [score.best for score in scores[1:4] if score] == [True, True, True]


def test_without_a_value_or_rows_there_is_no_column_and_no_test(make: Any) -> None:
    run, other = make.claim("a", "a"), make.claim("b", "b")
    gray_level(make, run, [0.0, 1.0], [0.0, 1.0])
    make.perturb(
        other,
        "gray-level",
        [1.0, 1.0],
        clean=[1] * 2,
        measures=[Measure("PGD-8", 1.0, n=2, main=True), Measure("FGSM", 1.0, n=2, column="fgsm_correct")],
    )
    result = table([run.folder, other.folder], "a")
    assert [column.about for column in result.columns] == ["", "PGD-8", "FGSM"]
    fgsm = {row.label: row.scores[2] for row in result.rows}["b"]
    assert fgsm is not None
    assert (fgsm.value, fgsm.delta, fgsm.paired) == (1.0, 0.5, None), "an earlier version wrote no such rows"


def test_columns_that_are_no_numbers_are_refused(make: Any) -> None:
    run = make.claim("a", "a")
    measures = [Measure("PGD-8", 1.0, n=1, main=True), Measure("FGSM", 1.0, n=1, column="fgsm_correct")]
    make.perturb(run, "gray-level", [1.0], clean=[1], measures=measures, columns={"fgsm_correct": ["yes"]})
    with pytest.raises(UsageError, match="fgsm_correct must be numbers, got 'yes'. Delete the file and run"):
        table([run.folder])


def test_differences_to_the_baseline_are_paired_by_image(three: list[Path]) -> None:
    rows = {row.label: row for row in table(three, "a").rows}
    assert table(three, "a").baseline == "a"
    score = rows["b"].scores[2]
    assert score is not None
    assert score.paired is not None
    # b is robust on images 2, 3 and 4, where a is not; never the other way round
    assert score.delta == pytest.approx(0.3)
    assert (score.paired.first_better, score.paired.second_better, score.paired.n) == (3, 0, 10)
    assert score.paired.p == pytest.approx(binomtest(3, 3).pvalue)
    assert score.paired.exact
    expected = paired_difference(3, 0, 10)
    assert (score.delta_low, score.delta_high) == (expected.low, expected.high)
    # c is robust on 1 and 8, a on 0 and 1: one discordant image each, although both have two
    other = rows["c"].scores[2]
    assert other is not None
    assert other.paired is not None
    assert (other.delta, other.paired.first_better, other.paired.second_better, other.paired.p) == (0.0, 1, 1, 1.0)
    assert all(score is None or score.delta is None for score in rows["a"].scores)
    assert rows["c"].scores[1] is None


def test_a_missing_baseline_is_refused(three: list[Path], make: Any) -> None:
    with pytest.raises(UsageError, match=r"unknown baseline 'd'\. .*Known: a, b, c\."):
        table(three, "d")
    with pytest.raises(UsageError, match=r"baseline=.* \(--baseline plain\): no model was evaluated"):
        compare_models(read_runs([make.train("run", "plain")]), "plain")


def test_several_runs_of_one_model_are_one_row(make: Any) -> None:
    runs = [make.claim(folder, "vit", 5) for folder in ("one", "two", "three")]
    attacked(make, runs[0], "autoattack", [0, 1, 2])
    attacked(make, runs[1], "quick", [0])
    make.perturb(runs[2], "corruptions", [1.0] * 10, clean=[1] * 9 + [0])
    result = table([run.folder for run in runs])
    assert values(result) == {"vit": [0.9, 0.3, 0.1, 1.0]}
    # the page names the runs of attacks by their folders, and any of their names means the model
    (row,) = result.rows
    assert row.labels == ("vit (one)", "vit (two)", "vit")
    assert table([run.folder for run in runs], "vit (two)").baseline == "vit"


def test_models_of_one_name_with_other_weights_are_distinguished_by_folder(make: Any) -> None:
    runs = [make.claim(folder, "vit") for folder in ("one", "two")]
    attacked(make, runs[0], "autoattack", [0, 1, 2])
    make.perturb(runs[1], "corruptions", [1.0] * 10)
    make.change(runs[1].folder, "cd" * 32, "model", "sha256")
    assert [row.label for row in table([run.folder for run in runs]).rows] == ["vit (one)", "vit (two)"]


def test_other_images_make_another_column(make: Any) -> None:
    first, second = make.claim("a", "a"), make.claim("b", "b")
    attacked(make, first, "autoattack", [0, 1, 2])
    make.attack(second, "autoattack-linf-8_255", [""] * 5 + ["square"] * 15, EPS, suite="autoattack")
    result = table([first.folder, second.folder])
    assert [(c.title, c.about) for c in result.columns] == [
        ("Clean", "20 images"),
        ("Clean", "10 images"),
        ("AutoAttack", "linf:8/255; 20 images"),
        ("Best known", "linf:8/255; 20 images"),
        ("AutoAttack", "linf:8/255; 10 images"),
        ("Best known", "linf:8/255; 10 images"),
    ]
    assert len({column.key for column in result.columns}) == 6
    assert values(result) == {"b": [1, None, 0.25, 0.25, None, None], "a": [None, 0.9, None, None, 0.3, 0.3]}
    # only those with a number in the column that ranks have a rank
    assert [row.rank for row in result.rows] == [1, None]


def test_the_same_names_with_other_labels_are_other_images(make: Any) -> None:
    runs = [make.claim(name, name) for name in "ab"]
    for run in runs:
        make.perturb(run, "corruptions", [1.0] * 10)
    results = runs[1].results("corruptions")
    summary, rows = results.read_verified()
    results.finish({**rows, "label": [1] * 10}, summary)
    assert values(table([run.folder for run in runs])) == {"a": [1, None], "b": [None, 1]}


def test_fewer_images_need_no_second_clean_column(make: Any) -> None:
    run = make.claim("a", "a")
    attacked(make, run, "autoattack", [0, 1, 2])
    make.perturb(run, "corruptions", [1.0] * 40, clean=[1] * 39 + [0])
    result = table([run.folder])
    # the images that were attacked represent the model, whatever else was evaluated
    assert [(column.title, column.about) for column in result.columns][:2] == [
        ("Clean", ""),
        ("AutoAttack", "linf:8/255"),
    ]
    assert values(result) == {"a": [0.9, 0.3, 0.3, 1.0]}


def test_autoattack_on_fewer_images_has_its_own_column(make: Any) -> None:
    first, second = make.claim("a", "a"), make.claim("a-few", "a")
    attacked(make, first, "quick", range(6))
    make.attack(second, "autoattack-linf-8_255", [""] * 2 + ["apgd-ce"] * 3, EPS, suite="autoattack")
    result = table([first.folder, second.folder])
    assert [(column.title, column.about) for column in result.columns] == [
        ("Clean", ""),
        ("Best known", "linf:8/255"),
        ("AutoAttack", "linf:8/255, 5 images"),
    ]
    assert values(result) == {"a": [0.9, 0.6, 0.4]}


def test_other_conventions_make_another_column(make: Any) -> None:
    runs = [make.claim(name, name) for name in "abc"]
    for run, jpeg in zip(runs, (85, 85, None), strict=True):
        make.perturb(run, "corruptions", [1.0] * 10, conventions={"table": "cifar", "jpeg": jpeg})
    result = table([run.folder for run in runs])
    about = [column.about for column in result.columns]
    assert about == [
        "mean over all cells; jpeg: 85",
        "mean over all cells; jpeg: None",
    ]
    assert values(result) == {"a": [1, None], "b": [1, None], "c": [None, 1]}
    assert [column.key for column in result.columns] == ["corruptions", "corruptions #2"]


def test_mutual_transfer_sources_share_a_column(make: Any) -> None:
    """And one that was compared with others does not."""
    weights = {name: hashlib.sha256(name.encode()).hexdigest()[:8] for name in "abcd"}
    for name, others in {"a": "bc", "b": "ac", "c": "ab", "d": "ab"}.items():
        sources = {f"{other}.safetensors": weights[other] for other in others}
        make.perturb(
            make.claim(name, name), "transfer", [1.0] * 10, conventions={"attack": "PGD-8", "sources": sources}
        )
    result = table([make.root / name for name in "abcd"])
    assert values(result) == {"a": [1.0, None], "b": [1.0, None], "c": [1.0, None], "d": [None, 1.0]}


def test_own_settings_and_costs_do_not_separate_models(make: Any) -> None:
    runs = [make.claim(name, name) for name in "ab"]
    for run, size in zip(runs, (224, 384), strict=True):
        own = {"preprocess": f"crop{size}", "seed": size, "forwards": 7 * size}
        make.perturb(run, "spatial", [1.0] * 10, conventions={"shifts": "9 x 9", **own})
    assert values(table([run.folder for run in runs])) == {"a": [1.0], "b": [1.0]}


def test_the_compared_threat_is_given_or_of_autoattack_or_the_middle(make: Any) -> None:
    swept = make.evaluate("swept", "swept", {2: 30, 4: 20, 8: 10, 16: 5, 32: 0})
    assert [column.about for column in table([swept]).columns] == ["", "linf:8/255"]
    chosen = make.claim("asked", "asked")
    attacked(make, chosen, "autoattack", [0])
    make.attack(chosen, "quick-linf-4_255", [""] * 10, 4 / 255, suite="quick")
    assert [column.about for column in table([chosen.folder]).columns] == ["", "linf:8/255", "linf:8/255"]
    make.change(swept, {"is": "Linf", "eps": 4 / 255}, "threat")
    assert [column.about for column in table([swept]).columns] == ["", "linf:4/255"]


def test_any_suite_at_the_threat_can_be_the_best_known(make: Any) -> None:
    run = make.claim("a", "a")
    attacked(make, run, "autoattack", [0, 1, 2])
    threat = ThreatRecord.of("linf:8/255", EPS)
    make.perturb(run, "gray-level", [1.0, 0.0, *[0.0] * 8], clean=[1] * 9 + [0], threat=threat)
    best = table([run.folder]).rows[0].scores[2]
    assert best is not None
    assert (best.value, best.note) == (0.1, "gray-level")


def test_results_of_the_rescaled_network_are_not_compared(make: Any) -> None:
    run = make.claim("a", "a")
    attacked(make, run, "autoattack", [0, 1, 2])
    attacked(make, run, "autoattack-paper-protocol", [], [Flag("another-network", "", {})])
    result = table([run.folder])
    assert values(result) == {"a": [0.9, 0.3, 0.3]}
    assert not result.rows[0].unreliable


def test_flags_of_attacks_make_a_model_potentially_unreliable(make: Any) -> None:
    unreliable = Flag("square-stronger", "Gradients mislead.", {})
    runs = [make.claim(name, name) for name in "ab"]
    attacked(make, runs[0], "autoattack", [0], [unreliable])
    make.perturb(runs[1], "corruptions", [1.0], flags=[replace(unreliable, code="procedural-frost")])
    rows = {row.label: row for row in table([run.folder for run in runs]).rows}
    assert [(name, flag.code) for name, flag in rows["a"].flags] == [("autoattack-linf-8_255", "square-stronger")]
    assert rows["a"].unreliable
    assert [flag.code for _, flag in rows["b"].flags] == ["procedural-frost"]
    assert not rows["b"].unreliable


def test_shares_per_image_are_compared_as_shares(make: Any) -> None:
    runs = [make.claim(name, name) for name in "ab"]
    make.perturb(runs[0], "corruptions", [0.5, 0.75, 1.0, 0.25])
    make.perturb(runs[1], "corruptions", [0.25, 0.75, 0.5, 0.25])
    score = {row.label: row for row in table([run.folder for run in runs], "b").rows}["a"].scores[0]
    assert score is not None
    assert score.paired is not None
    assert not score.paired.exact
    assert (score.paired.first_better, score.paired.second_better) == (2, 0)


def test_other_versions_of_autoattack_are_named(make: Any) -> None:
    run = make.claim("a", "a")
    attacked(make, run, "autoattack-rand", [0, 1])
    score = table([run.folder]).rows[0].scores[1]
    assert score is not None
    assert (score.value, score.note) == (0.2, "rand")
    attacked(make, run, "autoattack", [0, 1, 2])
    score = table([run.folder]).rows[0].scores[1]
    assert score is not None
    assert (score.value, score.note) == (0.3, "")
