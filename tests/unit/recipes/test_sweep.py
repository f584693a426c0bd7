"""Sweeps: all combinations in a known order, nothing trained twice, a table that matches the run folders."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitadel.recipes.sweep as module
from vitadel import models
from vitadel.api.evaluate import evaluate
from vitadel.api.sweep import as_sweep
from vitadel.api.sweep import sweep as train_sweep
from vitadel.api.sweep_result import SweepResult
from vitadel.attacks import APGD, FGSM, PGD, Attack, AutoAttack
from vitadel.core.errors import UsageError
from vitadel.core.files import slug
from vitadel.core.progress import ProgressCallback, silent
from vitadel.core.stats import accuracy
from vitadel.evaluate import SUITES, AttackSuite, NamedAttack
from vitadel.objectives import Adversarial, ScheduleUnit
from vitadel.recipes import RECIPES, Recipe, override, train_recipe
from vitadel.recipes.augmentation_sets import AUGMENTATION_SETS
from vitadel.recipes.published import GPU_HOURS
from vitadel.recipes.published_tables import SWEEPS
from vitadel.recipes.sweep import (
    AXES,
    Axis,
    Column,
    PublishedAccuracy,
    PublishedSweep,
    Sweep,
    Value,
    best_combinations,
    holdout_scores,
)
from vitadel.runs import Run
from vitadel.runs.schema import read_suite
from vitadel.runs.sweep_schema import (
    BestCombinations,
    CombinationRecord,
    HoldoutScores,
    PublishedScores,
    PublishedTable,
    SweepRecord,
    TestScores,
    read_sweep,
)
from vitadel.threats import Linf

SHORT = ("plan.epochs=1", "plan.warmup_epochs=0", "selection.images=16", "selection.attack.steps=1")


def sweep(*axes: str, **more: object) -> Sweep:
    made = Sweep(RECIPES["digits-adversarial"](), tuple(map(Axis.read, axes)), SHORT, "digits[:64]")
    return replace(made, **more)  # type: ignore[arg-type]


def run_sweep(made: Sweep, folder: Path, notify: ProgressCallback = silent) -> SweepRecord:
    """The table of a sweep, as `vd.sweep` makes it."""
    return train_sweep(made, folder, progress=notify).table


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folders in which training began."""
    begun: list[str] = []

    def counting(recipe: Recipe, folder: Path, **more: object) -> object:
        begun.append(folder.name)
        return train_recipe(recipe, folder, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train_recipe", counting)
    return begun


def test_the_last_axis_varies_fastest() -> None:
    members = sweep("eps-warmup=0,0.5", "plan.optimizer.weight_decay=0.05,0.5,1").combinations()
    assert [member.labels for member in members] == [(a, b) for a in ("0", "0.5") for b in ("0.05", "0.5", "1")]
    assert members[1].name == "eps-warmup=0,weight_decay=0.5"
    assert members[1].recipe == override(
        RECIPES["digits-adversarial"](), [*SHORT, "objective.eps_warmup=0", "plan.optimizer.weight_decay=0.5"]
    )


def test_settings_and_axes_are_applied_together() -> None:
    # two epochs alone would be refused: the recipe warms up for as long
    made = sweep("plan.warmup_epochs=0,1", settings=("plan.epochs=2",))
    assert [member.recipe.plan.warmup_epochs for member in made.combinations()] == [0, 1]


def test_names_are_distinct_files() -> None:
    def names(*axes: str) -> list[str]:
        return [member.name for member in sweep(*axes).combinations()]

    assert names("objective.threat.eps=8/255") == ["eps=8-255"]
    assert names("objective.attack.steps=1", "selection.attack.steps=2") == [
        "objective.attack.steps=1,selection.attack.steps=2"
    ]
    alike = names("about=a/b,a:b")
    assert len(set(alike)) == 2
    assert all(name.startswith("about=a-b-") for name in alike)
    (long,) = names(f"about={'x' * 500}")
    assert len(long) < 140


def test_long_texts_that_begin_alike_have_distinct_files() -> None:
    texts = [f"pgd:{'steps=1,' * 100}restarts={number}" for number in (1, 2)]
    one, two = map(slug, texts)
    assert one != two
    assert one[:-8] == two[:-8]
    assert max(len(one), len(two)) < 140
    assert slug("pgd:steps=40") == "pgd-steps-40"
    made = as_sweep("digits-standard", ["seed=0"], attack=texts)
    assert [column.suite.name for column in made.columns] == [one, two]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("plan.epochs",), "cannot read the axis 'plan.epochs'. Write path=value,value such as plan.epochs=10,20"),
        (("plan.epochs=1,,2",), "cannot read the axis"),
        (("weight-decy=1",), "unknown axis 'weight-decy'. Did you mean 'weight-decay'"),
        (("plan.epoch=1",), "unknown setting of TrainingConfig 'epoch'. Did you mean 'epochs'"),
        (("beta=1",), "unknown setting of Adversarial 'beta'"),
        (("seed=0", "seed=1"), "the axis 'seed' is given twice. Write all its values with commas, once"),
        (("seed=0,1,0",), "the axis 'seed' has two values labeled '0', which would share a row. Leave one out"),
        (("model.start=timm:test_vit,timm:test_vitt",), "start=timm-test_vitt: timm has no model 'test_vitt'. Did you"),
        (("model.start=timm:test_vit,timm:test_vit@w.pth",), "start=timm-test_vit-w.pth: w.pth does not exist. Give"),
        (("weight-decay=0.5,0.50",), "weight-decay=0.5 and weight-decay=0.50 are one and the same recipe"),
        (("augmentation=nothing",), "unknown set of augmentations 'nothing'"),
        ((), "a sweep needs something to vary, got no axis"),
    ],
)
def test_invalid_sweeps_are_refused_before_training(
    tmp_path: Path, trained: list[str], axes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_sweep(sweep(*axes), tmp_path / "sweep")
    assert not trained
    assert not (tmp_path / "sweep").exists()
    with pytest.raises(UsageError, match="suite 'quick' attacks, so it needs a threat"):
        sweep("seed=0", columns=(Column("quick", "quick"),))
    for column in (Column("a", "fgsm", scaling="ass"), Column("a", "fgsm", threat="lnf:1")):
        with pytest.raises(UsageError, match="unknown (scaling 'ass'. Did you mean 'aas'|threat 'lnf'. Did you mean)"):
            sweep("seed=0", columns=(column,), threat=Linf(0.1))
    with pytest.raises(UsageError, match="the axis 'seed' has no values. Write path=value,value such as plan.epochs="):
        as_sweep("digits-standard", {"seed": []})


def test_named_axes_can_be_changes_of_the_recipe() -> None:
    (member,) = sweep("eps-warmup-epochs=3", "plan.epochs=12").combinations()
    assert member.recipe.objective.eps_warmup == 3 / 12  # type: ignore[attr-defined]
    assert member.name == "eps-warmup-epochs=3,epochs=12"
    (light, heavy) = sweep("augmentation=base,mixup+cutmix+rand+erase").combinations()
    host, mixing = light.recipe.plan.pil_augment, light.recipe.plan.mixing
    assert host is not None
    assert (host.rand_augment, host.erase, host.color_jitter, mixing) == (None, 0.0, 0.4, None)
    host, mixing = heavy.recipe.plan.pil_augment, heavy.recipe.plan.mixing
    assert host is not None
    assert mixing is not None
    # timm leaves the jitter out where there is RandAugment
    assert (host.rand_augment, host.erase, host.color_jitter) == ("rand-m9-mstd0.5-inc1", 0.25, 0.0)
    assert (mixing.mixup, mixing.cutmix) == (0.8, 1.0)
    with pytest.raises(UsageError, match="unknown set of augmentations 'bse'. Did you mean 'base'"):
        sweep("augmentation=bse").combinations()


def test_all_sixteen_sets_of_augmentations_can_be_swept() -> None:
    members = sweep(f"augmentation={','.join(AUGMENTATION_SETS)}").combinations()
    assert len({(str(member.recipe.plan.pil_augment), str(member.recipe.plan.mixing)) for member in members}) == 16


def test_the_table_matches_the_run_folders(tmp_path: Path) -> None:
    radii = AttackSuite("radii", "", (NamedAttack("fgsm", FGSM()),), (0.5, 1.0, 2.0))
    made = sweep("plan.optimizer.lr=1e-4,3e-3", columns=(Column("radii", radii),), threat=Linf(0.05))
    table = run_sweep(made, tmp_path)
    assert read_sweep(tmp_path / "table.json").to_json() == table.to_json()
    assert (table.recipe, table.axes, table.suite) == ("digits-adversarial", ["plan.optimizer.lr"], "radii")
    assert [row.values for row in table.rows] == [{"plan.optimizer.lr": "1e-4"}, {"plan.optimizer.lr": "3e-3"}]
    for row in table.rows:
        (entry,) = Run.open(tmp_path / row.name).read_log("holdout")
        assert row.holdout == HoldoutScores(entry["step"], entry["clean"], entry["robust"])
        # of the three radii of the suite, the one of the sweep
        summary = read_suite(tmp_path / row.name / "test" / "eval" / "radii-linf-0.05" / "summary.json")
        assert row.test is not None
        assert (row.test.clean, row.test.robust, row.test.n) == (summary.clean, summary.robust, 64)
        assert row.test.name == "radii-linf-0.05"
        assert (row.state, row.reason) == ("done", None)
    robust = {row.name: row.holdout.robust or 0.0 for row in table.rows if row.holdout}
    winners = [name for name, share in robust.items() if share == max(robust.values())]
    assert table.best == BestCombinations("holdout.robust", winners)


def test_the_reported_checkpoint_is_the_kept_one(tmp_path: Path) -> None:
    run = Run.claim(tmp_path, "train", {}, device="cpu")
    assert holdout_scores(run) is None
    best = run.checkpoints / "best.safetensors"
    best.parent.mkdir()
    models.write_tensors(best, {"w": torch.ones(1)}, {})  # one without the record of its selection
    for step, clean, robust in ((1, 0.9, 0.2), (2, 0.5, 0.4), (3, 0.8, 0.4)):
        run.log("holdout", step=step, clean=clean, robust=robust)
    assert holdout_scores(run) == HoldoutScores(2, 0.5, 0.4)
    # selected by more than robust accuracy
    for step, clean, robust in ((1, 0.9, 0.2), (2, 0.5, 0.4), (3, 0.8, 0.4)):
        run.log("holdout", step=step, clean=clean, robust=robust, score=(clean + robust) / 2)
    assert holdout_scores(run) == HoldoutScores(3, 0.8, 0.4)
    selected = "step 7, hold-out {'clean': 0.9, 'robust': 0.3, 'score': 0.6}"
    models.write_tensors(best, {"w": torch.ones(1)}, {"vitadel.selected": selected})
    assert holdout_scores(run) == HoldoutScores(7, 0.9, 0.3)


def test_the_best_is_selected_on_the_hold_out_with_ties() -> None:
    def row(name: str, holdout: float | None, robust: int) -> CombinationRecord:
        kept = None if holdout is None else HoldoutScores(1, 0.9, holdout)
        test = TestScores("quick", 10, accuracy(1, 10), accuracy(robust, 10))
        return CombinationRecord(name, {}, "done", holdout=kept, test=test)

    rows = [row("a", 0.7, 5), row("b", 0.2, 6), row("c", 0.7, 4)]
    assert best_combinations(rows) == BestCombinations("holdout.robust", ["a", "c"])
    # a data set too small for a hold-out
    assert best_combinations([row("a", None, 2), row("b", None, 7)]) == BestCombinations("test.robust", ["b"])
    assert best_combinations([]) is None


def test_finished_combinations_are_skipped_and_interrupted_ones_resume(tmp_path: Path, trained: list[str]) -> None:
    made = sweep("seed=0,1,2")

    def killed(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if what.startswith("2/3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(made, tmp_path / "killed", notify=killed)
    assert trained == ["seed=0", "seed=1"]
    assert [row.name for row in read_sweep(tmp_path / "killed" / "table.json").rows] == ["seed=0"]
    table = run_sweep(made, tmp_path / "killed")
    assert trained == ["seed=0", "seed=1", "seed=1", "seed=2"]
    assert run_sweep(made, tmp_path / "killed") == table
    assert len(trained) == 4
    assert run_sweep(made, tmp_path / "whole") == table


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: sweep("seed=0,2"), r'parts.axes.seed: \["0", "1"\] -> \["0", "2"\]'),
        (lambda: sweep("seed=0,1", settings=(*SHORT, "plan.batch_size=16")), "parts.settings"),
        (lambda: sweep("seed=0,1", data="digits[:65]"), r'parts.data: "digits\[:64\]" -> "digits\[:65\]"'),
        (lambda: sweep("seed=0,1", columns=(Column("clean", "clean"),)), "parts.columns"),
        (lambda: sweep("seed=0,1", recipe=RECIPES["digits-standard"](), settings=()), "parts.recipe.name"),
    ],
)
def test_another_sweep_is_refused_and_the_difference_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[], Sweep], difference: str
) -> None:
    monkeypatch.setattr(module, "train_recipe", lambda *arguments, **more: None)
    run_sweep(sweep("seed=0,1"), tmp_path)
    before = (tmp_path / "table.json").read_bytes()
    with pytest.raises(UsageError, match=f"belongs to another run; it differs in .*{difference}"):
        run_sweep(other(), tmp_path)
    assert (tmp_path / "table.json").read_bytes() == before


