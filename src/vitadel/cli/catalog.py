"""`vitadel recipes | models | attacks | scalings | suites | studies`: what there is; with a name, all about one."""

import dataclasses
import enum
import inspect
import json as json_text
from collections.abc import Mapping
from typing import Annotated

import typer

from vitadel.cli import show
from vitadel.cli.arguments import JsonOption

NameArgument = Annotated[str | None, typer.Argument(help="one of them, to learn all about it")]


def recipes(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the recipes, or print one with the source of every value."""
    from vitadel.core.errors import unknown
    from vitadel.recipes import RECIPES
    from vitadel.runs import describe

    if name is None:
        about = {known: make().about for known, make in RECIPES.items()}
        show.as_json(about) if json else _show_by_source(about)
        return
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    described = describe(RECIPES[name]())
    if json:
        show.as_json(described)
        return
    _show_recipe(name)


def _show_by_source(about: Mapping[str, str]) -> None:
    """One table per source, which is one file, in the order of the list."""
    from vitadel.recipes import RECIPES

    # what follows a semicolon is for those who read the file
    titles = {name: _module_doc(RECIPES[name]).splitlines()[0].split(";")[0] for name in about}
    for title in dict.fromkeys(titles.values()):
        show.table(title, ["recipe", "about"], [[name, about[name]] for name in about if titles[name] == title])


def _show_recipe(name: str) -> None:
    """Its source, itself, and each value as `--set` takes it, with where it comes from."""
    from vitadel.recipes import RECIPES, leaves

    recipe = RECIPES[name]()
    show.line(_module_doc(RECIPES[name]))
    show.line(f"\n{name}: {inspect.cleandoc(RECIPES[name].__doc__ or '')}\n")
    found = leaves(recipe)
    width = max(len(leaf.path) + len(leaf.value) for leaf in found) + 3
    for leaf in found:
        own = leaf.said_of in (leaf.path, "*", None)
        source = leaf.source or "default" if own else f"see {leaf.said_of}"
        show.line(f"{f'{leaf.path} = {leaf.value}':<{width}}  {source}")
    for kind, said in recipe.expect.items():
        show.line(f"\n{kind}: {said}")


def _module_doc(make: object) -> str:
    module = inspect.getmodule(make)
    return inspect.cleandoc((module.__doc__ if module else "") or "")


def models(
    name: NameArgument = None,
    classes: Annotated[int | None, typer.Option("--classes", help="number of classes")] = None,
    image_size: Annotated[int | None, typer.Option("--image-size", help="side of the image in pixels")] = None,
    patch_size: Annotated[int | None, typer.Option("--patch-size", help="side of a patch in pixels")] = None,
    json: JsonOption = False,
) -> None:
    """List the model families, or measure one model: parameters, GFLOPs, sizes, taps."""
    from vitadel import models as room

    if name is None:
        rows = [[f"vitadel:{own}", about] for own, about in room.own_models().items()]
        rows += [[f"timm:{example}", about] for example, about in room.timm_families().items()]
        show.as_json(dict(rows)) if json else show.table("", ["model", "about"], rows)
        return
    model = room.load(name, num_classes=classes, image_size=image_size, patch_size=patch_size)
    assert model.spec is not None
    measured = room.cost(model, model.spec.image_size)
    about = {
        "name": name,
        "parameters": measured.parameters,
        "gmacs": round(measured.macs / 1e9, 3),
        "gflops": round(measured.gflops, 3),
        "image_size": model.spec.image_size,
        "patch_size": model.spec.patch_size,
        "num_classes": model.spec.num_classes,
        "mean": list(model.spec.normalization.mean),
        "std": list(model.spec.normalization.std),
        "taps": model.taps.names(),
    }
    if json:
        show.as_json(about)
        return
    taps = model.taps.names()
    shown = {
        **about,
        "parameters": f"{measured.parameters:,}",
        "gflops": f"{about['gflops']} ({about['gmacs']} GMAC, products inside attention counted)",
        "taps": f"{len(taps)}: {', '.join(taps[:9])}{', ...' if len(taps) > 9 else ''}",
    }
    del shown["gmacs"]
    show.table("", ["", ""], [[key, str(value)] for key, value in shown.items()])


def attacks(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the attacks, or the settings of one."""
    from vitadel.attacks import ATTACKS, SCHEDULES, AutoAttack
    from vitadel.core.errors import unknown
    from vitadel.goals import TARGETS
    from vitadel.losses import LOSSES

    if name is None:
        about = {known: inspect.cleandoc(kind.__doc__ or "").splitlines()[0] for known, kind in ATTACKS.items()}
        show.as_json(about) if json else show.table("", ["attack", "about"], [[k, v] for k, v in about.items()])
        return
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    fields = dataclasses.fields(ATTACKS[name])  # type: ignore[arg-type]
    settings = {f.name: getattr(f.default, "__name__", str(f.default)) for f in fields}
    if json:
        show.as_json(settings)
        return
    show.line(inspect.cleandoc(ATTACKS[name].__doc__ or ""))
    rows = [[key, value, ", ".join(SCHEDULES) if key == "schedule" else ""] for key, value in settings.items()]
    if not issubclass(ATTACKS[name], AutoAttack):  # which brings its own
        usual = next(known for known, loss in LOSSES.items() if loss is ATTACKS[name].default_loss)
        rows += [["loss", usual, ", ".join((*LOSSES, "kl"))], ["target", "None", ", ".join(TARGETS)]]
    show.table("", ["setting", "default", "choices"], rows)


def scalings(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the ways to scale attention while crafting, or the settings of one."""
    from vitadel.attacks import SCALINGS, Scaling
    from vitadel.core.errors import unknown
    from vitadel.runs import describe

    if name is None:
        about = {known: inspect.cleandoc(make.__doc__ or "").splitlines()[0] for known, make in SCALINGS.items()}
        show.as_json(about) if json else show.table("", ["scaling", "about"], [[k, v] for k, v in about.items()])
        return
    if name not in SCALINGS:
        raise unknown("scaling", name, SCALINGS)
    chosen = SCALINGS[name]()
    if json:
        show.as_json(describe(chosen))
        return
    show.line(_module_doc(Scaling))
    fields = dataclasses.fields(Scaling)
    show.table("", ["setting", "value"], [[f.name, _setting(getattr(chosen, f.name))] for f in fields])


def suites(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the suites, or the attacks or the settings of one."""
    from vitadel.core.errors import unknown
    from vitadel.evaluate import SUITES, SURVEYS
    from vitadel.runs import describe

    if name is None:
        cascades = {known: suite.about for known, suite in SUITES.items()}
        surveys = {known: kind.about for known, kind in SURVEYS.items()}
        if json:
            show.as_json({**cascades, **surveys})
            return
        show.table("Cascades of attacks", ["suite", "about"], [[k, v] for k, v in cascades.items()])
        show.table("Surveys", ["suite", "about"], [[k, v] for k, v in surveys.items()])
        return
    if name in SURVEYS:
        chosen = SURVEYS[name]()
        show.as_json(describe(chosen)) if json else _show_settings(chosen)
        return
    if name not in SUITES:
        raise unknown("suite", name, [*SUITES, *SURVEYS])
    described = describe(SUITES[name])
    show.as_json(described) if json else show.line(json_text.dumps(described, indent=2))


def studies(name: NameArgument = None, json: JsonOption = False) -> None:
    """List the studies, or the settings of one."""
    from vitadel.analyze import STUDIES
    from vitadel.core.errors import unknown
    from vitadel.runs import describe

    if name is None:
        about = {
            known: make().about if isinstance(make, type) else inspect.cleandoc(make.__doc__ or "").splitlines()[0]
            for known, make in STUDIES.items()
        }
        show.as_json(about) if json else show.table("", ["study", "about"], [[k, v] for k, v in about.items()])
        return
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]()
    if json:
        show.as_json(describe(study))
        return
    _show_settings(study)


def _show_settings(chosen: object) -> None:
    """What a study or a survey is, its settings, and what its file says of it."""
    show.line(inspect.cleandoc(type(chosen).__doc__ or ""))
    fields = dataclasses.fields(chosen)  # type: ignore[arg-type]
    show.table("", ["setting", "value"], [[f.name, _setting(getattr(chosen, f.name))] for f in fields])
    show.line(_module_doc(type(chosen)))


def _setting(value: object) -> str:
    """A setting as `NAME:key=value` takes it; of an object, what differs from the usual one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        usual = type(value)()
        pairs = ((f.name, getattr(value, f.name), getattr(usual, f.name)) for f in dataclasses.fields(value))
        changed = (f"{key}={_setting(here)}" for key, here, there in pairs if here != there)
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, tuple):
        return "+".join(map(_setting, value))
    return str(value.value) if isinstance(value, enum.Enum) else getattr(value, "__name__", str(value))
