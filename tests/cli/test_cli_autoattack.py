"""AutoAttack and its parts from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vitadel.runs import ResultFolder

Command = Callable[..., tuple[int, str, str]]

STAGES = {
    "autoattack": ["apgd-ce", "apgd-t", "fab-t", "square"],
    "autoattack-plus": ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"],
    "autoattack-rand": ["apgd-ce", "apgd-dlr"],
}


def summary_of(result: tuple[int, str, str]) -> dict[str, object]:
    code, out, err = result
    assert code == 0, err
    (actual,) = json.loads(out)["evaluations"]
    assert isinstance(actual, dict)
    return actual


def attacks_of(summary: dict[str, object]) -> list[dict[str, object]]:
    attacks = summary["attacks"]
    assert isinstance(attacks, list)
    return attacks


@pytest.mark.parametrize("suite", ["autoattack", "autoattack-plus"])
def test_suites_run_and_rows_name_the_attack_that_broke_an_image(
    vitadel: Command, trained: Path, tmp_path: Path, suite: str
) -> None:
    words = ("evaluate", trained, "--data", "digits[:40]", "--threat", "linf:200/255", "--run", tmp_path, "--json")
    summary = summary_of(vitadel(*words, "--suite", suite))
    assert [attack["name"] for attack in attacks_of(summary)] == STAGES[suite]
    assert summary["flags"] == []
    rows = ResultFolder(tmp_path / "eval" / f"{suite}-linf-200_255").rows()
    wrong = [label != prediction for label, prediction in zip(rows["label"], rows["clean_prediction"], strict=True)]
    assert [to == "clean" for to in rows["broken_by"]] == wrong
    assert summary["clean"]["correct"] == 40 - sum(wrong) > 0  # type: ignore[index]
    # no image is robust at such a radius, and each is broken by the last query of one attack
    assert summary["robust"]["correct"] == 0  # type: ignore[index]
    for place, attack in enumerate(attacks_of(summary)):
        broken = [to == attack["name"] for to in rows["broken_by"]]
        spent = [costs[place] for costs in rows["forwards"]]
        assert attack["broken"] == sum(broken)
        assert attack["forwards"] == sum(spent)
        assert attack["tried"] == sum(count > 0 for count in spent)
        assert all(count > 0 for count, here in zip(spent, broken, strict=True) if here)
    assert sum(int(str(attack["broken"])) for attack in attacks_of(summary)) == 40 - sum(wrong)
    for label, prediction in zip(rows["label"], rows["prediction"], strict=True):
        assert label != prediction


@pytest.mark.slow
def test_the_suite_for_randomized_models_scores_shares(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    words = ("evaluate", trained, "--data", "digits[:6]", "--threat", "linf:200/255", "--run", tmp_path, "--json")
    summary = summary_of(vitadel(*words, "--suite", "autoattack-rand"))
    assert [attack["name"] for attack in attacks_of(summary)] == STAGES["autoattack-rand"]
    rows = ResultFolder(tmp_path / "eval" / "autoattack-rand-linf-200_255").rows()
    # this model is deterministic, so an image is always correct or never
    assert set(rows["clean_correct"]) == {0.0, 1.0}
    assert set(rows["robust"]) == {0.0}
    tried = sum(share > 0 for share in rows["clean_correct"])
    for attack in attacks_of(summary):
        # 101 queries with 20 samples each; such a search has no success before its end
        assert (attack["tried"], attack["forwards"], attack["backwards"]) == (tried, 2020 * tried, 2020 * tried)


def test_the_attack_autoattack_runs_its_stages(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    common = ("--data", "digits[:30]", "--threat", "linf:200/255", "--seed", "3", "--json")
    alone = summary_of(vitadel("attack", trained, *common, "--attack", "autoattack", "--run", tmp_path / "a"))
    suite = summary_of(vitadel("evaluate", trained, *common, "--suite", "autoattack", "--run", tmp_path / "b"))
    assert [attack["name"] for attack in attacks_of(alone)] == STAGES["autoattack"]
    folders = tmp_path / "a" / "eval" / str(alone["name"]), tmp_path / "b" / "eval" / str(suite["name"])
    one, other = (ResultFolder(folder).rows() for folder in folders)
    for column in ("broken_by", "prediction", "distance", "forwards", "backwards"):
        assert one[column] == other[column], column


@pytest.mark.parametrize(
    ("attack", "forwards", "backwards"),
    [
        # at a tiny radius an image is robust and costs the whole budget: the steps and one query more, per target
        ("apgd:steps=7", 8, 8),
        ("apgd:steps=7,targets=9", 9 * 8, 9 * 8),
        ("apgd:steps=7,targets=20,restarts=2", 9 * 8 * 2, 9 * 8 * 2),
        ("square:queries=50", 51, 0),
        ("fab:steps=5", 2 * 6, 9 * 6),
        ("fab:steps=5,targets=3", 2 * 6 * 3, 6 * 3),
        ("pgd:steps=5,targets=4", 6 * 4, 6 * 4),
    ],
)
def test_attacks_cost_their_declared_passes(
    vitadel: Command, trained: Path, tmp_path: Path, attack: str, forwards: int, backwards: int
) -> None:
    words = ("attack", trained, "--data", "digits[:20]", "--threat", "linf:0.00001", "--run", tmp_path, "--json")
    summary = summary_of(vitadel(*words, "--attack", attack))
    (result,) = attacks_of(summary)
    assert result["name"] == attack
    assert result["broken"] == 0
    assert result["tried"] == summary["clean"]["correct"]  # type: ignore[index]
    assert result["forwards"] == forwards * int(str(result["tried"]))
    assert result["backwards"] == backwards * int(str(result["tried"]))
    codes = [flag["code"] for flag in summary["flags"]]  # type: ignore[attr-defined]
    assert codes == (["few-classes"] if "targets=20" in attack else [])
    assert "broken_by" in ResultFolder(tmp_path / "eval" / str(summary["name"])).rows()


def test_the_precision_of_the_search_changes_no_verdict(vitadel: Command, trained: Path, tmp_path: Path) -> None:
    common = ("--data", "digits[:40]", "--threat", "linf:60/255", "--json")
    words = ("attack", trained, "--attack", "pgd:steps=10", *common)
    precisions = ("float32", "fp16", "bf16")
    for precision in precisions:
        summary = summary_of(vitadel(*words, "--run", tmp_path / precision, "--precision", precision))
        assert summary["flags"] == []
    tables = [ResultFolder(tmp_path / name / "eval" / "attack-linf-60_255").rows() for name in precisions]
    for table in tables:
        assert table["clean_prediction"] == tables[0]["clean_prediction"]
        broken = [to == "pgd:steps=10" for to in table["broken_by"]]
        wrong = [label != prediction for label, prediction in zip(table["label"], table["prediction"], strict=True)]
        clean = [to == "clean" for to in table["broken_by"]]
        assert wrong == [a or b for a, b in zip(broken, clean, strict=True)]
    code, _, err = vitadel(*words, "--run", tmp_path / "x", "--precision", "fp8")
    assert (code, err) == (2, "vitadel: unknown precision 'fp8'. Known: bf16, float32, fp16.\n")
