"""TORA's recipes: the paper's numbers, baselines that differ in what is added, and a backbone from a run folder."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitadel import models
from vitadel.core.errors import UsageError
from vitadel.models import AdaptedViT, AdapterConfig, read_tensors
from vitadel.objectives import Standard, TORATraining
from vitadel.recipes import RECIPES, Recipe, override, train_recipe
from vitadel.recipes.published_tables import SWEEPS
from vitadel.recipes.sweep import Axis, Sweep, run_sweep
from vitadel.train import TrainingConfig, loop

_ADAPTED = [name for name, make in RECIPES.items() if make().model.tuning is not None]
SHORT = ("plan.epochs=2", "plan.warmup_epochs=0", "selection.images=8")
DATA = "digits[:64]"


def objective(recipe: Recipe) -> TORATraining:
    assert isinstance(recipe.objective, TORATraining)
    return recipe.objective


@pytest.mark.parametrize("name", _ADAPTED)
def test_settings_of_all_recipes_match(name: str) -> None:
    recipe = RECIPES[name]()
    assert objective(recipe).weight == 0.5
    single = recipe.model.tuning is not None and recipe.model.tuning.tuning == "single"
    assert objective(recipe).independent == (0.0 if single else 0.5)
    attack, eps = objective(recipe).attack, objective(recipe).threat.eps
    assert (getattr(attack, "steps", 0), getattr(attack, "step_size", 0)) == (3, pytest.approx(2 * eps / 3))
    # selection by robustness among weights of both phases would prefer those before lambda applies
    assert recipe.plan.validate_every_epochs == recipe.plan.total_epochs
    assert recipe.plan.ema is None


@pytest.mark.parametrize(
    ("name", "base", "tuning"),
    [
        (f"{kind}-vit-b16-imagenet", "tora-vit-b16-imagenet", tuning)
        for kind, tuning in [
            ("head-only", AdapterConfig(tuning="head")),
            ("single-adapter", AdapterConfig(tuning="single")),
            ("adapter-fusion", AdapterConfig(gate="per-token")),
        ]
    ]
    + [
        (f"cifar10-{kind}-short", "cifar10-tora-short", tuning)
        for kind, tuning in [
            ("head-only", AdapterConfig(tuning="head")),
            ("single-adapter", AdapterConfig(tuning="single", reduction=4)),
            ("adapter-fusion", AdapterConfig(gate="per-token", reduction=4)),
        ]
    ],
)
def test_baselines_get_the_same_updates(name: str, base: str, tuning: AdapterConfig) -> None:
    one, other = RECIPES[base](), RECIPES[name]()
    assert other.model == replace(one.model, tuning=tuning)
    assert replace(objective(other), independent=0.5) == objective(one)
    assert (other.plan, other.data, other.preprocess, other.selection, other.seed) == (
        *(one.plan, one.data, one.preprocess, one.selection, one.seed),
    )


def test_radii_and_phases() -> None:
    small, usual = RECIPES["tora-vit-b16-imagenet"](), RECIPES["tora-vit-b16-imagenet-eps4"]()
    assert [objective(one).threat.eps for one in (small, usual)] == [1 / 255, 4 / 255]
    assert small.model.tuning == AdapterConfig()
    assert small.plan.epochs == 20
    assert small.plan.peak_lr == 1e-3
    assert objective(small).passes == 7.5
    assert objective(RECIPES["single-adapter-vit-b16-imagenet"]()).passes == 10
    assert isinstance(RECIPES["cifar10-vit-tiny-imagenet-finetune"]().objective, Standard)
    assert RECIPES["cifar10-tora-short"]().model.start == "zoo:cifar10-vit-tiny-finetuned"
    assert RECIPES["digits-tora"]().model.start == "runs/digits-class-token"


def test_imagenet_weights_are_resampled_fine_tuned_and_frozen(tmp_path: Path) -> None:
    """Patches of 16 at 224 px become patches of 4 at 32 px, and adapters are trained beside the result."""
    name, options = "timm:vit_tiny_patch16_224", {"depth": 2, "embed_dim": 12, "num_heads": 2}
    published = models.load(name, num_classes=1000, options=options, seed=1)
    file = tmp_path / "vit_tiny_patch16_224.safetensors"
    save_file(published.net.state_dict(), file)
    recipe = RECIPES["cifar10-vit-tiny-imagenet-finetune"]()
    assert recipe.model.start == f"{name}@{file.name}"
    recipe = replace(recipe, model=replace(recipe.model, start=f"{name}@{file}", options=options))
    toy = [*SHORT, "plan.batch_size=8", "plan.compile=off", "plan.precision=float32"]
    tuned = train_recipe(override(recipe, toy), tmp_path / "backbone", data_spec="digits[:16]")
    assert tuned.spec is not None
    assert (tuned.spec.image_size, tuned.spec.patch_size, tuned.spec.normalization) == (32, 4, published.normalization)
    assert tuned(torch.rand(1, 3, 32, 32)).shape == (1, 10)
    tora = override(
        RECIPES["cifar10-tora-short"](),
        [*toy, f"model.start={tmp_path / 'backbone'}", "model.tuning.reduction=2", "plan.validate_every_epochs=2"],
    )
    adapted = train_recipe(tora, tmp_path / "tora", data_spec="digits[:16]")
    assert isinstance(adapted.net, AdaptedViT)
    frozen = adapted.net.backbone.state_dict()
    assert all(torch.equal(frozen[key], weights) for key, weights in tuned.net.state_dict().items())


def test_multiply_accumulates_are_those_of_the_page() -> None:
    """The slides print 17.6, 17.8, 24.9 and 26.0 GMAC; one product of scores serves both adapters here."""
    page = (Path(__file__).parents[3] / "docs" / "tora.md").read_text()
    backbone = models.load("timm:vit_base_patch16_224")
    for tuning, counted in (
        (AdapterConfig(tuning="head"), "17.57 for new heads only (17.6)"),
        (AdapterConfig(tuning="single"), "17.74 for a single adapter (17.8)"),
        (AdapterConfig(gate="per-token"), "24.89 for AdapterFusion"),
        (AdapterConfig(), "25.60 for TORA (26.0)"),
    ):
        assert f"{models.cost(models.tora(backbone, tuning), 224).macs / 1e9:.2f}" == counted.split()[0]
        assert counted in page


def test_published_numbers_agree_with_each_other() -> None:
    by_lambda, by_tuning = (SWEEPS[name].rows for name in ("tora-table2", "tora-table3"))
    for weight in ("0.1", "0.9"):
        published = by_lambda[weight, "joint"]
        assert published.clean is not None
        assert published.robust is not None
        rounded = (round(published.clean, 1), round(published.robust, 1))
        row = by_tuning[weight, "tora"]
        assert rounded == (row.clean, row.robust)
    curve = [by_lambda[weight, "joint"] for weight in ("0.1", "0.3", "0.5", "0.7", "0.9")]
    # the robust head is at most a point less accurate than the accurate one, and one to four more robust
    for weight in ("0.1", "0.3", "0.5", "0.7", "0.9"):
        acc, rob = by_lambda[weight, "acc"], by_lambda[weight, "rob"]
        assert 0 < acc.clean - rob.clean < 1  # type: ignore[operator]
        assert 1 < rob.robust - acc.robust < 4  # type: ignore[operator]
    assert [one.clean for one in curve] == sorted([one.clean for one in curve], reverse=True)  # type: ignore[type-var]
    assert [one.robust for one in curve] == sorted(one.robust for one in curve)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("table", "labels", "name"),
    [
        ("tora-table3", ("0.1", "head only"), "head-only-vit-b16-imagenet"),
        ("tora-table3", ("0.9", "single adapter"), "single-adapter-vit-b16-imagenet"),
        ("tora-table3", ("0.1", "adapter fusion"), "adapter-fusion-vit-b16-imagenet"),
        ("tora-table1", ("0.9",), "tora-vit-b16-imagenet"),
    ],
)
def test_rows_of_the_tables_are_the_recipes(table: str, labels: tuple[str, ...], name: str) -> None:
    published = SWEEPS[table]
    sweep = Sweep(RECIPES[published.recipe](), published.axes, settings=published.settings)
    member = next(member for member in sweep.combinations() if member.labels == labels)
    weight = float(labels[0])
    wanted = RECIPES[name]()
    assert member.recipe.model == wanted.model
    assert member.recipe.objective == replace(objective(wanted), weight=weight)
    assert member.recipe.plan == wanted.plan


def test_settings_apply_to_the_added_parts() -> None:
    recipe = override(RECIPES["tora-vit-b16-imagenet"](), ["model.tuning.reduction=8", "objective.weight=0.9"])
    assert recipe.model.tuning == AdapterConfig(reduction=8)
    assert objective(recipe).weight == 0.9
    # a recipe without adapters gets some
    plain = override(RECIPES["digits-class-token"](), ["model.tuning.tuning=single"])
    assert plain.model.tuning == AdapterConfig(tuning="single")
    assert override(recipe, ["model.tuning=null"]).model.tuning is None
    with pytest.raises(UsageError, match=r"TORATraining.weight must lie in \[0, 1\], got 1.5"):
        override(recipe, ["objective.weight=1.5"])
    with pytest.raises(UsageError, match="unknown AdapterConfig.gate 'per-tokn'"):
        override(recipe, ["model.tuning.gate=per-tokn"])


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits-class-token"
    train_recipe(override(RECIPES["digits-class-token"](), [*SHORT, "plan.epochs=1"]), folder, data_spec=DATA)
    return folder


def test_from_a_run_folder_to_adapters(backbone: Path, tmp_path: Path) -> None:
    recipe = override(RECIPES["digits-tora"](), [*SHORT, f"model.start={backbone}", "objective.weight=0.9"])
    model = train_recipe(recipe, tmp_path / "run", data_spec=DATA)
    assert model.spec is not None
    assert model.spec.tuning == AdapterConfig(reduction=2)
    state, _ = read_tensors(tmp_path / "run" / "checkpoints" / "final.safetensors")
    before = models.load(backbone).net.state_dict()
    assert all(torch.equal(state[f"backbone.{name}"], value) for name, value in before.items())
    assert isinstance(model.net, AdaptedViT)
    # and as a small file beside the backbone's
    models.save_adapters(model, tmp_path / "adapters.safetensors")
    again = models.load(f"{backbone}+{tmp_path / 'adapters.safetensors'}#rob")
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(again(x), models.with_head(model.eval(), "rob")(x))


def test_every_stage_has_its_own_record(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An objective that delegates to its two parts gives the same weights, if each update calls the right one."""
    recipe = override(RECIPES["digits-tora"](), [*SHORT, f"model.start={backbone}"])
    train_recipe(recipe, tmp_path / "plain", data_spec=DATA)
    captured: list[str] = []

    class Capturing:
        def __init__(self, net: nn.Module, compute: Callable[..., Mapping[str, Tensor]]) -> None:
            self.compute, self.logs = compute, ""

        def __call__(self, *tensors: Tensor) -> Mapping[str, Tensor]:
            logs = self.compute(*tensors)
            if not self.logs:
                self.logs = ",".join(name.partition("_")[0] for name in logs if name.endswith("_loss"))
                captured.append(self.logs)
            return logs

    monkeypatch.setattr(TrainingConfig, "supports_cuda_graphs", lambda config, device: True)
    monkeypatch.setattr(loop, "GraphedBackward", Capturing)
    train_recipe(recipe, tmp_path / "recorded", data_spec=DATA)
    assert captured == ["adversarial", "clean", "clean,adversarial"]
    plain, recorded = (
        read_tensors(tmp_path / name / "checkpoints" / "final.safetensors")[0] for name in ("plain", "recorded")
    )
    assert all(torch.equal(recorded[name], value) for name, value in plain.items())


