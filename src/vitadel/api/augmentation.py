"""`vd.show_data`: draw training images before and after augmentation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from vitadel import data
from vitadel.api.arguments import check_types
from vitadel.api.data import as_preprocess, default_preprocess
from vitadel.api.train import as_recipe
from vitadel.core.errors import UsageError
from vitadel.core.files import printable
from vitadel.core.numeric import Range, check_number, check_seed
from vitadel.data import DataSet, Split
from vitadel.recipes import Recipe, override
from vitadel.recipes.axes import AXES
from vitadel.report import write_exhibit
from vitadel.runs.exhibits import Picture, Pictures
from vitadel.train import TrainingConfig, preview_batches, single_transform_configs

# the default: every transform of DeiT's training, each alone
_ALL = "mixup+cutmix+rand+erase"
_BASE = "xcit-n12-imagenet100"
_SHOWN_SHARE = 0.005  # labels with a smaller weight are not named
# rows or columns of one picture
_Shown = Annotated[int, Range(ge=1, top=1000)]


def show_data(
    spec: str | None = None,
    out: str | Path = "augmentation.png",
    *,
    recipe: str | Recipe | None = None,
    augmentation: str | None = None,
    alone: bool | None = None,
    images: int | None = None,
    copies: int = 4,
    split: str = "train",
    preprocess: str | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    seed: int = 0,
) -> Path:
    """Draw the first training images before and after augmentation, side by side in a PNG file.

    Args:
        spec: The data set; by default the recipe's.
        out: The file.
        recipe: The recipe whose augmentation is shown, or its name.
        augmentation: A set of augmentations in addition to the recipe's crops and flips, named as in
            `vitadel sweep --axis augmentation=...`: `base`, `mixup+erase`, ...
        alone: Show each transform alone, as in figures 8 to 10 of the thesis, instead of all together as in training;
            by default only if neither a recipe nor a set is given.
        images: Number of images, one per row; by default 4, or 1 per transform.
        copies: Augmented copies of each image: those of the first updates of a training run.
        split: The split to use: `train`, `holdout` or `test`.
        preprocess: As in `load_data`; by default the recipe's, or the default of the data set.
        overrides: Settings of the recipe to change.
        seed: Seed of the training run whose first updates are shown.

    Returns:
        The file.

    Raises:
        UsageError: If there is no such data set, recipe or set of augmentations, or nothing is augmented.

    Example:
        >>> show_data("digits", "mixed.png", augmentation="mixup+cutmix")
    """
    for name, count in (("images", 1 if images is None else images), ("copies", copies)):
        check_number(f"show_data({name}=)", _Shown, count)
    check_seed(seed)
    check_types(show_data, locals())
    if recipe is None and spec is None:
        raise UsageError("got neither a data set nor a recipe, so there is nothing to show. Give one, such as digits.")
    alone = recipe is None and augmentation is None if alone is None else alone
    parts = _parts(_augmented(recipe, augmentation, overrides), alone=alone)
    dataset = _load(spec, None if recipe is None else as_recipe(recipe), preprocess)
    shown = dataset.split(split)
    if len(shown) == 0:
        raise UsageError(f"the {split} split of {dataset.spec} is empty, so there is nothing to show. Choose another.")
    images = (1 if alone else 4) if images is None else images
    return write_exhibit(_pictures(dataset, shown, parts, images, copies, seed), Path(out))


def _augmented(
    recipe: str | Recipe | None, augmentation: str | None, overrides: Mapping[str, object] | Sequence[str]
) -> Recipe:
    chosen = as_recipe(_BASE if recipe is None else recipe)
    if augmentation is None and recipe is None:
        augmentation = _ALL
    if augmentation is not None:
        change = AXES["augmentation"]
        assert callable(change)
        chosen = change(chosen, augmentation)
    return override(chosen, overrides)


def _load(spec: str | None, recipe: Recipe | None, preprocess: str | None) -> DataSet:
    wanted = preprocess or (default_preprocess(spec or "") if recipe is None else recipe.preprocess)
    assert spec is not None or recipe is not None
    return data.load(spec or (recipe.data if recipe else ""), preprocess=as_preprocess(wanted))


def _parts(recipe: Recipe, *, alone: bool) -> dict[str, TrainingConfig]:
    """The configurations to show, by name: the whole augmentation with an empty name, or each of its transforms."""
    plan = recipe.plan
    if plan.pil_augment is None and plan.augment is None and plan.mixing is None:
        raise UsageError(
            f"{recipe.name} augments nothing, so there is nothing to show. Give a set, such as augmentation=mixup, or "
            "another recipe."
        )
    return single_transform_configs(plan) if alone else {"": plan}


def _pictures(
    dataset: DataSet, split: Split, parts: Mapping[str, TrainingConfig], images: int, copies: int, seed: int
) -> Pictures:
    count = min(images, len(split))
    # in a batch of odd size an image would be mixed with itself
    batch = min(count + count % 2, len(split))
    x = split.images(torch.arange(count))
    labels = split.labels[:count].tolist()
    classes = [printable(name) for name in dataset.classes]
    names = [classes[label] for label in labels]
    cells: list[list[Picture]] = []
    for plan in parts.values():
        made = list(preview_batches(split, plan, batch, dataset.num_classes, steps=copies, seed=seed))
        for row in range(count):
            after = [
                Picture.of(pixels[row].numpy(), note=_mixed_with(classes, y[row], labels[row])) for pixels, y in made
            ]
            cells.append([Picture.of(x[row].numpy()), *after])
    return Pictures(
        "Augmentation",
        "Training images before and after augmentation.",
        cells,
        [f"{part}: {name}" if part else name for part in parts for name in names],
        ["original", *(f"update {step + 1}" for step in range(copies))],
    )


def _mixed_with(classes: Sequence[str], y: Tensor, label: int) -> str:
    """The weights of other classes in the label of a mixed image; empty if it was not mixed."""
    if y.ndim == 0:
        return ""
    named = [(float(share), name) for share, name in zip(y, classes, strict=True)]
    others = [f"{share:.0%} {name}" for share, name in (*named[:label], *named[label + 1 :]) if share > _SHOWN_SHARE]
    return ", ".join(others)
