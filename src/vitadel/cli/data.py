"""`vitadel data`: look at data before trusting it, and bring it into the form that training reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption

# entries of a kind, such as missing ones, that are printed
_TOLD = 20

app = typer.Typer(help="Describe, check and convert data.", no_args_is_help=True)

SpecArgument = Annotated[str, typer.Argument(help="digits, cifar10:DIR, folder:DIR, ...; [:n] takes the first n")]
PreprocessOption = Annotated[str, typer.Option("--preprocess", help="crop:SIZE[:RESIZE][:bicubic] or squash:SIZE")]


@app.command()
def describe(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Say what a data set, or shards:DIR, is: classes, splits, hashes."""
    from vitadel import data

    if spec.startswith("shards:"):
        _tell(spec, data.Shards.read(Path(spec.removeprefix("shards:")).expanduser()).describe(), json)
        return
    dataset = data.load(spec, preprocess=data.parse_preprocess(preprocess))
    if json:
        show.as_json(dataset.describe())
        return
    rows = [[name, str(len(split)), split.sha256[:16]] for name, split in dataset.splits.items()]
    show.table(f"{spec}: {dataset.num_classes} classes, {dataset.preprocess.name}", ["split", "images", "sha256"], rows)


@app.command()
def check(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Read every image once and say what is missing of a released data set; exit code 2 if anything is wrong.

    imagenet-c:DIR, cifar10-c:DIR and cifar100-c:DIR are checked too: counted, not decoded.
    """
    from vitadel import data
    from vitadel.core.errors import UsageError

    kind, _, folder = spec.partition(":")
    if kind in data.CORRUPTED:
        _check_corrupted(kind, Path(folder).expanduser(), json)
        return
    dataset = data.load(spec, preprocess=data.parse_preprocess(preprocess))
    found, missing = data.check(dataset), data.missing(dataset)
    if json:
        bad = [{"split": item.split, "id": item.id, "reason": item.reason} for item in found.unreadable]
        show.as_json({"counts": found.counts, "unreadable": bad, "missing": list(missing)})
    else:
        rows = [
            [name, str(sum(counts.values())), str(min(counts.values())), str(max(counts.values()))]
            for name, counts in found.counts.items()
        ]
        show.table(spec, ["split", "images", "fewest per class", "most per class"], rows)
    if found.unreadable:
        first = found.unreadable[0]
        if not json:
            _tell_some("cannot be read", [one.id for one in found.unreadable])
        raise UsageError(f"{len(found.unreadable)} images cannot be read, the first is {first.id} ({first.reason}).")
    _tell_missing(spec, missing, json)


def _check_corrupted(kind: str, folder: Path, json: bool) -> None:
    from vitadel import data
    from vitadel.shifts import CORRUPTIONS

    missing = data.missing_corrupted(kind, folder, list(CORRUPTIONS))
    if json:
        show.as_json({"missing": list(missing)})
    _tell_missing(f"{kind}:{folder}", missing, json)
    if not json:
        show.line(f"{kind}:{folder}: nothing is missing")


def _tell_missing(spec: str, missing: Sequence[str], json: bool) -> None:
    from vitadel.core.errors import UsageError

    if not missing:
        return
    if not json:
        _tell_some("missing", missing)
    raise UsageError(f"{spec} is not complete: {len(missing)} entries are missing, the first is {missing[0]}.")


def _tell_some(what: str, entries: Sequence[str]) -> None:
    for sentence in entries[:_TOLD]:
        show.line(f"{what}: {sentence}")
    if len(entries) > _TOLD:
        show.line(f"{what}: {len(entries) - _TOLD} more; --json names all")


@app.command()
def convert(
    archives: Annotated[list[Path], typer.Argument(help=".npz files of images and labels", metavar="ARCHIVE...")],
    out: Annotated[Path, typer.Option("--out", help="an empty folder for the shards")],
    classes: Annotated[int | None, typer.Option("--classes", help="default: the highest label and one")] = None,
    shard_images: Annotated[int, typer.Option("--shard-images", help="images in one file")] = 1_000_000,
    image_key: Annotated[str, typer.Option("--image-key", help="name of the images, uint8 [N, H, W, 3]")] = "image",
    label_key: Annotated[str, typer.Option("--label-key", help="name of the labels, whole numbers [N]")] = "label",
    json: JsonOption = False,
) -> None:
    """Write generated images from .npz archives into a folder that training reads row by row."""
    from vitadel import data

    with show.progress(quiet=json) as notify:
        shards = data.convert(
            archives,
            out,
            image_key=image_key,
            label_key=label_key,
            num_classes=classes,
            shard_images=shard_images,
            notify=notify,
        )
    _tell(str(out), shards.describe(), json)


def _tell(title: str, described: dict[str, object], json: bool) -> None:
    if json:
        show.as_json(described)
    else:
        show.table(title, list(described), [[str(value) for value in described.values()]])
