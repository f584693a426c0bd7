"""Rows that are existing models, heads of one model, or attacks on one model; the numbers of their tables."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vitadel.recipes.sweep as module
from vitadel.api.evaluate import evaluate
from vitadel.api.sweep import as_sweep
from vitadel.api.sweep import sweep as train_sweep
from vitadel.api.train import train
from vitadel.core.errors import UsageError
from vitadel.recipes import RECIPES, Recipe, train_recipe
from vitadel.recipes.axes import Axis, Value
from vitadel.recipes.columns import Column, evaluations
from vitadel.recipes.published import PublishedAccuracy, PublishedSweep
from vitadel.recipes.published_tables import SWEEPS
from vitadel.recipes.sweep import Sweep
from vitadel.runs import Run
from vitadel.runs.sweep_schema import ColumnRecord
from vitadel.threats import Linf

SHORT = {"plan.epochs": 1, "plan.warmup_epochs": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trained models."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / "one", folder / "two"]
    for seed, path in enumerate(paths):
        train("digits-standard", path, data="digits[:128]", overrides={"seed": seed, "plan.epochs": 3})
    return paths


def values(columns: "list[ColumnRecord] | tuple[ColumnRecord, ...]") -> dict[str, float | None]:
    return {one.column: one.measure.value for one in columns}


def test_several_models_in_one_command(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "train_recipe", lambda *arguments, **more: pytest.fail("nothing is to be trained"))
    one, two = map(str, runs)
    result = train_sweep(
        None, tmp_path, models=[f"first={one}", two], data="digits[:64]", attack="pgd:steps=3", threat="linf:0.1"
    )
    assert [row.values for row in result.table.rows] == [{"model": "first"}, {"model": two}]
    assert result.table.recipe == "models"
    for row, path in zip(result.table.rows, runs, strict=True):
        alone = evaluate(path, "digits[:64]", "pgd:steps=3", run=tmp_path / f"alone-{path.name}", threat="linf:0.1")
        record = alone.records[0]
        assert record.clean is not None
        assert record.robust is not None
        assert values(list(row.columns)) == {"clean": record.clean.accuracy, "pgd:steps=3": record.robust.accuracy}
        assert row.holdout is None


def test_models_take_rows_of_a_table_by_their_labels(runs: list[Path], tmp_path: Path) -> None:
    made = as_sweep("jain2024-table5-cifar10", models=[f"TRADES={runs[0]}", f"mine={runs[1]}"], data="digits[:64]")
    assert made.axes == (Axis("method", (Value("TRADES", model=str(runs[0])), Value("mine", model=str(runs[1])))),)
    first, second = made.combinations()
    assert made.printed(first) == SWEEPS["jain2024-table5-cifar10"].rows[("TRADES",)]
    assert made.printed(second) is None
    small = replace(made, columns=(Column("robust", "fgsm"),), threat=Linf(0.1))
    row, _ = train_sweep(small, tmp_path).table.rows
    assert [(one.column, one.published) for one in row.columns] == [("clean", 86.31), ("robust", 54.03)]
    assert row.scale == ("data digits[:64]", f"the model {runs[0]}", "64 test images, not 10000")
    with pytest.raises(UsageError, match="cannot read the model '=x'. Write MODEL or LABEL=MODEL"):
        as_sweep(None, models=["=x"])
    with pytest.raises(
        UsageError, match=r"models \(--model\) stand for the values of one axis, got seed and smoothing"
    ):
        as_sweep("digits-standard", ["seed=0,1", "smoothing=0,1"], models=["runs/x"])
    with pytest.raises(UsageError, match="evaluated on test images, got none. Write data="):
        train_sweep(None, tmp_path / "none", models=[str(runs[0])], attack="fgsm")


def test_a_path_with_an_equals_sign_is_no_label(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps write such paths: `RUN/seed=0`."""
    monkeypatch.chdir(tmp_path)
    path = Path("sweep", "seed=0")
    shutil.copytree(runs[0], path)
    shutil.copytree(runs[0], "first")
    weights = f"timm:test_vit@{path / 'checkpoints' / 'best.safetensors'}"

    def labels(*texts: str) -> list[tuple[str, str]]:
        (axis,) = as_sweep(None, models=texts).axes
        return [(value.label, value.model) for value in axis.values]

    for text in (str(path), f"{path}/checkpoints/best.safetensors", f"{path}#kept", weights, "timm:test_vit"):
        assert labels(text) == [(text, text)]
        assert labels(f"mine={text}") == [("mine", text)]
    assert labels("sweep/seed=first", "first=first") == [("sweep/seed", "first"), ("first", "first")]
    table = train_sweep(None, tmp_path / "run", models=[str(path)], data="digits[:8]", suite="clean").table
    assert [row.state for row in table.rows] == ["done"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("timm:vit_tinny", "timm has no model 'vit_tinny'. Did you mean"),
        ("timm:test_vit@weights.pth", "weights.pth does not exist. Give the path of a file with weights"),
        ("timm:test_vit@", "no file follows the @"),
        ("vitadel:wrn28_11", "unknown model 'vitadel:wrn28_11'"),
        ("zoo:nothing", "unknown zoo model 'zoo:nothing'"),
        ("nothing", "'nothing' is not a model: no such file or folder"),
        ("timm:test_vit+adapters.safetensors", "adapters.safetensors does not exist"),
        (".", "holds no finished checkpoint"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_before_the_first_row(
    model: str, message: str, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^model=b: .*{message}"):
        train_sweep(None, tmp_path / "run", models={"a": str(runs[0]), "b": model}, data="digits[:8]", suite="clean")
    assert not (tmp_path / "run").exists()


def test_a_finished_row_needs_no_more_what_it_started_from(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], start := tmp_path / "start")
    both = {"axes": {"model.start": [str(start)]}, "overrides": SHORT, "data": "digits[:64]"}
    first = train_sweep("digits-standard", tmp_path / "run", **both).table  # type: ignore[arg-type]
    shutil.rmtree(start)
    assert train_sweep("digits-standard", tmp_path / "run", **both).table == first  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"the sweep trains nothing and evaluates nothing\. Write a suite, an attack or a study"),
        ({"suite": "none"}, "the sweep trains nothing and evaluates nothing"),
        ({"suite": "imagenet-a"}, "nothing; column imagenet-a is left out: give --test-data imagenet-a:DIR. Write"),
    ],
)
def test_a_sweep_without_anything_to_do_is_refused(
    given: dict[str, str], message: str, runs: list[Path], tmp_path: Path
) -> None:
    for recipe in (None, "digits-standard"):
        with pytest.raises(UsageError, match=message):
            train_sweep(recipe, tmp_path / "run", models=[str(runs[0])], data="digits[:8]", **given)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_rows_that_are_attacks_share_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    own = train_recipe

    def counting(recipe: Recipe, folder: Path, **more: object) -> object:
        trained.append(folder.name)
        return own(recipe, folder, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "train_recipe", counting)
    rescaled = Column("robust", "fgsm", scaling="0.01", rescaled=True)
    clean = Column("clean", "fgsm", scaling="0.01", rescaled=True, measure="clean")
    axis = Axis("factor", (Value("1", columns=(Column("robust", "fgsm"),)), Value("0.01", columns=(clean, rescaled))))
    numbers: dict[tuple[str, ...], PublishedAccuracy] = {
        ("1",): PublishedAccuracy(60.0, 50.0),
        ("0.01",): PublishedAccuracy(61.0, 51.0),
    }
    published = PublishedSweep("a paper", "factor", "digits-standard", (axis,), "linf:0.1", "FGSM", numbers)
    made = Sweep(RECIPES["digits-standard"](), (axis,), ("plan.epochs=2",), "digits[:128]", (), Linf(0.1), published)
    table = train_sweep(made, tmp_path).table
    assert trained == ["model"]
    plain, scaled = table.rows
    assert [row.folder for row in table.rows] == ["model", "model"]
    assert [one.published for one in (*plain.columns, *scaled.columns)] == [60.0, 50.0, 61.0, 51.0]
    alone = evaluate(
        tmp_path / "model", "digits[:128]", "fgsm", run=tmp_path / "alone", threat="linf:0.1", scaling="0.01"
    )
    unscaled, paper = alone.records
    assert paper.clean is not None
    assert paper.robust is not None
    # the rescaled model's own clean and robust accuracy, not the model's
    assert values(list(scaled.columns)) == {"clean": paper.clean.accuracy, "robust": paper.robust.accuracy}
    assert plain.test is not None
    assert plain.test.clean == unscaled.clean


