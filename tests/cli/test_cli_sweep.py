"""`vitadel sweep` and `vitadel sweeps`: output, refusals and exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vitadel.core.files import read_json
from vitadel.recipes.published_tables import SWEEPS

Command = Callable[..., tuple[int, str, str]]

QUICK = ("--data", "digits[:64]", "--set", "plan.epochs=1", "--set", "plan.warmup_epochs=0")
ZOO = "zoo:cifar10-vit-tiny-short"
SWEEP = ("sweep", "digits-standard", *QUICK)


def test_a_sweep_is_trained_evaluated_shown_and_reported(vitadel: Command, tmp_path: Path) -> None:
    words = (*SWEEP, "--axis", "weight-decay=0.05,0.5", "--suite", "quick", "--threat", "linf:0.05", "--run")
    code, out, _ = vitadel(*words, tmp_path / "run", "--json")
    assert code == 0
    table = json.loads(out)
    assert table.pop("run") == str(tmp_path / "run")
    assert table == read_json(tmp_path / "run" / "table.json")
    assert [row["name"] for row in table["rows"]] == ["weight-decay=0.05", "weight-decay=0.5"]
    code, out, _ = vitadel(*words, tmp_path / "run")  # nothing left to do but to show it
    assert code == 0
    robust = table["rows"][0]["test"]["robust"]
    assert f"{100 * robust['accuracy']:.1f}" in out
    assert "* best hold-out clean" in out
    # a combination is a run like any other
    again = ("evaluate", tmp_path / "run" / "weight-decay=0.5", "--data", "digits[:64]", "--threat", "linf:0.05")
    code, out, _ = vitadel(*again, "--run", tmp_path / "run" / "weight-decay=0.5" / "test", "--json")
    assert code == 0
    assert json.loads(out)["evaluations"][0]["robust"] == table["rows"][1]["test"]["robust"]
    code, _, _ = vitadel("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert code == 0
    page = (tmp_path / "page.html").read_text()
    section = page.split('<section id="sweeps">')[1].split("</section>")[0]
    # a heading and two combinations, then a heading and two numbers of each
    assert section.count("<tr>") == 3 + 5
    assert '<td class="code">0.5</td>' in section
    kept = max(row["holdout"]["clean"] for row in table["rows"])
    assert f'<span class="value best">{100 * kept:.1f}</span>' in section


def test_a_failure_is_reported_with_exit_code_2(vitadel: Command, tmp_path: Path) -> None:
    words = (*SWEEP, "--axis", "plan.optimizer.lr=1e10,1e-3", "--run", tmp_path / "run")
    code, out, err = vitadel(*words, "--json")
    assert code == 2
    assert [row["state"] for row in json.loads(out)["rows"]] == ["failed", "done"]
    assert err == "vitadel: 1 of 2 combinations failed: lr=1e10. Run the same command again to retry them.\n"
    code, out, _ = vitadel(*words)
    assert code == 2
    assert "lr=1e10 failed: the loss is no longer finite" in out
    vitadel("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert "✗ the loss is no longer finite" in (tmp_path / "page.html").read_text()


def test_errors_are_one_line_and_leave_no_files(vitadel: Command, tmp_path: Path) -> None:
    run = ("--run", tmp_path / "run")
    for words, message in (
        (("sweep", "digits-standart", "--axis", "seed=0"), "unknown recipe 'digits-standart'. Did you mean"),
        (SWEEP, "a sweep needs something to vary"),
        ((*SWEEP, "--axis", "plan.epoch=1"), "unknown setting of TrainingConfig 'epoch'"),
        ((*SWEEP, "--axis", "seed=0,0"), "the axis 'seed' has two values labeled '0'"),
        (
            ("sweep", "--model", "a=x", "--model", "a=y", "--suite", "clean"),
            "the axis 'model' has two values labeled 'a'",
        ),
        (("sweep", "--model", ZOO, "--data", "digits[:8]"), "the sweep trains nothing and evaluates nothing"),
        (
            ("sweep", "--model", ZOO, "--model", "b=nope", "--suite", "clean", "--data", "digits[:8]"),
            "model=b: 'nope' is not a model: no such file or folder",
        ),
        ((*SWEEP, "--axis", "seed=0", "--suite", "quik"), "unknown suite or attack 'quik'. Did you mean 'quick'"),
        ((*SWEEP, "--axis", "seed=0", "--attack", "quick"), "unknown attack 'quick'. Known: apgd"),
        ((*SWEEP, "--axis", "seed=0", "--attack", "pgd:stps=3"), "unknown setting of pgd 'stps'. Did you mean 'steps'"),
        ((*SWEEP, "--axis", "seed=0", "--attack", "fgsm", "--attack", "fgsm"), "the column 'fgsm' is given twice"),
        ((*SWEEP, "--axis", "seed=0", "--suite", "clean", "--test-data", "digit"), "unknown data set 'digit'"),
        ((*SWEEP, "--axis", "seed=0", "--suite", "quick", "--threat", "lnf:1"), "unknown threat 'lnf'"),
        ((*SWEEP, "--axis", "seed=0", "--suite", "quick", "--threat", "l2:1000"), "allows every image of shape"),
        ((*SWEEP, "--axis", "preprocess=squash:8,squash:99999999"), "Squash.size must lie in [1, 4096], got 99999999"),
        ((*SWEEP, "--axis", "seed=0", "--data", "digit"), "unknown data set 'digit'. Did you mean 'digits'"),
        ((*SWEEP, "--axis", "selection.images=1,-1"), "Selection.images must be at least 1, got -1"),
        ((*SWEEP, "--axis", "weight-decay=0.5,8/255/2"), "is not a number: got '8/255/2'"),
    ):
        code, out, err = vitadel(*words, *run)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert not (tmp_path / "run").exists()


def test_published_sweeps_are_listed_and_shown(vitadel: Command) -> None:
    code, out, _ = vitadel("sweeps", "--json")
    assert code == 0
    listed = json.loads(out)
    one_command = {name for name, about in listed.items() if about.startswith("one command: ")}
    assert set(SWEEPS) - one_command == {"debenedetti2022-table6"}
    assert listed["debenedetti2022-table6"].startswith("several commands: ")
    assert listed["bhojanapalli2021-figure4"].startswith("impossible: figure 4: scaling")
    code, out, _ = vitadel("sweeps", "bhojanapalli2021-figure30", "--json")
    page = json.loads(out)
    assert (page["status"], len(page["commands"])) == ("several commands", 2)
    assert "not public" in vitadel("sweeps", "bhojanapalli2021-figure4")[1]
    code, out, _ = vitadel("sweeps", "debenedetti2022-table4", "--json")
    row = {"values": {"weight-decay": "0.5"}, "clean": 68.78, "robust": 42.02, "standard_clean": 76.72}
    assert row in json.loads(out)["rows"]
    assert "42.02" in vitadel("sweeps", "debenedetti2022-table4")[1]
    assert "debenedetti2022-table4" in vitadel("sweeps")[1]
    assert "Did you mean 'debenedetti2022-table4'" in vitadel("sweeps", "debenedetti2022-table-4")[2]


def test_a_published_sweep_has_its_axes_and_numbers(
    vitadel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitadel.recipes import published_tables
    from vitadel.recipes.sweep import Axis, PublishedAccuracy, PublishedSweep

    axis = Axis.of("weight-decay", ("0.05", "0.5"))
    numbers: dict[tuple[str, ...], PublishedAccuracy] = {
        ("0.05",): PublishedAccuracy(70.0, 40.0),
        ("0.5",): PublishedAccuracy(60.0, None),
    }
    table = PublishedSweep(
        "a paper", "decay", "digits-standard", (axis,), "linf:8/255", "PGD", numbers, settings=("plan.epochs=1",)
    )
    monkeypatch.setitem(published_tables.SWEEPS, "a-table", table)
    words = ("sweep", "a-table", "--data", "digits[:64]", "--set", "plan.warmup_epochs=0")
    code, out, _ = vitadel(*words, "--run", tmp_path / "whole", "--json")
    assert code == 0
    assert [row["published"] for row in json.loads(out)["rows"]] == [
        {"clean": 70.0, "robust": 40.0},
        {"clean": 60.0, "robust": None},
    ]
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert manifest["parts"]["settings"] == ["plan.epochs=1", "plan.warmup_epochs=0"]
    code, out, _ = vitadel(*words, "--run", tmp_path / "part", "--axis", "weight-decay=0.5")
    assert code == 0
    assert "60.00" in out
    assert "published: a paper; robust under PGD" in out
    assert "70.00" not in out
    vitadel("report", tmp_path / "whole", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Published robust %" in page
    assert "40.00" in page


def test_a_recipe_is_trained_with_another_kind(vitadel: Command, tmp_path: Path) -> None:
    short = ("--data", "digits[:64]", "--set", "plan.epochs=1", "--set", "plan.warmup_epochs=0")
    code, _, err = vitadel(
        "train", "digits-adversarial", *short, "--set", "objective=trades:beta=3", "--run", tmp_path / "a", "--json"
    )
    assert code == 0, err
    recipe = json.loads((tmp_path / "a" / "manifest.json").read_text())["parts"]["recipe"]
    assert (recipe["objective"]["is"], recipe["objective"]["beta"]) == ("TRADES", 3.0)
    code, _, err = vitadel(
        "sweep",
        "digits-adversarial",
        *short,
        "--axis",
        "objective=adversarial,trades,mart",
        "--run",
        tmp_path / "kinds",
        "--json",
    )
    assert code == 0, err
    table = json.loads((tmp_path / "kinds" / "table.json").read_text())
    assert [row["name"] for row in table["rows"]] == ["objective=adversarial", "objective=trades", "objective=mart"]
    manifest = json.loads((tmp_path / "kinds" / "objective=mart" / "manifest.json").read_text())
    assert manifest["parts"]["recipe"]["objective"]["is"] == "MART"


def test_a_command_takes_models_and_labels(vitadel: Command, tmp_path: Path) -> None:
    run = tmp_path / "one"
    assert vitadel("train", "digits-standard", *QUICK, "--run", run)[0] == 0
    words = ("--data", "digits[:64]", "--attack", "fgsm", "--run", tmp_path / "models")
    code, out, err = vitadel("sweep", "--model", f"mine={run}", *words)
    assert code == 0, err
    assert "mine" in out
    assert "beside" not in out
    code, out, err = vitadel("sweep", "--model", "nothing=runs/nothing", *words[:4], "--run", tmp_path / "other")
    assert code == 2
    assert "nothing" in err


def test_a_study_of_every_row(vitadel: Command, tmp_path: Path) -> None:
    studies = ("--study", "saliency:images=2", "--study", "lesion", "--threat", "linf:0.1")
    code, _, err = vitadel(*SWEEP, "--axis", "seed=0,1", *studies, "--run", tmp_path)
    assert code == 0, err
    for seed in (0, 1):
        record = read_json(tmp_path / f"seed={seed}" / "study-saliency-images-2" / "study" / "result.json")
        assert record["study"] == "saliency"
        # one that attacks nothing gets no threat
        assert (tmp_path / f"seed={seed}" / "study-lesion" / "study" / "result.json").exists()
    code, _, err = vitadel(
        "sweep", "digits-standard", "--axis", "seed=0", "--study", "salincy", "--run", tmp_path / "x"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown study 'salincy'. Did you mean 'saliency'" in err
