"""`--small`: a table keeps what it varies, and everything else becomes small."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitadel import models
from vitadel.api.sweep import as_sweep
from vitadel.api.sweep import sweep as train_sweep
from vitadel.api.sweep_result import SweepResult
from vitadel.core.errors import UsageError
from vitadel.objectives import AWP, TRADES, AttentionScaling
from vitadel.recipes import RECIPES, Recipe, override
from vitadel.recipes.combinations import Sweep
from vitadel.recipes.published_tables import SWEEPS
from vitadel.recipes.small import shortened_objective, small_scale
from vitadel.runs import Run
from vitadel.train import Compile

# the recipe that sets the pace makes 60 epochs of 7 passes in 7 minutes of one GPU
_PASSES_A_MINUTE = 60.0


def rows(table: str, data: str | None = None) -> list[Recipe]:
    """The recipes of a table at the small scale, one for each model."""
    return models_of(as_sweep(table, small=True, data=data))


def models_of(sweep: Sweep) -> list[Recipe]:
    return list({one.folder: one.recipe for one in sweep.combinations()}.values())


@pytest.mark.parametrize("table", [name for name, table in SWEEPS.items() if table.recipe])
def test_every_table_is_an_hour_on_cifar_and_a_moment_on_digits(table: str) -> None:
    small = rows(table)
    assert all(one.data.startswith("cifar10") and one.model.image_size == 32 for one in small)
    assert all(1 <= one.plan.epochs <= 90 for one in small)
    scale = small_scale(None, RECIPES[SWEEPS[table].recipe]())
    full = models_of(as_sweep(table))
    minutes = sum(
        scale.cost(one) * short.plan.epochs * one.objective.passes / _PASSES_A_MINUTE
        for one, short in zip(full, small, strict=True)
    )
    assert minutes < 60
    for one in rows(table, "digits"):
        assert (one.preprocess, one.plan.num_workers) == ("squash:8", 0)
        assert one.plan.epochs <= 15  # 300 from scratch, where the table fine-tunes for 20
        if one.model.tuning is None:  # adapters need the network that the sweep trains first
            choice = one.model
            assert models.load(
                choice.start,
                num_classes=10,
                image_size=choice.image_size,
                patch_size=choice.patch_size,
                options=choice.options or None,
            )


def test_what_a_table_varies_stays() -> None:
    for table, value in (
        ("debenedetti2022-table4", lambda recipe: recipe.plan.optimizer.weight_decay),
        ("debenedetti2022-table2", lambda recipe: recipe.objective.eps_warmup),
        ("debenedetti2022-table3", lambda recipe: replace(recipe.plan.pil_augment, resized_crop=False)),
        ("debenedetti2022-table3", lambda recipe: recipe.plan.mixing),
        ("wu2025-table2-beta", lambda recipe: recipe.objective.beta),
        ("wu2025-table5-vit", lambda recipe: recipe.plan.optimizer),
        ("wu2025-table3", lambda recipe: recipe.synthetic.share),
        ("tora-table2", lambda recipe: recipe.objective.weight),
    ):
        full = [value(one) for one in models_of(as_sweep(table))]
        assert [value(one) for one in rows(table)] == full, table
    # 2000, 2000, 6000 and 10000 epochs
    epochs = [one.plan.epochs for one in rows("wu2025-table4")]
    assert [length / epochs[0] for length in epochs] == [1, 1, 3, 5]
    # generated images are left out where their share is not what is varied
    assert all(one.synthetic is None for one in rows("wu2025-table2-beta"))


def test_a_short_row_is_one_epoch() -> None:
    """Lengths are relative to that of the table; a row of a hundredth of it still trains."""
    long = RECIPES["cifar10-vit-tiny-short"]()
    short = override(long, {"plan.epochs": max(1, long.plan.epochs // 100), "plan.warmup_epochs": 0})
    scale = small_scale(None, long)
    assert [scale.apply(one, long, 10).plan.epochs for one in (short, long)] == [1, 10]


def test_what_is_counted_in_epochs_keeps_its_share() -> None:
    inner = RECIPES["vit-b-cifar10-trades-awp-aas"]().objective
    assert isinstance(inner, AttentionScaling)
    assert isinstance(inner.inner, AWP)
    short = shortened_objective(replace(inner, inner=replace(inner.inner, start=10)), 0.3)
    assert isinstance(short, AttentionScaling)
    assert (short.period, short.inner) == (round(0.3 * inner.period), replace(inner.inner, start=3))
    plain = RECIPES["cifar10-trades-short"]().objective
    assert isinstance(plain, TRADES)
    assert shortened_objective(plain, 0.3) is plain


def test_settings_of_the_user_come_last_and_the_row_says_its_scale(tmp_path: Path) -> None:
    made = as_sweep(
        "tora-table3", ["lambda=0.1", "tuning=single adapter,tora"], ["plan.epochs=2"], small=True, data="digits[:64]"
    )
    assert [one.recipe.plan.epochs for one in made.combinations()] == [2, 2]
    result = train_sweep(made, tmp_path)
    assert not result.failures
    single, _ = result.table.rows
    assert single.label == "smallest: adapters/2, digits, 2 epochs"
    assert single.scale == (single.label, "plan.epochs=2", "64 test images, not 50000")
    assert [one.column for one in single.columns] == ["clean", "FGSM", "robust"]
    assert {one.published for one in single.columns} == {82.5, 40.9, 15.1}
    # both froze the network that was trained first
    manifests = [Run.open(tmp_path / row.name).manifest for row in result.table.rows]
    assert {one.text("recipe", "model", "start") for one in manifests} == {str(tmp_path / "start")}
    assert Run.open(tmp_path / "start").manifest.text("recipe", "name") == "digits-class-token"
    first, compared = SweepResult(tmp_path, result.table).tables()
    assert first.columns[2] == "scale"
    assert first.rows[0][2] == single.label
    assert all(row[-1].endswith("≠") for row in compared.rows)
    # nothing is trained or evaluated again
    assert train_sweep(made, tmp_path).table == result.table


@pytest.mark.parametrize("small", [True, False])
def test_missing_generated_images_are_refused_before_any_training(tmp_path: Path, small: bool) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UsageError, match=r"needs the generated images in data/cifar10-edm.*synthetic.folder=DIR"):
        train_sweep("wu2025-table3", folder, axes=["mix=0.2,0.4"], data="digits[:64]", small=small)
    assert not folder.exists()
    # tables that vary something else leave generated images out at the small scale
    made = as_sweep("wu2025-table2-beta", small=True, data="digits[:64]")
    made.check(made.combinations())


def test_what_has_no_small_scale_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"unknown data set of small=True \(--small\) 'imagenet'. Known: cifar10, cifar100, digits"
    ):
        as_sweep("debenedetti2022-table4", small=True, data="imagenet:/there")
    with pytest.raises(
        UsageError, match=r"small=True \(--small\) trains small models, and bhojanapalli2021-figure10 trains none"
    ):
        as_sweep("bhojanapalli2021-figure10", small=True)
    other = override(RECIPES["digits-standard"](), ["model.start=timm:levit_128s"])
    with pytest.raises(
        UsageError, match=r"small=True \(--small\) knows no small model for 'timm:levit_128s' of digits-standard"
    ):
        as_sweep(other, ["seed=0,1"], small=True, data="digits").combinations()


def test_what_works_through_taps_is_not_compiled() -> None:
    """Training refuses compiled networks whose attention is scaled or whose gradients of the attention change."""
    small = rows("jain2024-table5-cifar10")
    hidden = [one for one in small if isinstance(one.objective, AttentionScaling) or one.objective.uses_taps]
    assert 0 < len(hidden) < len(small)
    assert {one.plan.compile for one in hidden} == {Compile.OFF}
    assert {one.plan.compile for one in small if one not in hidden} == {Compile.BLOCKS}
