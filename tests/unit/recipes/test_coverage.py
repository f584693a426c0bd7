"""What `vitadel sweeps` says of the tables and figures of the papers."""

import itertools
import re
import shlex

import pytest
from typer.main import get_command

from vitadel.analyze import STUDIES
from vitadel.analyze.correlation import Correlation, SimilarityMeasure
from vitadel.api.analyze import as_study
from vitadel.api.sweep import as_sweep
from vitadel.cli import app
from vitadel.evaluate.parsing import as_suites
from vitadel.objectives import Adversarial
from vitadel.recipes import RECIPES
from vitadel.recipes.coverage import Status, coverage
from vitadel.recipes.published_tables import SWEEPS

ENTRIES = coverage()
# of each paper the tables and figures that it has
NUMBERS = {
    "Debenedetti 2022, thesis": {"table": range(1, 10), "figure": range(1, 15)},
    "Jain & Dutta 2024": {"table": range(1, 6), "figure": range(1, 6)},
    "Bhojanapalli et al. 2021": {"table": range(1, 6), "figure": range(1, 35)},
    "Li & Xu 2023": {"table": range(1, 4), "figure": range(0)},
    "Wu et al. 2025": {"table": range(1, 7), "figure": range(1, 4)},
}


def mentioned(text: str) -> set[tuple[str, int]]:
    """Tables and figures that a text names: `figures 7, 8, 9 and 31 to 34`."""
    found: set[tuple[str, int]] = set()
    for kind, listed in re.findall(r"(table|figure)s? ?((?:\d+(?:, | and | to |-)?)+)", text):
        numbers = [int(number) for number in re.findall(r"\d+", listed)]
        found |= {(kind, number) for number in numbers}
        for first, last in re.findall(r"(\d+)(?: to |-)(\d+)", listed):
            found |= {(kind, number) for number in range(int(first), int(last) + 1)}
    return found


@pytest.mark.parametrize("paper", NUMBERS)
def test_every_table_and_figure_of_a_paper_is_there(paper: str) -> None:
    texts = [f"{name} {one.item} {SWEEPS[name].source if name in SWEEPS else ''}" for name, one in ENTRIES.items()
             if one.paper == paper]  # fmt: skip
    found = set().union(*(mentioned(text.replace("-", " ", 1)) for text in texts))
    wanted = {(kind, number) for kind, numbers in NUMBERS[paper].items() for number in numbers}
    assert wanted <= found, wanted - found


def test_what_is_impossible_says_why_and_the_rest_has_commands() -> None:
    assert set(SWEEPS) <= set(ENTRIES)
    for name, one in ENTRIES.items():
        assert (one.status is Status.IMPOSSIBLE) == (not one.commands), name
        assert one.status is not Status.IMPOSSIBLE or one.why, name
        assert one.status is not Status.ONE or len(one.commands) == 1, name


def test_rows_that_a_sweep_does_not_train_are_commands_of_their_own() -> None:
    for name, table in SWEEPS.items():
        made = {row.labels for row in as_sweep(name).combinations()}
        missing = table.rows.keys() - made
        assert (ENTRIES[name].status is Status.SEVERAL) == bool(missing), name
        text = " ".join(ENTRIES[name].commands)
        assert all(f"--model {label}=" in text for labels in missing for label in labels), name


def test_figure_33_is_of_resnets_as_in_the_paper() -> None:
    """Figure 33: "Linear Centered Kernel" alignment of ResNet-50x3, 101x1 and 101x3 on 4096 samples."""
    made = as_sweep("bhojanapalli2021-figure33", data="digits")
    assert {one.labels[0] for one in made.combinations()} == {"ResNet-50x3", "ResNet-101x1", "ResNet-101x3"}
    (study,) = made.studies
    assert as_study(study) == Correlation(measure=SimilarityMeasure.CKA, biased=True, group=4096)


def test_model_of_jains_figure_2_is_trained_normally() -> None:
    (one,) = as_sweep("jain2024-figure2").combinations()
    assert isinstance(one.recipe.objective, Adversarial)
    assert one.recipe.objective.attack is None
    assert one.recipe.selection.attack is None


@pytest.mark.parametrize("name", ENTRIES)
def test_commands_are_written_as_they_are_typed(name: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for text in ENTRIES[name].commands:
        word, verb, *rest = shlex.split(text)
        assert (word, verb in commands) == ("vitadel", True)
        command = commands[verb]
        if verb == "data":
            continue
        known = {option for parameter in command.params for option in parameter.opts}
        options = [one for one in rest if one.startswith("--")]
        assert set(options) <= known, text
        pairs = dict(itertools.pairwise(rest))
        if verb == "sweep" and not rest[0].startswith("--"):
            assert rest[0] in {**SWEEPS, **RECIPES}
        if "--study" in pairs:
            assert pairs["--study"].partition(":")[0] in STUDIES
        if verb == "evaluate":
            assert as_suites(pairs["--suite"])


@pytest.mark.parametrize("table", [name for name, one in SWEEPS.items() if one.studies])
def test_figures_study_every_model(table: str) -> None:
    made = as_sweep(table)
    assert made.studies == SWEEPS[table].studies
    assert {study.partition(":")[0] for study in made.studies} <= set(STUDIES)
    assert made.evaluates
    assert str(made.threat) == SWEEPS[table].threat
