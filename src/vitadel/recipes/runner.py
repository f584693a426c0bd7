"""From a recipe to a trained model in a run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from vitadel import data, models
from vitadel.core.device import device_name
from vitadel.core.errors import UsageError
from vitadel.core.progress import DeferredProgress, ProgressCallback, silent
from vitadel.data import DataSet, Shards, Split
from vitadel.evaluate import validation_scores
from vitadel.recipes.overrides import override
from vitadel.recipes.recipe import Normalize, Recipe
from vitadel.runs import Run, code_hashes
from vitadel.train import Synthetic, Trainer, Validate, launch_ranks, set_up

# what decides a run's weights, apart from the recipe
TRAINING_PACKAGES = ("attacks", "core", "data", "goals", "losses", "models", "objectives", "threats", "train")


def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    data_spec: str | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    notify: ProgressCallback = silent,
    command: str | None = None,
) -> models.Model:
    """Train a recipe into a run folder, or resume the run that is in it.

    Args:
        recipe: What to train.
        folder: The run folder; one of another run is refused.
        data_spec: A data set in place of the recipe's.
        overrides: Settings to change.
        notify: Reports progress.
        command: What the manifest records as the command.

    Returns:
        The model to evaluate: the best checkpoint by the hold-out, or the last weights without one.
    """
    deferred = DeferredProgress(notify)
    recipe, ranks = override(recipe, overrides, notify=deferred), launch_ranks()
    dataset = data.load(
        data_spec or recipe.data,
        preprocess=data.parse_preprocess(recipe.preprocess),
        holdout=recipe.selection.holds_out,
    )
    train = _train(recipe, dataset)
    synthetic = _synthetic(recipe, dataset)
    start = _start(recipe, dataset)
    parts: dict[str, object] = {"recipe": recipe, "data": dataset.describe(), "seed": recipe.seed}
    if not recipe.model.start.startswith(("timm:", "vitadel:")) or "@" in recipe.model.start:
        parts["start"] = models.weights_sha256(start.net.state_dict())
    if synthetic is not None:
        parts["synthetic"] = synthetic.images.describe()
    # a run resumed with other code would be neither the old run nor the new one
    parts["code"] = code_hashes(*TRAINING_PACKAGES)
    # what cannot be trained or selected is refused before the folder is claimed
    validate = _validate(recipe, dataset)
    set_up(start, recipe.objective, train, recipe.plan, synthetic, seed=recipe.seed)
    run = Run.claim(folder, "train", parts, device=device_name(), ranks=ranks, command=command)
    deferred.release()
    trainer = Trainer(
        start,
        recipe.objective,
        train,
        recipe.plan,
        run,
        seed=recipe.seed,
        synthetic=synthetic,
        validate=validate,
        notify=notify,
    )
    model = trainer.fit()
    best = run.checkpoints / "best.safetensors"
    return models.load(best) if best.exists() else model


def _train(recipe: Recipe, dataset: DataSet) -> Split:
    """The training images, in memory if they are small; crops of the original files need the files."""
    pil_augment = recipe.plan.pil_augment
    split = dataset.split("train")
    return split if pil_augment is not None and pil_augment.resized_crop else split.load_if_small()


def _synthetic(recipe: Recipe, dataset: DataSet) -> Synthetic | None:
    if recipe.synthetic is None:
        return None
    shards = Shards.read(Path(recipe.synthetic.folder))
    if shards.num_classes > dataset.num_classes:
        raise UsageError(
            f"the synthetic images in {recipe.synthetic.folder} have {shards.num_classes} classes, the real ones "
            f"{dataset.num_classes}. Convert an archive for this data set."
        )
    return Synthetic(shards, recipe.synthetic.share)


def _start(recipe: Recipe, dataset: DataSet) -> models.Model:
    choice = recipe.model
    normalization = {
        Normalize.MODEL: None,
        Normalize.DATA: models.Normalization(dataset.mean, dataset.std),
        Normalize.NONE: models.RAW_PIXELS,
        Normalize.HALF: models.Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    }[choice.normalize]
    start = models.load(
        choice.start,
        num_classes=dataset.num_classes if choice.tuning is None else None,  # a frozen network keeps its own
        image_size=choice.image_size,
        patch_size=choice.patch_size,
        normalization=normalization,
        options=choice.options or None,
        seed=recipe.seed,
    )
    if choice.tuning is None:
        return start
    return models.tora(start, choice.tuning, num_classes=dataset.num_classes, seed=recipe.seed)


def _validate(recipe: Recipe, dataset: DataSet) -> Validate | None:
    """The score that selects the checkpoint; none if the hold-out is off or the data set is too small for one."""
    selection = recipe.selection
    if selection.split == "none" or (selection.holds_out and dataset.holdout is None):
        return None
    images = dataset.split(selection.split)
    chosen = images.take(torch.arange(min(selection.images, len(images))))

    def validate(model: nn.Module) -> Mapping[str, float]:
        scores = validation_scores(model, chosen, selection.attack, selection.threat, seed=recipe.seed)
        if not selection.clean_share:
            return scores
        robust = scores.get("robust", scores["clean"])
        return {**scores, "score": robust + selection.clean_share * (scores["clean"] - robust)}

    return validate
