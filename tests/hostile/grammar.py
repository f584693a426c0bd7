"""Random command lines: mostly valid ones, with invalid values and typing errors."""

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from commands import ADAPTED, FROZEN, TRAINED

from vitadel.analyze import STUDIES
from vitadel.attacks import ATTACKS, SCALINGS, SCHEDULES, AutoAttack, Scaling
from vitadel.evaluate import SUITES, AttackSuite
from vitadel.goals import TARGETS
from vitadel.losses import LOSSES
from vitadel.recipes import RECIPES, leaves
from vitadel.recipes.published_tables import SWEEPS
from vitadel.recipes.sweep import AXES

_SMALL = ("0", "1", "2", "3", "4", "5", "0.5", "0.1", "0.01", "1.5", "8/255", "2/255", "1/3", "1e-3", "10")
_ODD = (
    *("-1", "-0.1", "-0", "+1", "--1", "nan", "inf", "-inf", "1/0", "0/0", "8/255/2", "1/1e999999999", "1e999999999"),
    *("1e-999999999", "1e400", "1e-400", "1e30", "99999999", "2147483648", "9223372036854775808", "1_000", "0x10"),
    *(
        "\u0663",
        "\u00b2",
        "\u2164",
        "",
        " ",
        " 1",
        "1 ",
        "1,5",
        "1/",
        "/1",
        "1e",
        "e1",
        ".",
        "1.",
        "None",
        "True",
        "1/-2",
    ),
    *("7" * 4000, "7" * 6000, "0." + "3" * 5000, "1/" + "9" * 5000, "1e5000", "1" + "0" * 400),
)
_JUNK = (
    *("", " ", ":", ",", "=", "+", "@", "#", "/", "..", ".", "*", "[", "]", "[/b]", "[bold]", "[:1]", "[:0]", "[:-1]"),
    *("%s", "{}", "\\", "'", '"', "\n", "\t", "\r", "\x1b[31m", "\ud800", "\u202e", "\u0130", "\U0001f600", "-", "--"),
    *(
        "~",
        "~nobody/x",
        "$HOME",
        "none",
        "null",
        "true",
        "a" * 300,
        "b" * 5000,
        "::",
        ",,",
        "==",
        "@@",
        "NaN",
        "__class__",
    ),
)
_WORDS = ("x", "linf", "pgd", "quick", "clean", "true", "false", "none", "null", "digits", "test", "best")

Words = list[str]
_WITH_SETTINGS = sorted(name for name, suite in SUITES.items() if not isinstance(suite, AttackSuite))