def test_the_frozen_network_keeps_its_classes(backbone: Path, tmp_path: Path) -> None:
    """On data with other classes the new heads are fresh, and the old one is still that of the old data."""
    other = models.load(backbone, num_classes=7)
    models.save(other, tmp_path / "seven.safetensors")
    recipe = override(RECIPES["digits-tora"](), [*SHORT, f"model.start={tmp_path / 'seven.safetensors'}"])
    model = train_recipe(recipe, tmp_path / "run", data_spec=DATA)
    assert model.spec is not None
    assert (model.spec.num_classes, model.spec.kept_classes) == (10, 7)
    assert torch.equal(model.net.get_parameter("backbone.head.weight"), other.net.get_parameter("head.weight"))


def test_a_curve_over_lambda(backbone: Path, tmp_path: Path) -> None:
    sweep = Sweep(
        RECIPES["digits-tora"](),
        (Axis.read("lambda=0.1,0.9"),),
        settings=(*SHORT, f"model.start={backbone}"),
        data=DATA,
    )
    assert [objective(member.recipe).weight for member in sweep.combinations()] == [0.1, 0.9]
    table = run_sweep(sweep, tmp_path / "sweep")
    rows = table.rows
    assert [(row.name, row.state) for row in rows] == [("lambda=0.1", "done"), ("lambda=0.9", "done")]
    one, other = (read_tensors(tmp_path / "sweep" / row.name / "checkpoints/final.safetensors")[0] for row in rows)
    # lambda applies in phase 2 alone, which trains the fusion
    assert {name.split(".")[0] for name in one if not torch.equal(one[name], other[name])} == {"fusions"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.tuning=null"], "has none. Set model.tuning.tuning=tora"),
        (["model.tuning.tuning=single"], "Set objective.independent=0"),
        (["model.tuning.head=acc"], "the output of this model is its head 'acc'"),
        (["model.start=timm:xcit_nano_12_p16_224"], "adapters are for timm's ViT and DeiT, got Xcit"),
        (["model.start=nowhere"], "'nowhere' is not a model"),
    ],
)
def test_invalid_settings_are_refused(backbone: Path, tmp_path: Path, settings: list[str], message: str) -> None:
    recipe = override(RECIPES["digits-tora"](), [*SHORT, f"model.start={backbone}", *settings])
    with pytest.raises(UsageError, match=message):
        train_recipe(recipe, tmp_path / "run", data_spec=DATA)