def test_a_changed_axis_makes_another_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "train_recipe", lambda *arguments, **more: None)
    monkeypatch.setitem(AXES, "augmentation", lambda recipe, value: replace(recipe, about="one"))
    run_sweep(sweep("augmentation=some"), tmp_path)
    monkeypatch.setitem(AXES, "augmentation", lambda recipe, value: replace(recipe, about="two"))
    with pytest.raises(UsageError, match="combinations.augmentation=some: .* -> .*two"):
        run_sweep(sweep("augmentation=some"), tmp_path)


def test_a_failing_combination_does_not_stop_the_others(tmp_path: Path, trained: list[str]) -> None:
    made = sweep("plan.optimizer.lr=1e10,1e-3", "seed=0")
    table = run_sweep(made, tmp_path)
    broken, fine = table.rows
    assert (broken.state, fine.state) == ("failed", "done")
    assert SweepResult(tmp_path, table).failures == {"lr=1e10,seed=0": broken.reason}
    assert "the loss is no longer finite" in str(broken.reason)
    assert broken.holdout is None
    assert table.best == BestCombinations("holdout.robust", ["lr=1e-3,seed=0"])
    (logged,) = Run.open(tmp_path).read_log("failed")
    assert (logged["combination"], logged["reason"]) == ("lr=1e10,seed=0", broken.reason)
    run_sweep(made, tmp_path)
    assert trained == ["lr=1e10,seed=0", "lr=1e-3,seed=0", "lr=1e10,seed=0"]