@pytest.mark.parametrize("name", SWEEPS)
def test_no_two_rows_write_different_evaluations_into_one_folder(name: str) -> None:
    table = SWEEPS[name]
    made = as_sweep(name, data="digits[:64]", small=bool(table.recipe) and "synthetic" not in table.about)
    written: dict[Path, object] = {}
    for row in made.combinations():
        images, folder = made.images(row), Path(row.folder)
        for one in evaluations(row.columns, "m", folder, images, made.threat, row.head, row.own_columns_of):
            call = (one.suites, one.threat, one.scaling, one.data)
            assert written.setdefault(one.run, call) == call, one.run


def test_rows_with_attacks_of_their_own_are_all_evaluated(runs: list[Path], tmp_path: Path) -> None:
    labels = ["FGSM", "PGD-20"]
    made = as_sweep("jain2024-table3-cifar10", [f"attack={','.join(labels)}"], small=True, data="digits[:32]")
    columns = {"FGSM": (Column("robust", "fgsm"),), "PGD-20": (Column("robust", "pgd:steps=2"),)}
    axis = Axis("attack", tuple(Value(label, columns=own) for label, own in columns.items()))
    short = replace(made, axes=(axis,), recipe=RECIPES["digits-standard"](), small=None, settings=("plan.epochs=1",))
    table = train_sweep(short, tmp_path).table
    assert [(row.state, row.reason) for row in table.rows] == [("done", None)] * 2
    assert [row.columns[1].published for row in table.rows] == [66.48, 63.14]
    assert {row.folder for row in table.rows} == {"model"}