class Grammar:
    """Draws command lines; `files` are invalid files to name occasionally, relative to the case's folder."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def command(self) -> Words:
        """A whole command line."""
        makers: list[tuple[int, Callable[[], Words]]] = [
            *((6, self.train), (8, self.evaluate), (8, self.attack), (7, self.analyze), (3, self.sweep)),
            *((2, self.table), (1, self.report), (2, self.data), (2, self.models)),
        ]
        words = self.random.choices([make for _, make in makers], [weight for weight, _ in makers])[0]()
        return self._with_typing_error(words) if self.random.random() < 0.3 else words

    # --------------------------------------------------------------- commands

    def train(self) -> Words:
        recipe = self._pick([name for name in RECIPES if name.startswith("digits")], _WORDS)
        return ["train", recipe, *self._short(), *self._settings(recipe), "--run=run", *self._json()]

    def sweep(self) -> Words:
        recipe = self._pick(["digits-standard", "digits-adversarial", *SWEEPS], _WORDS)
        axes = [f"--axis={self._axis(recipe)}" for _ in range(self.random.randint(0, 2))]
        suite = [f"--suite={self.suite()}", f"--threat={self.threat()}"] if self.random.random() < 0.3 else []
        return ["sweep", recipe, *self._short(), *axes, *suite, "--run=run", *self._json()]

    def evaluate(self) -> Words:
        return ["evaluate", self.model(), f"--data={self.data_spec()}", f"--suite={self.suite()}", *self._options()]

    def attack(self) -> Words:
        return [
            "attack",
            self.model(),
            f"--data={self.data_spec()}",
            f"--attack={self.attack_text()}",
            *self._options(),
        ]

    def analyze(self) -> Words:
        words = ["analyze", self.study(), self.model(), f"--data={self.data_spec()}"]
        return [
            *words,
            *(one for one in self._options() if not one.startswith(("--keep", "--prec", "--scal", "--comp"))),
        ]

    def table(self) -> Words:
        tables: dict[str, Iterable[str]] = {
            **{"recipes": RECIPES, "models": ("timm:test_vit", "vitadel:masked_gradient_net"), "attacks": ATTACKS},
            **{"scalings": SCALINGS, "suites": SUITES, "studies": STUDIES, "sweeps": SWEEPS},
        }
        name = self.random.choice(sorted(tables))
        return [name, *([self._pick(list(tables[name]), _JUNK)] if self.random.random() < 0.8 else []), *self._json()]

    def models(self) -> Words:
        sizes = [f"--{what}={self.number()}" for what in ("classes", "image-size", "patch-size") if self._sometimes()]
        return ["models", self.model(), *sizes, *self._json()]

    def report(self) -> Words:
        runs = [self._pick([TRAINED, FROZEN, ADAPTED], _JUNK) for _ in range(self.random.randint(1, 2))]
        more = [f"--baseline={self._pick(['digits-standard'], _JUNK)}"] if self._sometimes() else []
        return ["report", *runs, "--out=page.html", *more, *(["--tables=tables"] if self._sometimes() else [])]

    def data(self) -> Words:
        what = self.random.choice(("describe", "check"))
        return ["data", what, self.data_spec(), *self._preprocess(), *self._json()]

    # ---------------------------------------------------------------- arguments

    def number(self) -> str:
        return self.random.choice(_SMALL if self.random.random() < 0.6 else _ODD)

    def model(self) -> str:
        file = f"{TRAINED}/checkpoints/best.safetensors"
        rare = (
            "timm:test_vit",
            "vitadel:masked_gradient_net",
            f"timm:test_vit@{file}",
            "zoo:nothing",
            f"{ADAPTED}#acc",
            f"{ADAPTED}#x",
        )
        return self._pick([TRAINED] * 12 + [file, FROZEN, ADAPTED, *rare], _JUNK)

    def data_spec(self) -> str:
        first = self.random.choice(("[:4]", "[:4]", "[:4]", "[:4]", "[:9]", f"[:{self.number()}]", ""))
        kind = self.random.choice(("digits",) * 12 + ("cifar10:../shared", "folder:..", "imagenet:.", "cue-conflict:."))
        listed = f"@{self._pick(['../shared', 'nothing.txt'], _JUNK)}" if self.random.random() < 0.05 else ""
        return kind + listed + first

    def threat(self) -> str:
        return f"{self._pick(['linf', 'linf', 'l2', 'l1'], _WORDS)}:{self.number()}"

    def attack_text(self) -> str:
        name = self._pick([name for name, kind in ATTACKS.items() if not issubclass(kind, AutoAttack)], _WORDS)
        kind = ATTACKS.get(name)
        hints = {} if kind is None else self._hints(kind)
        named = {"loss": (*LOSSES, "kl"), "target": tuple(TARGETS), "schedule": tuple(SCHEDULES)}
        short = {"steps": "3", "queries": "20", "restarts": "1"}
        given = {key: value for key, value in short.items() if key in hints}
        for key in self._some([*hints, "loss", "target"]):
            given[key] = self.random.choice(named[key]) if key in named else self.value(hints[key])
        return self._joined(name, given)

    def suite(self) -> str:
        compile_units = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            if self.random.random() < 0.4:
                compile_units.append(self._pick(["clean", "quick", "curve"], _WORDS))
            else:
                name = self.random.choice(_WITH_SETTINGS)
                given = {"translations": "3", "rotations": "3"} if name == "spatial" else {}
                compile_units.append(self._joined(name, {**given, **self._drawn(type(SUITES[name]))}))
        return ",".join(compile_units)

    def study(self) -> str:
        name = self._pick(sorted(STUDIES), _WORDS)
        if name not in STUDIES:
            return name
        hints = self._hints(type(STUDIES[name]()))
        short = {
            "steps": "2",
            "queries": "20",
            "draws": "2",
            "images": "2",
            "curve_steps": "2",
            "restarts": "1",
            "count": "2",
        }
        given = {key: value for key, value in short.items() if hints.get(key) is int}
        return self._joined(name, {**given, **self._drawn(type(STUDIES[name]()))})

    def scaling(self) -> str:
        if self._sometimes():
            return self.number()
        hints = {key: kind for key, kind in self._hints(Scaling).items() if key not in ("probe", "grid")}
        given = {key: self.value(hints[key]) for key in self._some(list(hints))}
        return self._joined(self._pick(list(SCALINGS), _WORDS), {"steps": "1", "batches": "1", "batch": "4", **given})

    def value(self, kind: object) -> str:
        """A value for a field of this kind, or for another one."""
        if self.random.random() < 0.1:
            return self.random.choice(_JUNK)
        inner = typing.get_args(kind)
        if type(None) in inner:
            return "none" if self._sometimes() else self.value(next(one for one in inner if one is not type(None)))
        if typing.get_origin(kind) is tuple:
            return "+".join(self.value(inner[0]) for _ in range(self.random.randint(0, 3)))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return str(self.random.choice(list(kind)).value)
        if kind is bool:
            return self.random.choice(("true", "false", "True", "1"))
        if kind is str:
            return self._pick(list(_WORDS), _JUNK)
        return self.number()

    # ------------------------------------------------------------------- pieces

    def _short(self) -> Words:
        """What keeps a training short; later settings of the same path would be refused or win."""
        data = self.data_spec() if self._sometimes() else "digits[:40]"
        return [f"--data={data}", "--set=plan.epochs=1", "--set=plan.warmup_epochs=0"]

    def _settings(self, recipe: str) -> Words:
        if recipe not in RECIPES:
            return []
        paths = [leaf.path for leaf in leaves(RECIPES[recipe]())]
        extra = [
            "plan.mixing.mixup",
            "plan.pil_augment.workers",
            "plan.augment.flip",
            "model.tuning.reduction",
            "synthetic.folder",
        ]
        chosen = self._some([*paths, *extra])
        return [f"--set={path}={self._setting(recipe, path)}" for path in chosen]

    def _setting(self, recipe: str, path: str) -> str:
        known = {leaf.path: leaf.value for leaf in leaves(RECIPES[recipe]())}
        return known[path] if path in known and self.random.random() < 0.1 else self._pick([self.number()] * 4, _JUNK)

    def _axis(self, recipe: str) -> str:
        name = self._pick([*AXES, "seed", "plan.optimizer.lr", "plan.clip_grad", "model.options.depth"], _JUNK)
        return f"{name}={','.join(self.number() for _ in range(self.random.randint(1, 2)))}"

    def _options(self) -> Words:
        words = ["--run=run", f"--threat={self.threat()}", *self._json()]
        more: dict[str, Callable[[], str]] = {
            "seed": self.number,
            "batch": self.number,
            "split": lambda: self._pick(["test", "holdout", "train"], _JUNK),
            "classes": self.number,
            "precision": lambda: self._pick(["float32", "bf16", "fp16"], _WORDS),
            "scaling": self.scaling,
        }
        words += [f"--{name}={make()}" for name, make in more.items() if self.random.random() < 0.1]
        words += ["--keep-images"] if self._sometimes() else []
        return [*words, *(self._preprocess() if self.random.random() < 0.1 else [])]

    def _preprocess(self) -> Words:
        kind = self._pick(["squash", "crop"], _WORDS)
        sizes = "".join(
            f":{self.random.choice(('8', '8', '16', self.number()))}" for _ in range(self.random.randint(0, 2))
        )
        return [f"--preprocess={kind}{sizes}{self.random.choice(('', '', ':bicubic', ':x'))}"]

    def _json(self) -> Words:
        return ["--json"] if self.random.random() < 0.6 else []

    def _drawn(self, kind: type) -> dict[str, str]:
        hints = self._hints(kind)
        return {key: self.value(hints[key]) for key in self._some(list(hints))}

    def _hints(self, kind: Any) -> dict[str, object]:
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}

    def _joined(self, name: str, given: dict[str, str]) -> str:
        return f"{name}:{','.join(f'{key}={value}' for key, value in given.items())}" if given else name

    def _some(self, names: list[str]) -> list[str]:
        return self.random.sample(names, min(len(names), self.random.choice((0, 1, 1, 2, 3))))

    def _pick(self, usual: list[str], odd: Iterable[str]) -> str:
        return self.random.choice(list(odd)) if self.random.random() < 0.08 else self.random.choice(usual)

    def _sometimes(self) -> bool:
        return self.random.random() < 0.2

    def _with_typing_error(self, words: Words) -> Words:
        """The words with one typing error; the run folder keeps its name."""
        at = self.random.choice([at for at, word in enumerate(words) if word != "--run=run"])
        word, place = words[at], self.random.randrange(len(words[at]) + 1)
        junk = self.random.choice((*_JUNK, *_ODD))
        changed = self.random.choice(
            (
                [word[:place] + junk + word[place:]],
                [word[:place] + word[place + 1 :]],
                [word[:place]],
                [word[:place] + word[place:].swapcase()],
                [word, word],
                [],
                [junk],
                [word.replace("=", " ", 1)],
            )
        )
        return [*words[:at], *changed, *words[at + 1 :]]
