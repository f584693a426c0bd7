"""The lists of recipes, models, attacks, scalings, suites, studies and sweeps, with a page for each entry.

One file, although long: each list is a pair of short functions, one for the entries and one for the page.
"""

import dataclasses
import enum
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitadel.core.errors import unknown_name_error
from vitadel.core.settings import choices, field_docs

if TYPE_CHECKING:
    from vitadel.recipes.columns import Column
    from vitadel.recipes.published import PublishedAccuracy


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a list; items of one `group` are listed together."""

    name: str
    about: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a page: a setting or a measured number, with its value and description."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Everything about one item.

    Args:
        title: One line.
        text: Paragraphs.
        heading: The line above the settings, which says how to change them.
        settings: The settings, or the measured numbers.
        details: Further paragraphs, after the settings.
        json: The same as plain JSON values.
    """

    title: str
    text: str = ""
    heading: str = ""
    settings: tuple[Setting, ...] = ()
    details: str = ""
    json: object = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A list of items, and a page for each.

    Args:
        kind: The word for one item, such as `attack`.
        items: Returns the list.
        page: Returns the page of a name.
        former_names: Returns the current names of earlier ones, which still have pages.
        accepts_any_name: Whether a name that is not in the list has a page too.
        search: Returns further items in which a text occurs, which the list leaves out.
    """

    kind: str
    items: Callable[[], list[Item]]
    page: Callable[[str], Page]
    former_names: Callable[[], Mapping[str, str]] = dict
    accepts_any_name: Callable[[str], bool] = field(default=lambda name: False)
    search: Callable[[str], list[Item]] = field(default=lambda text: [])

    def find(self, text: str | None = None) -> list[Item] | Page:
        """The whole list, the page of the item of this name, or the items in which the text occurs.

        Raises:
            UsageError: If there are none.
        """
        items = self.items()
        if text is None:
            return items
        name = self.former_names().get(text, text)
        if self.accepts_any_name(text) or any(item.name == name for item in items):
            return self.page(name)
        word = text.lower()
        if matches := [
            item for item in items if any(word in part.lower() for part in (item.name, item.about, item.group))
        ]:
            return matches
        if matches := self.search(text):
            return matches
        raise unknown_name_error(self.kind, text, [item.name for item in items])


def documented_settings(chosen: object, *names: str) -> tuple[Setting, ...]:
    """The settings of a dataclass, or those of these names, with their values and descriptions."""
    docs = field_docs(type(chosen))  # type: ignore[arg-type]
    return tuple(
        Setting(f.name, setting_text(getattr(chosen, f.name)), docs.get(f.name, ""))
        for f in dataclasses.fields(chosen)  # type: ignore[arg-type]
        if f.init and (not names or f.name in names)
    )


def setting_text(value: object) -> str:
    """A value as written in `NAME:key=value`; of an object, the settings that differ from its defaults."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        pairs = ((f.name, getattr(value, f.name), getattr(default, f.name)) for f in dataclasses.fields(value))
        changed = ", ".join(f"{name}={setting_text(here)}" for name, here, there in pairs if here != there)
        return f"{type(value).__name__}({changed})"
    if isinstance(value, tuple | list):
        return "+".join(map(setting_text, value)) or "()"
    if isinstance(value, enum.Enum):
        return next(text for text, item in choices(type(value)).items() if item is value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return getattr(value, "__name__", str(value))


def _paragraphs(documented: object) -> tuple[str, str]:
    """The first paragraph of a docstring, and the rest without its sections of arguments."""
    title, _, rest = inspect.cleandoc(getattr(documented, "__doc__", None) or "").partition("\n\n")
    for section in ("Args:", "Attributes:", "Example:", "Examples:", "Returns:", "Raises:"):
        rest = f"\n{rest}".partition(f"\n{section}\n")[0].lstrip("\n")
    return " ".join(title.split()), _prose(rest)


def _module_text(documented: object) -> str:
    module = inspect.getmodule(documented)
    return _prose(inspect.cleandoc((module.__doc__ if module else "") or ""))


def _prose(text: str) -> str:
    """The paragraphs suitable for a terminal: no formulas, tables or legends of tensor shapes."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    skipped = re.compile(r"\.\. |[ =-]+$|Shape letters:|\s", re.M)
    dropped = [bool(skipped.match(one)) or ":math:" in one or "===" in one for one in paragraphs]
    kept = []
    for one, is_dropped, next_is_dropped in zip(paragraphs, dropped, [*dropped[1:], False], strict=True):
        if not is_dropped:  # a colon before a dropped paragraph
            kept.append(f"{one.removesuffix(':')}." if next_is_dropped and one.endswith(":") else one)
    return "\n\n".join(kept)


def _first_lines(table: Mapping[str, Any]) -> list[Item]:
    return [Item(name, _paragraphs(documented)[0]) for name, documented in table.items()]


def _recipes() -> list[Item]:
    from vitadel.recipes import RECIPES

    # what follows a semicolon in the title of a file is for readers of the file
    titles = {name: _module_text(make).splitlines()[0].split(";")[0].rstrip(".") for name, make in RECIPES.items()}
    return [Item(name, make().about, titles[name]) for name, make in RECIPES.items()]


def _recipe(name: str) -> Page:
    from vitadel.recipes import RECIPES, leaves
    from vitadel.runs import describe

    recipe = RECIPES[name]()
    sources = []
    for leaf in leaves(recipe):
        own = leaf.source_path in (leaf.path, "*", None)
        sources.append((leaf, leaf.source or "default" if own else f"see {leaf.source_path}"))
    # the most frequent source is named once, above
    usual, _ = Counter(source for *_, source in sources).most_common(1)[0]
    settings = tuple(
        Setting(leaf.path, leaf.text, " ".join(filter(None, (leaf.about, "" if source == usual else f"[{source}]"))))
        for leaf, source in sources
    )
    text = "\n\n".join(filter(None, (_prose(inspect.getdoc(RECIPES[name]) or ""), _module_text(RECIPES[name]))))
    expected = "\n".join(f"{kind}: {result}" for kind, result in recipe.expect.items())
    heading = f"Settings (--set PATH=VALUE) and [where their values come from]; where nothing is named: [{usual}]"
    return Page(f"{name}: {recipe.about}", text, heading, settings, expected, describe(recipe))


def _attacks() -> list[Item]:
    from vitadel.attacks import ATTACKS

    return _first_lines(ATTACKS)


def _attack(name: str) -> Page:
    from vitadel.attacks import ATTACKS, SCHEDULES
    from vitadel.attacks.parsing import NAMED_LOSSES
    from vitadel.goals import TARGETS

    kind = ATTACKS[name]
    default = kind()
    settings = [
        dataclasses.replace(one, about=f"{one.about} One of {', '.join(SCHEDULES)}.".strip())
        if one.name == "schedule"
        else one
        for one in documented_settings(default)
        if one.name != "version"  # each version of AutoAttack is an attack of its own
    ]
    values = ((one.name, getattr(default, one.name)) for one in settings)
    plain = {key: getattr(value, "__name__", str(value)) for key, value in values}
    if not default.has_own_objective:
        loss = next(known for known, value in NAMED_LOSSES.items() if value is default.goal_loss)
        settings.append(Setting("loss", loss, f"The loss that is maximized. One of {', '.join(NAMED_LOSSES)}."))
        about = f"The class that is targeted; none for any other than the label. One of {', '.join(TARGETS)}."
        settings.append(Setting("target", "none", about))
    title, text = _paragraphs(kind)
    return Page(f"{name}: {title}", text, f"Settings (--attack {name}:KEY=VALUE,...)", tuple(settings), "", plain)


def _scalings() -> list[Item]:
    from vitadel.attacks import SCALINGS

    return _first_lines(SCALINGS)


def _scaling(name: str) -> Page:
    from vitadel.attacks import SCALINGS

    return _of_settings(name, SCALINGS[name], SCALINGS[name](), "--scaling")


def _suites() -> list[Item]:
    from vitadel.evaluate import SUITES, attacks_of

    groups = {True: "Suites of attacks", False: "Other suites"}
    return [Item(name, suite.about, groups[attacks_of(suite) is not None]) for name, suite in SUITES.items()]


def _suite(name: str) -> Page:
    from vitadel.attacks.parsing import NAMED_LOSSES
    from vitadel.evaluate import SUITES, attacks_of
    from vitadel.runs import describe

    suite = SUITES[name]
    if (attacks := attacks_of(suite)) is None:
        return _of_settings(name, type(suite), suite, "--suite")
    names = {loss: name for name, loss in NAMED_LOSSES.items()}
    entries = [
        Setting(one.name, setting_text(one.attack), f"loss {names.get(one.loss, setting_text(one.loss))}")
        for one in attacks
    ]
    if attacks:
        entries += documented_settings(suite, "eps_scales")
    return Page(f"{name}: {suite.about}", "", "Attacks, one after the other", tuple(entries), "", describe(suite))


def _studies() -> list[Item]:
    from vitadel.analyze import STUDIES

    return [
        Item(name, make().about if isinstance(make, type) else _paragraphs(make)[0]) for name, make in STUDIES.items()
    ]


def _study(name: str) -> Page:
    from vitadel.analyze import STUDIES

    return _of_settings(name, STUDIES[name], STUDIES[name](), "vitadel analyze")


def _of_settings(name: str, documented: object, chosen: object, option: str) -> Page:
    """The page of a dataclass of settings, with the docstring of its class or of the function that made it."""
    from vitadel.runs import describe

    title, text = _paragraphs(documented)
    heading = f"Settings ({option} {name}:KEY=VALUE,...)"
    details = _module_text(type(chosen))
    return Page(f"{name}: {title}", text, heading, documented_settings(chosen), details, describe(chosen))


def _sweeps() -> list[Item]:
    from vitadel.recipes.coverage import coverage

    return [Item(name, f"{one.status.value}: {one.item}", one.paper) for name, one in coverage().items()]


def _former_recipes() -> Mapping[str, str]:
    from vitadel.recipes import FORMER_RECIPE_NAMES

    return FORMER_RECIPE_NAMES


def _former_sweeps() -> Mapping[str, str]:
    from vitadel.recipes.published_tables import FORMER_NAMES

    return FORMER_NAMES


def _former_suites() -> Mapping[str, str]:
    from vitadel.runs.schema import FORMER_SUITE_NAMES

    return FORMER_SUITE_NAMES


def _former_studies() -> Mapping[str, str]:
    from vitadel.runs.schema import FORMER_STUDY_NAMES

    return FORMER_STUDY_NAMES


def _sweep(name: str) -> Page:
    from vitadel.recipes.published_tables import SWEEPS

    if name not in SWEEPS:
        return _covered(name)
    table = SWEEPS[name]
    names = [axis.name for axis in table.axes]
    about = {
        "source": table.source,
        "recipe": table.recipe,
        "settings": list(table.settings),
        "threat": table.threat,
        "attack": table.attack,
        "evaluations": {column.name: _evaluation(column) for column in table.columns},
        "studies": list(table.studies),
        "note": table.note,
    }
    rows = [{"values": dict(zip(names, labels, strict=True)), **_printed(row)} for labels, row in table.rows.items()]
    numbers = []
    for labels, row in table.rows.items():
        combination = ", ".join(f"{axis}={label}" for axis, label in zip(names, labels, strict=True))
        accuracy = f"clean {_percent(row.clean)}, robust {_percent(row.robust)}"
        if row.standard_clean is not None:
            accuracy += f", clean without adversarial training {_percent(row.standard_clean)}"
        accuracy += "".join(f", {name} {_percent(value)}" for name, value in row.others.items())
        numbers.append(Setting(combination, "", accuracy))
    lines = [f"{key.capitalize()}: {_words(value)}" for key, value in about.items() if value]
    heading = f"Published accuracy in percent; `vitadel sweep {name}` trains them"
    return Page(f"{name}: {table.about}", "\n".join(lines), heading, tuple(numbers), "", {**about, "rows": rows})


def _evaluation(column: "Column") -> str:
    """The evaluation of a column, as text."""
    parts = [str(column.evaluation), f"at {column.threat}" if column.threat else ""]
    parts.append(f"with --scaling {column.scaling}" if column.scaling else "")
    return " ".join(filter(None, [*parts, "on the rescaled model" if column.rescaled else ""]))


def _covered(name: str) -> Page:
    """The page of a table or figure that is not one sweep."""
    from vitadel.recipes.coverage import coverage

    one = coverage()[name]
    heading = "Commands; RUN, MODEL, DIR and DATA are yours" if one.commands else ""
    settings = tuple(Setting(command, "") for command in one.commands)
    about = {"paper": one.paper, "item": one.item, "status": one.status.value, "why": one.why}
    return Page(
        f"{name}: {one.item}",
        f"Paper: {one.paper}\nStatus: {one.status.value}",
        heading,
        settings,
        one.why,
        {**about, "commands": list(one.commands)},
    )


def _printed(row: "PublishedAccuracy") -> dict[str, object]:
    printed = dataclasses.asdict(row)
    return printed if row.others else {name: value for name, value in printed.items() if name != "others"}


def _words(value: object) -> str:
    """A value as text; the entries of a mapping with their names."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} by {one}" for name, one in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)