def test_heads_are_rows_of_one_training(tmp_path: Path) -> None:
    made = as_sweep("tora-table2", ["lambda=0.5"], SHORT, small=True, data="digits[:64]")
    table = train_sweep(made, tmp_path).table
    assert [row.values["head"] for row in table.rows] == ["acc", "rob", "joint"]
    assert {row.folder for row in table.rows} == {"lambda=0.5"}
    assert [row.columns[0].published for row in table.rows] == [83.38, 83.01, 83.66]
    names = [Run.open(tmp_path / "lambda=0.5" / f"test-{head}").manifest.head for head in ("acc", "rob", "joint")]
    assert names == ["acc", "rob", "joint"]


def test_gpu_hours_come_from_the_log_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = as_sweep("tora-table3", ["lambda=0.1", "tuning=tora"], SHORT, small=True, data="digits[:64]")
    (before,) = train_sweep(made, tmp_path).table.rows
    assert "GPU hours" not in values(list(before.columns)), "there is no GPU"
    run = tmp_path / "lambda=0.1,tuning=tora"
    monkeypatch.setattr(module, "ran_on_gpu", lambda run: True)
    (after,) = train_sweep(made, tmp_path).table.rows
    (hours,) = (one for one in after.columns if one.column == "GPU hours")
    logged = Run.open(run).read_log("step")[-1]["device_hours"]
    assert (hours.measure.value, hours.measure.kind, hours.published) == (logged, "hours", 19.82)


def differences(table: str, row: str, other: str, column: Callable[[PublishedAccuracy], float | None]) -> float:
    one, two = (column(SWEEPS[table].rows[(label,)]) for label in (row, other))
    assert one is not None
    assert two is not None
    return round(one - two, 2)


def test_numbers_agree_with_the_text_of_the_papers() -> None:
    def robust(row: PublishedAccuracy) -> float | None:
        return row.robust

    # Jain & Dutta, section 3: one factor gains up to 1.67 points of PGD-100; section 6.2, of AutoAttack: 3.47, PGD-AT,
    # 2.38 for TRADES + AWP on CIFAR-100, 1.38 and 1.29 for XCiT-S12, 1.76 and 1.41 for Mo et al.
    assert differences("jain2024-table1-cifar10", "1", "0.01", robust) == 1.67
    assert differences("jain2024-table5-cifar10", "PGD-AT + AAS-AT", "PGD-AT", robust) == 3.47
    assert differences("jain2024-table5-cifar10", "TRADES + AWP + AAS-AT", "TRADES + AWP", robust) == 1.7
    assert differences("jain2024-table5-cifar100", "TRADES + AWP + AAS-AT", "TRADES + AWP", robust) == 2.38
    assert differences("jain2024-table5-cifar100", "XCiT-S12 + AAS-AT", "XCiT-S12", robust) == 1.29
    assert differences("jain2024-table5-cifar10", "Mo et al. + AAS-AT", "Mo et al.", robust) == 1.76
    assert differences("jain2024-table5-cifar100", "Mo et al. + AAS-AT", "Mo et al.", robust) == 1.41
    assert differences("jain2024-table4", "TRADES + AAS-AT", "TRADES", robust) == 1.58
    # tables 1 to 3 are of one model
    for data in ("cifar10", "cifar100"):
        plain = SWEEPS[f"jain2024-table1-{data}"].rows[("1",)]
        assert plain == SWEEPS[f"jain2024-table2-{data}"].rows[("no attack",)]
        line = SWEEPS[f"jain2024-table3-{data}"].rows[("PGD-100",)]
        assert (line.clean, line.robust) == (plain.clean, plain.robust)
        lpips = SWEEPS[f"jain2024-table2-{data}"].rows[("LPIPS",)]
        assert (lpips.clean, lpips.robust) == (line.others["clean + AAS"], line.others["robust + AAS"])
    # Debenedetti, section 4.1.9: XCiT-M12 gains 1.7 and 3.46 over XCiT-S12
    assert differences("debenedetti2022-table6", "xcit-m12", "xcit-s12", lambda row: row.clean) == 1.7
    assert differences("debenedetti2022-table6", "xcit-m12", "xcit-s12", robust) == 3.46
    # rows of Wu's table 6 are those of tables 4 and 5
    sixth, fourth = SWEEPS["wu2025-table6-linf"].rows, SWEEPS["wu2025-table4"].rows
    assert sixth[("ViT-B/2, 6000 epochs",)] == fourth[("epochs: B/2, 6000 epochs",)]
    assert sixth[("WRN-28-10",)] == SWEEPS["wu2025-table5-wrn"].rows[("sgd",)]
