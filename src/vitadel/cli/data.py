"""`vitadel data`: describe, check and show data sets, and convert synthetic images for training."""

from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.help import Command, application
from vitadel.cli.options import DATA, OUTPUT, JsonOption, SeedOption, option

app = application("Describe, check, show and convert data.")

SpecArgument = Annotated[
    str,
    typer.Argument(
        help="digits, cifar10:DIR, imagenet:DIR, folder:DIR, ...; append [:n] for the first n images.", metavar="DATA"
    ),
]
PreprocessOption = Annotated[str, option("--preprocess", DATA, "HOW", "crop:SIZE[:RESIZE][:bicubic] or squash:SIZE.")]


@app.command(cls=Command)
def describe(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Describe a data set or a folder of shards (shards:DIR): classes, splits, hashes."""
    from vitadel import data

    if spec.startswith("shards:"):
        _show(spec, data.Shards.read(Path(spec.removeprefix("shards:")).expanduser()).describe(), json)
        return
    dataset = data.load(spec, preprocess=data.parse_preprocess(preprocess))
    if json:
        show.json_object(dataset.describe())
        return
    rows = [[name, str(len(split)), split.sha256[:16]] for name, split in dataset.splits.items()]
    show.table(f"{spec}: {dataset.num_classes} classes, {dataset.preprocess.name}", ["split", "images", "sha256"], rows)


@app.command(cls=Command)
def check(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Read every image and list missing and unreadable ones; exit code 2 if there are any.

    Also checks imagenet-c:DIR, cifar10-c:DIR and cifar100-c:DIR, whose files are counted but not decoded.
    """
    from vitadel.api.data import check_data
    from vitadel.core.errors import UsageError

    checked = check_data(spec, preprocess=preprocess)
    show.result(checked, as_json=json)
    if checked.problem:
        raise UsageError(checked.problem)


@app.command("show", cls=Command)
def show_pictures(
    spec: Annotated[str | None, typer.Argument(help="By default the recipe's data.", metavar="[DATA]")] = None,
    out: Annotated[Path, option("--out", OUTPUT, "FILE", "The .png file.")] = Path("augmentation.png"),
    recipe: Annotated[
        str | None, option("--recipe", DATA, "NAME", "Show the augmentation of a recipe from `vitadel recipes`.")
    ] = None,
    augmentation: Annotated[
        str | None,
        option(
            "--augmentation", DATA, "SET", "Augmentations in addition to crops and flips: base, mixup+erase, rand, ..."
        ),
    ] = None,
    alone: Annotated[
        bool | None,
        option("--alone/--together", DATA, None, "Show each transform alone, or all together as in training."),
    ] = None,
    images: Annotated[
        int | None, option("--images", OUTPUT, "N", "Number of images, one per row; by default 4, or 1 per transform.")
    ] = None,
    copies: Annotated[int, option("--copies", OUTPUT, "N", "Augmented copies of each image.")] = 4,
    split: Annotated[str, option("--split", DATA, "NAME", "Split to use: train, holdout or test.")] = "train",
    preprocess: Annotated[
        str | None, option("--preprocess", DATA, "HOW", "crop:SIZE[:RESIZE][:bicubic] or squash:SIZE.")
    ] = None,
    settings: Annotated[
        list[str] | None, option("--set", DATA, "PATH=VALUE", "A setting of the recipe to change; repeatable.")
    ] = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Draw training images before and after augmentation.

    Each transform is shown alone unless a recipe or a set of augmentations is named.
    """
    from vitadel.api.augmentation import show_data

    written = show_data(
        spec,
        out,
        recipe=recipe,
        augmentation=augmentation,
        alone=alone,
        images=images,
        copies=copies,
        split=split,
        preprocess=preprocess,
        overrides=settings or [],
        seed=seed,
    )
    if json:
        show.json_object({"file": str(written)})
    else:
        show.line(str(written))


@app.command(cls=Command)
def convert(
    archives: Annotated[list[Path], typer.Argument(help=".npz files with images and labels.", metavar="ARCHIVE...")],
    out: Annotated[Path, option("--out", OUTPUT, "DIR", "An empty folder for the shards.")],
    num_classes: Annotated[
        int | None, option("--num-classes", DATA, "N", "Number of classes; by default the highest label plus one.")
    ] = None,
    image_key: Annotated[str, option("--image-key", DATA, "KEY", "Key of the images, uint8 [N, H, W, 3].")] = "image",
    label_key: Annotated[str, option("--label-key", DATA, "KEY", "Key of the labels, integers [N].")] = "label",
    shard_images: Annotated[int, option("--shard-images", OUTPUT, "N", "Images per file.")] = 1_000_000,
    json: JsonOption = False,
) -> None:
    """Convert synthetic images from .npz archives into shards that training reads from disk."""
    from vitadel import data

    with show.progress(quiet=json) as notify:
        shards = data.convert(
            archives,
            out,
            image_key=image_key,
            label_key=label_key,
            num_classes=num_classes,
            shard_images=shard_images,
            notify=notify,
        )
    _show(str(out), shards.describe(), json)


def _show(title: str, described: dict[str, object], json: bool) -> None:
    if json:
        show.json_object(described)
    else:
        show.table(title, list(described), [[str(value) for value in described.values()]])