def _percent(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _models() -> list[Item]:
    from vitadel import models

    return [
        *(Item(f"zoo:{name}", about, "Trained models that come with Vitadel") for name, about in models.zoo().items()),
        *(Item(f"vitadel:{name}", about, "Architectures of Vitadel") for name, about in models.own_models().items()),
        *(
            Item(f"timm:{example}", about, "Architectures of timm, by family, with an example each")
            for example, about in models.timm_families().items()
        ),
    ]


def _models_of_timm(text: str) -> list[Item]:
    from vitadel.models.build import timm_names

    return [Item(f"timm:{name}", "", f"Architectures of timm with {text!r}") for name in timm_names(text)]


def model_page(
    name: str, *, num_classes: int | None = None, image_size: int | None = None, patch_size: int | None = None
) -> Page:
    """The page of a model: parameters, GFLOPs, sizes, taps.

    Args:
        name: Anything that `load_model` takes.
        num_classes: Number of classes.
        image_size: Input size in pixels.
        patch_size: Patch size in pixels.
    """
    from vitadel import models
    from vitadel.api.models import load_model

    model = load_model(name, num_classes=num_classes, image_size=image_size, patch_size=patch_size)
    assert model.spec is not None
    spec, measured, taps = model.spec, models.cost(model, model.spec.image_size), model.taps.names()
    about = {
        "name": name,
        "parameters": measured.parameters,
        "gmacs": round(measured.macs / 1e9, 3),
        "gflops": round(measured.gflops, 3),
        "image_size": spec.image_size,
        "patch_size": spec.patch_size,
        "num_classes": spec.num_classes,
        "mean": list(spec.normalization.mean),
        "std": list(spec.normalization.std),
        "taps": taps,
    }
    settings = (
        Setting("parameters", f"{measured.parameters:,}", "weights and biases"),
        Setting("gflops", f"{about['gflops']}", f"{about['gmacs']} GMAC, products inside attention counted"),
        Setting("image_size", setting_text(spec.image_size), "side of the images in pixels"),
        Setting("patch_size", setting_text(spec.patch_size), "side of a patch in pixels"),
        Setting("num_classes", setting_text(spec.num_classes), "number of logits"),
        Setting("mean", setting_text(spec.normalization.mean), "mean of pixels in [0, 1]"),
        Setting("std", setting_text(spec.normalization.std), "standard deviation of pixels in [0, 1]"),
        Setting("taps", str(len(taps)), f"{', '.join(taps[:9])}{', ...' if len(taps) > 9 else ''}"),
    )
    return Page(name, "", "Measured for one image", settings, "", about)


CATALOGS = {
    "attacks": Catalog("attack", _attacks, _attack),
    "models": Catalog(
        "model",
        _models,
        model_page,
        accepts_any_name=lambda name: ":" in name or "/" in name or "." in name,
        search=_models_of_timm,
    ),
    "recipes": Catalog("recipe", _recipes, _recipe, former_names=_former_recipes),
    "scalings": Catalog("scaling", _scalings, _scaling),
    "studies": Catalog("study", _studies, _study, _former_studies),
    "suites": Catalog("suite", _suites, _suite, _former_suites),
    "sweeps": Catalog("sweep", _sweeps, _sweep, _former_sweeps),
}
