"""`vitadel recipes | models | attacks | scalings | suites | studies | sweeps`: lists and pages of entries."""

from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.options import MODEL, ImageSizeOption, JsonOption, PatchSizeOption, option

NameArgument = Annotated[
    str | None, typer.Argument(help="Name of the entry to show, or text to search for.", metavar="[NAME]")
]


def recipes(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the recipes, or show one with the source of every value."""
    _show("recipes", name, json)


def models(
    name: NameArgument = None,
    num_classes: Annotated[int | None, option("--num-classes", MODEL, "N", "Number of classes.")] = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchSizeOption = None,
    json: JsonOption = False,
) -> None:
    """List trained models and architectures, or show one: parameters, GFLOPs, taps."""
    from vitadel.api.catalog import CATALOGS, Page, model_page

    if name is None or not CATALOGS["models"].accepts_any_name(name):
        _show("models", name, json)
        return
    about: Page = model_page(name, num_classes=num_classes, image_size=image_size, patch_size=patch_size)
    show.json_object(about.json) if json else show.page(about)


def attacks(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the attacks, or show the settings of one."""
    _show("attacks", name, json)


def scalings(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the ways to scale attention during an attack, or show the settings of one."""
    _show("scalings", name, json)


def suites(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the evaluation suites, or show the settings of one."""
    _show("suites", name, json)


def studies(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the studies, or show the settings of one."""
    _show("studies", name, json)


def sweeps(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the papers' tables and figures and how to reproduce them, or show one."""
    _show("sweeps", name, json)


def _show(kind: str, name: str | None, json: bool) -> None:
    from vitadel.api.catalog import CATALOGS, Page

    entry = CATALOGS[kind].find(name)
    if isinstance(entry, Page):
        show.json_object(entry.json) if json else show.page(entry)
    elif json:
        show.json_object({item.name: item.about for item in entry})
    else:
        show.items(entry)
