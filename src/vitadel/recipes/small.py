"""A table at a scale that one GPU does in an hour: smaller models, CIFAR, fewer epochs; on digits, seconds for tests.

What a table varies stays: optimizer, weight decay, augmentation, loss, warm-up as a share of training, the ratio of the
epochs of its rows. Model, images, batch and length become small, and generated images are left out. All of the values
below are our choice.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitadel.core.errors import UsageError, spelled, unknown_name_error
from vitadel.models import Option
from vitadel.objectives import ARDPRM, AWP, AttentionScaling, Objective
from vitadel.recipes.cifar10 import cifar10_vit_tiny_short
from vitadel.recipes.columns import OWN_IMAGES, Column
from vitadel.recipes.digits import digits_class_token
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe
from vitadel.recipes.tora import cifar10_vit_tiny_standard_short
from vitadel.train import Compile, PadCrop, Precision, TrainingConfig

# what the network of a row starts from is trained first, into this folder of the sweep
START = "start"
# corruptions need images of this side
_SMALLEST_CORRUPTED = 16
# a share of training; in proportion, 5 of 2000 epochs would be less than an update
_SHORTEST_WARMUP = 0.05
_MODEL = re.compile(r"(?:timm|vitadel):(?P<name>\w+)")

# what a name of timm says of patches and images, which are others here
_SIZES = re.compile(r"(_patch\d+|_p\d+)?_\d+$")


@dataclass(frozen=True, slots=True)
class _Architecture:
    """The replacement of an architecture at small scale.

    Args:
        prefix: The beginning of the architecture's name.
        start: The small model; empty for the architecture itself.
        patch_size: The side of its patches.
        options: Its options.
        cost: The time of a pass, relative to that of ViT-Tiny/4; an estimate.
    """

    prefix: str
    start: str
    patch_size: int | None
    options: Mapping[str, Option]
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class SmallScale:
    """A scale.

    Args:
        name: What rows are labeled with.
        data: The data set.
        on_gpu: Whether it trains in bf16, compiled and with augmentation.
        image_size: The side of its images.
        test_images: How many of its test images are evaluated.
        passes: Epochs times forward passes of an image that all rows of a table have together; decides the epochs.
        longest: The most epochs.
        batch_size: Images of a batch.
        architectures: The replacements of the models of the papers; the first whose prefix fits.
        reduction: By how much the adapters are narrower than the network.
    """

    name: str
    data: str
    on_gpu: bool
    image_size: int
    test_images: int | None
    passes: float
    longest: int
    batch_size: int
    architectures: tuple[_Architecture, ...]
    reduction: int

    def epochs(self, plain: Recipe, rows: Sequence[Recipe]) -> int:
        """The epochs of a table's recipe, so that all its rows take the hour together."""
        lengths = (one.plan.epochs / plain.plan.epochs for one in rows)
        costs = (self.cost(one) * one.objective.passes for one in rows)
        whole = sum(length * cost for length, cost in zip(lengths, costs, strict=True))
        return max(1, min(self.longest, int(self.passes / whole)))

    def cost(self, recipe: Recipe) -> float:
        """The time of a pass through the recipe's model at this scale, relative to that of ViT-Tiny/4."""
        return 1.0 if recipe.model.tuning is not None else self._architecture(recipe).cost

    def starting_recipe(self, recipe: Recipe) -> Recipe | None:
        """What trains the network that a recipe freezes; None for one that trains the whole network."""
        if recipe.model.tuning is None:
            return None
        if self.on_gpu:
            return cifar10_vit_tiny_standard_short()
        recipe = digits_class_token()
        return replace(recipe, plan=replace(recipe.plan, epochs=1, warmup_epochs=0.0))

    def apply(self, recipe: Recipe, plain: Recipe, epochs: int, *, synthetic: bool = False) -> Recipe:
        """A recipe at this scale.

        Args:
            recipe: The recipe of a row.
            plain: The recipe of the table, whose length the length of the row is relative to.
            epochs: What the length of `plain` becomes.
            synthetic: Whether generated images stay, because the table varies their share.
        """
        length = max(1, round(epochs * recipe.plan.epochs / plain.plan.epochs))
        ratio = length / recipe.plan.epochs
        return replace(
            recipe,
            model=self._model(recipe),
            data=self.data,
            preprocess=f"squash:{self.image_size}",
            objective=shortened_objective(recipe.objective, ratio) if self.on_gpu else recipe.objective,
            plan=self._plan(recipe, length, ratio),
            synthetic=recipe.synthetic if synthetic else None,
            selection=replace(recipe.selection, images=min(recipe.selection.images, self.test_images or 64)),
            expect={},
        )

    def columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns that these images allow: without those of ImageNet's classes, and accuracy in place of mCE."""
        without = {*OWN_IMAGES, *(() if self.image_size >= _SMALLEST_CORRUPTED else ("corruptions",))}
        kept = (column for column in columns if column.suite.name not in without)
        return tuple(
            replace(one, name=f"{one.name} accuracy", measure="") if one.measure == "mCE" else one for one in kept
        )

    def test_data(self, given: Sequence[str]) -> tuple[str, ...]:
        """The given test images, or else the first ones of the data set."""
        if given or self.test_images is None or self.data.endswith("]"):
            return tuple(given)
        return (f"{self.data}[:{self.test_images}]",)

    def label(self, recipe: Recipe) -> str:
        """What a row says of its scale."""
        name = "adapters" if recipe.model.tuning is not None else _SIZES.sub("", recipe.model.start.rpartition(":")[2])
        patches = f"/{recipe.model.patch_size}" if recipe.model.patch_size else ""
        epochs = recipe.plan.epochs
        length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
        return f"{self.name}: {name}{patches}, {self.kind}, {length}"

    @property
    def kind(self) -> str:
        """The kind of its data set."""
        return re.split("[:@[]", self.data, maxsplit=1)[0]

    def _model(self, recipe: Recipe) -> ModelConfig:
        choice = recipe.model
        if choice.tuning is not None:
            start = self.starting_recipe(recipe)
            assert start is not None
            tuning = (
                choice.tuning if choice.tuning.tuning == "head" else replace(choice.tuning, reduction=self.reduction)
            )
            return replace(start.model, start=START, options={}, tuning=tuning)
        chosen = self._architecture(recipe)
        options = {**choice.options, **chosen.options} if chosen.patch_size else dict(chosen.options)
        return ModelConfig(chosen.start or choice.start, self.image_size, chosen.patch_size, Normalize.DATA, options)

    def _architecture(self, recipe: Recipe) -> _Architecture:
        """The replacement of the architecture of a recipe."""
        start = recipe.model.start
        found = _MODEL.match(start)
        name = found["name"] if found else start.rpartition("/")[2]  # runs are called as the recipes of this project
        chosen = next((one for one in self.architectures if name.startswith(one.prefix)), None)
        if chosen is None:
            raise UsageError(
                f"{spelled('small')} knows no small model for {start!r} of {recipe.name}. Train it without."
            )
        return chosen

    def _plan(self, recipe: Recipe, epochs: int, ratio: float) -> TrainingConfig:
        """A short plan: warm-ups in proportion, an average that is not longer than the training."""
        plan, on_gpu = recipe.plan, self.on_gpu
        # taps of a compiled block never fire; the factors of AAS-AT are applied by taps too
        fast = on_gpu and not recipe.objective.uses_taps
        compiled = fast and not isinstance(recipe.objective, AttentionScaling)
        host = None if plan.pil_augment is None else replace(plan.pil_augment, resized_crop=False)
        return replace(
            plan,
            epochs=epochs,
            batch_size=self.batch_size,
            warmup_epochs=max(plan.warmup_epochs * ratio, _SHORTEST_WARMUP * epochs) if plan.warmup_epochs else 0.0,
            cooldown_epochs=0,
            decay_epochs=None if plan.decay_epochs is None else plan.decay_epochs * ratio,
            ema=None if plan.ema is None else 0.995,
            ema_batch_size=None,
            ema_warmup=plan.ema is not None,
            precision=Precision.BF16 if on_gpu else Precision.FLOAT32,
            compile=Compile.BLOCKS if compiled else Compile.OFF,
            attack_model=fast,
            grad_accum_steps=1,
            grad_checkpointing=False,
            shard=False,
            augment=plan.augment or PadCrop(pad=4, fill=0.5) if on_gpu else None,
            pil_augment=host,
            num_workers=plan.num_workers if on_gpu else 0,
            repeats=1,
            validate_every_epochs=max(1, min(plan.validate_every_epochs, epochs // 4)),
            checkpoint_every_steps=500,
            log_every_steps=50,
        )


def shortened_objective(objective: Objective, ratio: float) -> Objective:
    """What an objective counts in epochs, in proportion to the length of the training."""
    changed: dict[str, Any] = {}
    if isinstance(objective, AttentionScaling):
        # a search takes updates from the training: as many as in the other short recipe
        changed = {"period": max(1, round(objective.period * ratio)), "batches": 16}
    elif isinstance(objective, AWP):
        changed = {"start": int(objective.start * ratio)}
    elif isinstance(objective, ARDPRM):
        changed = {"warmup_epochs": objective.warmup_epochs * ratio}
    inner = getattr(objective, "inner", None)
    if inner is not None:
        changed["inner"] = shortened_objective(inner, ratio)
    return replace(objective, **changed) if changed else objective  # type: ignore[type-var]


def small_scale(data: str | None, recipe: Recipe) -> SmallScale:
    """The scale for a data set; by default CIFAR-10, or the CIFAR of the recipe.

    Raises:
        UsageError: If there is no scale for this kind of data.
    """
    usual = recipe.data if recipe.data.startswith("cifar") else cifar10_vit_tiny_short().data
    spec = data or usual
    kind = re.split(r"[:@[]", spec, maxsplit=1)[0]
    if kind not in _SCALES:
        raise unknown_name_error(f"data set of {spelled('small')}", kind, _SCALES)
    return replace(_SCALES[kind], data=spec)


# cifar10-vit-tiny-short makes 60 epochs of 7 passes in 7 minutes of one H200; here 50 minutes, the rest evaluates
_HOUR = (60 * 7) / 7 * 50

_ON_CIFAR = (
    _Architecture("deit", "timm:deit_tiny_patch16_224", 4, {}),
    _Architecture("cait", "timm:cait_xxs24_224", 4, {"depth": 12}),
    _Architecture("xcit_nano", "timm:xcit_nano_12_p16_224", 4, {}),
    # 192, 256 and 384 wide, as XCiT-S12, M12 and L12 are 384, 512 and 768
    _Architecture("xcit_medium", "timm:xcit_tiny_12_p16_224", 4, {"embed_dim": 256}, cost=1.7),
    _Architecture("xcit_large", "timm:xcit_tiny_12_p16_224", 4, {"embed_dim": 384, "num_heads": 8}, cost=3.5),
    _Architecture("xcit", "timm:xcit_tiny_12_p16_224", 4, {}),
    _Architecture("vit_large", "timm:vit_small_patch16_224", 4, {}, cost=2.5),
    _Architecture("vit", "timm:vit_tiny_patch16_224", 4, {}),
    _Architecture("wrn70", "vitadel:wrn34_10", None, {"act_layer": "silu"}, cost=13),
    _Architecture("wrn", "", None, {}, cost=10),
    _Architecture("resnet50_gelu", "timm:resnet18", None, {"act_layer": "gelu"}),
    _Architecture("resnet", "timm:resnet18", None, {}),
)

_TINY: Mapping[str, Option] = {"depth": 1, "embed_dim": 48, "num_heads": 3}
_ON_DIGITS = (
    _Architecture("deit", "timm:deit_tiny_patch16_224", 2, _TINY),
    _Architecture("cait", "timm:cait_xxs24_224", 2, _TINY),
    _Architecture("xcit_medium", "timm:xcit_nano_12_p16_224", 4, {**_TINY, "cls_attn_layers": 1, "embed_dim": 60}),
    _Architecture("xcit_large", "timm:xcit_nano_12_p16_224", 4, {**_TINY, "cls_attn_layers": 1, "embed_dim": 96}),
    _Architecture("xcit", "timm:xcit_nano_12_p16_224", 4, {**_TINY, "cls_attn_layers": 1}),
    _Architecture("vit_large", "timm:vit_tiny_patch16_224", 2, {**_TINY, "depth": 2}),
    _Architecture("vit", "timm:vit_tiny_patch16_224", 2, _TINY),
    _Architecture("wrn70", "timm:test_resnet", None, {}),
    _Architecture("wrn", "timm:test_resnet", None, {"act_layer": "silu"}),
    _Architecture("resnet50_gelu", "timm:test_resnet", None, {"act_layer": "gelu"}),
    _Architecture("resnet", "timm:test_resnet", None, {}),
)

_CIFAR = SmallScale("small", "", True, 32, 1000, _HOUR, 30, 512, _ON_CIFAR, reduction=4)
_SCALES: Mapping[str, SmallScale] = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "folder": _CIFAR,
    "digits": SmallScale("smallest", "", False, 8, None, 0.0, 1, 32, _ON_DIGITS, reduction=2),
}
