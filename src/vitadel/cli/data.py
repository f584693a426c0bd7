"""`vitadel data`: look at data before trusting it."""

from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption

app = typer.Typer(help="Describe and check data sets.", no_args_is_help=True)

SpecArgument = Annotated[str, typer.Argument(help="digits, cifar10:DIR, folder:DIR, ...; [:n] takes the first n")]
PreprocessOption = Annotated[str, typer.Option("--preprocess", help="crop:SIZE[:RESIZE][:bicubic] or squash:SIZE")]


@app.command()
def describe(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Say what a data set is: classes, splits, hashes."""
    from vitadel import data

    dataset = data.load(spec, preprocess=data.parse_preprocess(preprocess))
    if json:
        show.as_json(dataset.describe())
        return
    rows = [[name, str(len(split)), split.sha256[:16]] for name, split in dataset.splits.items()]
    show.table(f"{spec}: {dataset.num_classes} classes, {dataset.preprocess.name}", ["split", "images", "sha256"], rows)


@app.command()
def check(spec: SpecArgument, preprocess: PreprocessOption = "squash:32", json: JsonOption = False) -> None:
    """Read every image once; exit code 2 if one cannot be read."""
    from vitadel import data
    from vitadel.errors import UsageError

    found = data.check(data.load(spec, preprocess=data.parse_preprocess(preprocess)))
    if json:
        bad = [{"split": item.split, "id": item.id, "reason": item.reason} for item in found.unreadable]
        show.as_json({"counts": found.counts, "unreadable": bad})
    else:
        rows = [
            [name, str(sum(counts.values())), str(min(counts.values())), str(max(counts.values()))]
            for name, counts in found.counts.items()
        ]
        show.table(spec, ["split", "images", "fewest per class", "most per class"], rows)
    if found.unreadable:
        first = found.unreadable[0]
        raise UsageError(f"{len(found.unreadable)} images cannot be read, the first is {first.id} ({first.reason}).")