@pytest.mark.parametrize("full", [True, False])
def test_a_combination_that_does_not_fit_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def train(recipe: Recipe, folder: Path, **more: object) -> object:
        if recipe.seed == 0:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory" if full else "a mistake")
        return train_recipe(recipe, folder, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train_recipe", train)
    if full:
        broken, fine = run_sweep(sweep("seed=0,1"), tmp_path).rows
        assert (broken.state, fine.state) == ("failed", "done")
        assert broken.reason == "DefaultCPUAllocator: can't allocate memory"
    else:
        with pytest.raises(RuntimeError, match="a mistake"):
            run_sweep(sweep("seed=0,1"), tmp_path)


def test_a_lost_log_changes_no_score_and_a_lost_checkpoint_is_named(tmp_path: Path, trained: list[str]) -> None:
    made = sweep("seed=0,1")
    before = run_sweep(made, tmp_path)
    (tmp_path / "seed=0" / "log.jsonl").unlink()
    (tmp_path / "seed=1" / "log.jsonl").write_bytes(b'{"event": "holdout", "step": [1], "clean": "\xff"}\n')
    assert run_sweep(made, tmp_path) == before
    row, _ = before.rows
    run = Run.open(tmp_path / "seed=0")
    run.log("holdout", step=3, clean=0.5)
    (run.checkpoints / "best.safetensors").unlink()
    failed, _ = run_sweep(made, tmp_path).rows
    assert (row.state, failed.state, failed.holdout) == ("done", "failed", None)
    assert "best.safetensors is missing. Restore it, or delete" in str(failed.reason)


def test_published_numbers_are_shown_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axis = Axis("size", (Value("small", ("seed=1",)), Value("own", ("seed=2",))))
    accuracies: dict[tuple[str, ...], PublishedAccuracy] = {("small",): PublishedAccuracy(9, 8)}
    published = PublishedSweep("a paper", "size", "digits-adversarial", (axis,), "linf:8/255", "PGD", accuracies)
    monkeypatch.setattr(module, "train_recipe", lambda *arguments, **more: None)
    table = run_sweep(sweep("seed=0", axes=(axis,), published=published), tmp_path)
    assert [row.published for row in table.rows] == [PublishedScores(9, 8), None]
    assert table.published == PublishedTable("a paper", "PGD", "")
    assert table.best is None


@pytest.mark.parametrize("name", SWEEPS)
def test_published_tables_are_complete(name: str) -> None:
    table = SWEEPS[name]
    rows = set(itertools.product(*(axis.labels for axis in table.axes)))
    # of a row without weights or a recipe, there are numbers to compare a model of one's own with
    assert rows <= set(table.rows)
    assert len(table.rows) - len(rows) <= 1
    for labels in rows:
        values = [value for axis in table.axes for value in axis.values if value.label in labels]
        names = {column.name for value in values for column in value.columns or table.columns}
        assert {*table.rows[labels].others} <= {*names, GPU_HOURS}, "every printed number has a column"
    for numbers in table.rows.values():
        for number in (numbers.clean, numbers.robust, numbers.standard_clean):
            assert number is None or 10 < number < 100, "percentages, not shares"
        assert numbers.robust is None or numbers.clean is None or numbers.robust < numbers.clean


ROWS_THAT_ARE_RECIPES = {
    ("debenedetti2022-table1", "deit-s"): "deit-s-imagenet100",
    ("debenedetti2022-table1", "cait-s12"): "cait-s12-imagenet100",
    ("debenedetti2022-table1", "xcit-s12"): "xcit-s12-imagenet100",
    ("debenedetti2022-table5", "deit-s"): "deit-s-imagenet",
    ("debenedetti2022-table6", "xcit-s12"): "xcit-s12-imagenet",
    ("debenedetti2022-table6", "xcit-m12"): "xcit-m12-imagenet",
    ("debenedetti2022-table5", "+weight-decay"): "xcit-s12-imagenet",
    ("wu2025-table4", "baseline: B/2, 2000 epochs"): "vit-b2-cifar10",
    ("wu2025-table4", "model: L/2, 2000 epochs"): "vit-l2-cifar10",
    ("wu2025-table4", "epochs: B/2, 6000 epochs"): "vit-b2-cifar10-long",
    ("wu2025-table4", "both: L/2, 10000 epochs"): "vit-l2-cifar10-long",
    ("wu2025-table5-vit", "lion"): "vit-b2-cifar10",
    ("wu2025-table5-wrn", "lion"): "wrn-28-10-cifar10-lion",
}


@pytest.mark.parametrize(("row", "recipe"), ROWS_THAT_ARE_RECIPES.items(), ids=lambda one: str(one))
def test_a_row_with_its_own_recipe_uses_it(row: tuple[str, str], recipe: str) -> None:
    table, label = row
    members = as_sweep(table).combinations()
    of_table, own = next(one.recipe for one in members if one.labels == (label,)), RECIPES[recipe]()
    if table == "debenedetti2022-table5" and label == "deit-s":  # how eps grows, where it does not
        assert isinstance(of_table.objective, Adversarial)
        of_table = replace(of_table, objective=replace(of_table.objective, warmup_unit=ScheduleUnit.STEP))
    for part in ("model", "objective", "plan", "synthetic", "preprocess", "selection", "seed"):
        assert getattr(of_table, part) == getattr(own, part), part


@pytest.mark.parametrize("number", [1, 3, 4])
def test_columns_of_standard_training_are_tables_of_their_own(number: int) -> None:
    """Thesis, tables 1, 3 and 4: the same rows without an adversary, beside the accuracies of that column."""
    name = f"debenedetti2022-table{number}"
    table, standard = SWEEPS[name], SWEEPS[f"{name}-standard"]
    assert {label: row.clean for label, row in standard.rows.items()} == {
        label: row.standard_clean for label, row in table.rows.items()
    }
    assert all(row.robust is None for row in standard.rows.values())
    pairs = zip(as_sweep(name).combinations(), as_sweep(f"{name}-standard").combinations(), strict=True)
    for adversarial, one in pairs:
        assert adversarial.recipe is not None
        assert one.recipe is not None
        assert isinstance(one.recipe.objective, Adversarial)
        assert one.recipe.objective.attack is None
        assert one.recipe.selection.attack is None, "the best checkpoint is the one of the best clean accuracy"
        objective = replace(one.recipe.objective, attack=adversarial.recipe.objective.attack)  # type: ignore[attr-defined]
        selection = replace(one.recipe.selection, attack=adversarial.recipe.selection.attack)
        assert replace(one.recipe, objective=objective, selection=selection) == adversarial.recipe


@pytest.mark.parametrize(
    ("table", "label", "clean"),
    [
        (1, "deit-s", 67.38),
        (1, "cait-s12", 80.28),
        (1, "xcit-s12", 90.44),
        (3, "rand", 78.62),
        (3, "mixup+cutmix+rand+erase", 75.32),
        (4, "0.5", 76.72),
        (4, "1.0", 76.12),
    ],
)
def test_published_accuracies_of_standard_training(table: int, label: str, clean: float) -> None:
    assert SWEEPS[f"debenedetti2022-table{table}-standard"].rows[(label,)] == PublishedAccuracy(clean, None)


def test_sizes_of_xcit_in_table_6() -> None:
    """Section 4.1.9: +1.7 and +3.46 points of XCiT-M12 over S12; 80.36, 81.71 and 82.65 without an adversary."""
    rows = SWEEPS["debenedetti2022-table6"].rows
    gelu, wide, small, medium, large = rows.values()
    assert round((medium.clean or 0) - (small.clean or 0), 2) == 1.70
    assert round((medium.robust or 0) - (small.robust or 0), 2) == 3.46
    assert [row.standard_clean for row in (small, medium, large)] == [80.36, 81.71, 82.65]
    assert (large.clean, large.robust) == (74.60, 43.78)
    assert (gelu.clean, gelu.robust, wide.clean, wide.robust) == (67.38, 35.51, 68.46, 38.14)
    other, *own = as_sweep("debenedetti2022-table6").combinations()
    assert other.recipe == RECIPES["resnet50-gelu-imagenet"]()
    for one, recipe in zip(own, "sml", strict=True):
        assert one.recipe.model == RECIPES[f"xcit-{recipe}12-imagenet"]().model
        assert one.recipe.objective == RECIPES["xcit-s12-imagenet"]().objective, "one step, as table 6"


def test_single_rows_of_a_table_can_be_trained() -> None:
    """In this table every value comes with augmentations that its name does not mention."""
    some = as_sweep("thesis-table2", ["eps-warmup-epochs=20,7"])  # its name in earlier versions
    every = as_sweep("debenedetti2022-table2")
    kept, new = some.combinations()
    assert kept.recipe == next(one.recipe for one in every.combinations() if one.labels == ("20",))
    assert new.labels == ("7",)
    assert some.published is not None
    assert new.labels not in some.published.rows


def test_rows_with_names_of_their_own_can_be_chosen() -> None:
    every = {one.labels: one.recipe for one in as_sweep("wu2025-table4").combinations()}
    axis = "scaling=both: L/2, 10000 epochs,baseline: B/2, 2000 epochs"
    some = as_sweep("wu2025-table4", [axis]).combinations()
    assert [one.labels for one in some] == [("both: L/2, 10000 epochs",), ("baseline: B/2, 2000 epochs",)]
    assert all(one.recipe == every[one.labels] for one in some)
    with pytest.raises(UsageError, match="unknown value of the axis 'tuning' 'torra'. Did you mean 'tora'"):
        as_sweep("tora-table3", {"tuning": ["torra"]})


def test_published_differences_match_the_text_of_the_paper() -> None:
    def row(table: str, label: str) -> PublishedAccuracy:
        return SWEEPS[table].rows[(label,)]

    def points(table: str, one: str, other: str) -> tuple[float, float]:
        a, b = row(table, one), row(table, other)
        assert a.clean and a.robust and b.clean and b.robust  # noqa: PT018
        return round(a.clean - b.clean, 2), round(a.robust - b.robust, 2)

    assert points("debenedetti2022-table2", "20", "0") == (7.64, 4.40)
    assert points("debenedetti2022-table3", "erase", "rand") == (1.94, 1.58)
    assert points("debenedetti2022-table3", "base", "mixup+cutmix+rand+erase")[1] == 3.84
    third = SWEEPS["debenedetti2022-table3"].rows
    assert len(third) == 8
    assert [one.robust for one in third.values()] == sorted((one.robust or 0 for one in third.values()), reverse=True)
    assert row("debenedetti2022-table3", "erase").robust == row("debenedetti2022-table3", "base").robust
    assert max(third.values(), key=lambda one: one.standard_clean or 0) == third[("rand",)]
    assert points("debenedetti2022-table4", "0.5", "0.05") == (1.62, 2.72)
    assert points("debenedetti2022-table5", "+weight-decay", "deit-s") == (6.04, 9.08)
    assert points("debenedetti2022-table5", "+augmentation", "+eps-warmup") == (-0.28, 9.42)
    # one run in two halves of a table, and in three tables
    assert row("wu2025-table2-smoothing", "0.4") == row("wu2025-table2-beta", "5")
    assert row("wu2025-table2-beta", "3") == row("wu2025-table4", "baseline: B/2, 2000 epochs")
    assert row("wu2025-table2-beta", "3") == row("wu2025-table5-vit", "lion")


def test_rows_are_evaluated_with_a_list_of_attacks_on_other_images(tmp_path: Path) -> None:
    made = as_sweep(
        "digits-adversarial",
        ["seed=0"],
        SHORT,
        data="digits[:64]",
        test_data="digits[:32]",
        attack=["fgsm", "pgd:steps=2"],
        suite="gray-level",
        threat="linf:0.1",
    )
    (row,) = run_sweep(made, tmp_path).rows
    assert [one.column for one in row.columns] == ["clean", "fgsm", "pgd:steps=2", "gray-level"]
    for one in row.columns[1:]:
        record = read_suite(tmp_path / row.name / "test" / "eval" / one.evaluation / "summary.json")
        share = record.robust.accuracy if record.robust else record.main and record.main.value
        assert (one.measure.value, one.measure.n, record.n) == (share, 32, 32)
    assert row.test is not None
    assert row.test.name == "fgsm-linf-0.1"
    # the very numbers of the same evaluation by itself
    alone = evaluate(tmp_path / row.name, "digits[:32]", "pgd:steps=2", run=tmp_path / "alone", threat="linf:0.1")
    assert alone.records[0].robust is not None
    assert alone.records[0].robust.accuracy == row.columns[2].measure.value


def test_suites_of_their_own_images_need_them(tmp_path: Path) -> None:
    made = as_sweep("digits-standard", ["seed=0"], data="digits[:64]", suite="imagenet-a")
    assert made.left_out(made.combinations()) == ["column imagenet-a is left out: give --test-data imagenet-a:DIR"]
    given = replace(made, test_data=(f"imagenet-a:{tmp_path}", "digits[:32]"))
    (one,) = given.combinations()
    images = given.images(one)
    assert (images.usual, images.find(SUITES["imagenet-a"])) == (
        "digits[:32]",
        f"imagenet-a:{tmp_path}",
    )
    assert not given.left_out([one])
    with pytest.raises(UsageError, match="the test images are given twice, got --test-data digits and digits\\[:3\\]"):
        replace(made, test_data=("digits", "digits[:3]")).left_out([one])


@pytest.mark.parametrize(
    ("table", "evaluations"),
    [
        ("debenedetti2022-table1", {"robust": APGD(steps=100, restarts=5)}),
        ("debenedetti2022-table4", {"robust": APGD(steps=100, restarts=5)}),
        ("debenedetti2022-table5", {"robust": AutoAttack()}),
        ("wu2025-table2-beta", {"robust": AutoAttack()}),
        ("wu2025-table3", {"robust": PGD(steps=40)}),
        ("tora-table2", {"FGSM": FGSM(), "robust": PGD(steps=5, step_size=0.5 / 255)}),
    ],
)
def test_a_table_is_evaluated_with_the_attacks_of_its_paper(table: str, evaluations: dict[str, Attack]) -> None:
    made = as_sweep(table)
    attacks = {
        column.name: column.suite.attacks[0].attack for column in made.columns if isinstance(column.suite, AttackSuite)
    }
    assert attacks == evaluations
    assert str(made.threat) == SWEEPS[table].threat
    assert not as_sweep(table, suite="none").columns
    assert [column.name for column in as_sweep(table, attack="fgsm").columns] == ["fgsm"]


def test_a_table_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    before = {
        "recipe": "digits-standard",
        "axes": ["seed"],
        "suite": "quick",
        "threat": "linf:8/255",
        "published": None,
        "best": None,
        "rows": [{"name": "seed=0", "values": {"seed": "0"}, "state": "done", "reason": None, "holdout": None,
                  "test": None, "published": {"clean": 1.0, "robust": None}}],
    }  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps(before))
    record = read_sweep(tmp_path / "table.json")
    assert (record.suite, record.rows[0].published, record.rows[0].columns) == ("quick", PublishedScores(1.0, None), ())
    assert record.to_json() == before


def test_our_numbers_are_compared_with_the_papers_and_another_scale_is_marked(tmp_path: Path) -> None:
    axis = Axis("size", (Value("small", ("seed=1",)), Value("own", ("seed=2",))))
    numbers: dict[tuple[str, ...], PublishedAccuracy] = {
        ("small",): PublishedAccuracy(90.0, 80.0, others={"PGD": 70.0})
    }
    published = PublishedSweep(
        "a paper",
        "size",
        "digits-adversarial",
        (axis,),
        "linf:0.1",
        "FGSM",
        numbers,
        columns=(Column("robust", "fgsm"), Column("PGD", "pgd:steps=2")),
        test_images=50,
    )
    made = sweep("seed=0", axes=(axis,), published=published, columns=published.columns, threat=Linf(0.1))
    first, second = run_sweep(made, tmp_path).rows
    assert [(one.column, one.published) for one in first.columns] == [("clean", 90.0), ("robust", 80.0), ("PGD", 70.0)]
    for one in first.columns:
        assert one.measure.value is not None
        assert one.published is not None
        assert one.difference == round(100 * one.measure.value - one.published, 4)
    assert first.test is not None
    assert first.columns[1].measure.value == first.test.robust.accuracy  # type: ignore[union-attr]
    assert first.scale == ("64 test images, not 50",)
    assert all(one.published is None and one.difference is None for one in second.columns)
    _, compared = SweepResult(tmp_path, read_sweep(tmp_path / "table.json")).tables()
    assert compared.rows[1][:2] == ["small", "robust"]
    assert compared.rows[1][4] == "80.00%"
    assert compared.rows[1][5].endswith("≠")
    assert "64 test images, not 50" in compared.notes[-1]
    # as many images as the paper, and the mark is gone
    same = run_sweep(replace(made, published=replace(published, test_images=64)), tmp_path / "same")
    assert same.rows[0].scale == ()
    assert "≠" not in str(SweepResult(tmp_path, same))


def test_what_the_user_changes_in_a_table_is_another_scale() -> None:
    assert as_sweep("debenedetti2022-table4").scale == ()
    made = as_sweep(
        "debenedetti2022-table4", overrides=["plan.epochs=3"], data="digits[:64]", attack="fgsm", threat="linf:8/255"
    )
    assert made.scale == (
        "plan.epochs=3",
        "data digits[:64]",
        "threat linf:8/255, not linf:4/255",
        "robust accuracy by fgsm, not APGD-CE, 100 steps, 5 restarts",
    )
    # the attack of the paper, written by hand
    made = as_sweep("debenedetti2022-table4", attack=["fgsm", "apgd:steps=100,restarts=5"])
    assert ([one.printed_as for one in made.columns], made.scale) == (["fgsm", "robust"], ())
