"""Suites and attacks by name: `clean,corruptions:severities=1+3`, `pgd:steps=40,loss=margin`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from vitadel.attacks import ATTACKS, Attack, NamedAttack
from vitadel.attacks.parsing import notation, parse_attack_and_goal
from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.files import slug
from vitadel.core.numeric import check_ranges
from vitadel.core.settings import split_name, with_settings
from vitadel.evaluate.suites import SUITES, AttackSuite, Suite, attacks_of
from vitadel.runs.schema import FORMER_SUITE_NAMES

# the name of a suite with a single attack
SINGLE_ATTACK = "attack"
# the members that an object needs to be a suite
_MEMBERS = ("name", "title", "about", "needs_threat", "check", "run", "rows", "summarize")

SuiteLike = str | Suite | Attack | NamedAttack


def as_suites(suites: "SuiteLike | Sequence[SuiteLike]") -> list[Suite]:
    """Suites from text such as `clean,corruptions:severities=1+3,jpeg=85`, from attacks, or from suites.

    Raises:
        UsageError: If there is no such suite or setting, or if two have one name.
    """
    given: Sequence[SuiteLike] = suites if isinstance(suites, list | tuple) else [suites]  # type: ignore[list-item]
    chosen: list[Suite] = []
    for one in given:
        if isinstance(one, str):
            chosen += [_parse_suite(text) for text in _split_suites(one)]
        elif isinstance(one, Attack | NamedAttack):
            chosen.append(_of_attack(one))
        elif isinstance(one, type) or not isinstance(one, Suite):
            raise _no_suite(one)
        else:
            check_ranges(one)
            chosen.append(one)
    chosen = _with_distinct_names(chosen)
    names = [suite.name for suite in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"the suite {twice} is named twice, and a run holds one. Give each its own --run.")
    return chosen


def _with_distinct_names(suites: list[Suite]) -> list[Suite]:
    """Name suites of a single attack after it if there are several of them; the second `pgd` is `pgd-2`."""
    if sum(suite.name == SINGLE_ATTACK for suite in suites) < 2:
        return suites
    times: Counter[str] = Counter()
    result = []
    for suite in suites:
        if suite.name == SINGLE_ATTACK and attacks_of(suite):
            name = slug(suite.about)
            times[name] += 1
            suite = with_name(suite, name if times[name] == 1 else f"{name}-{times[name]}")
        result.append(suite)
    return result


def with_name(suite: Suite, name: str) -> Suite:
    """The suite of a single attack under another name."""
    return replace(suite, name=name)  # type: ignore[type-var]


def _no_suite(given: object) -> UsageError:
    """The error for an object that is not a suite; it names the members that are missing."""
    what = "a suite is a name from `vitadel suites`, an attack, or an object with name, check, run, rows and summarize"
    if isinstance(given, type):
        instead = f"Write {given.__name__}()."
    elif hasattr(given, "run") and hasattr(given, "summarize"):
        missing = [name for name in _MEMBERS if not hasattr(given, name)]
        return UsageError(f"the suite {short_repr(given)} has no {', '.join(missing)}. Define what is missing.")
    else:
        instead = 'Write for example "autoattack" or vd.attacks.PGD().'
    return UsageError(f"{what}, got {short_repr(given)}. {instead}")


def attack_suite(text: str) -> AttackSuite:
    """The suite of a single attack, from text such as `pgd:steps=40,loss=margin`."""
    return _of_attack(NamedAttack(text, *parse_attack_and_goal(text)))


def _of_attack(attack: Attack | NamedAttack) -> AttackSuite:
    if isinstance(attack, Attack):
        name = next((name for name, kind in ATTACKS.items() if type(attack) is kind), type(attack).__name__.lower())
        attack = NamedAttack(name, attack)
    return AttackSuite(SINGLE_ATTACK, attack.name, (attack,))


def _split_suites(text: str) -> list[str]:
    """Split at the commas between suites, but not at those between the settings of a suite."""
    suites: list[str] = []
    for part in text.split(","):
        name, equals, _ = part.partition("=")
        if equals and ":" not in name and suites:  # a setting of the preceding suite
            suites[-1] += ("," if ":" in suites[-1] else ":") + part
        else:
            suites.append(part)
    return suites


def _parse_suite(text: str) -> Suite:
    name = text.partition(":")[0]
    if name in FORMER_SUITE_NAMES and name not in SUITES:
        return _parse_suite(FORMER_SUITE_NAMES[name] + text.removeprefix(name))
    if name in SUITES:
        suite = SUITES[name]
        if attacks_of(suite) is None:
            return with_settings(suite, split_name(text)[1], notation(name))
        if ":" in text:
            raise UsageError(f"the suite {name} runs attacks and has no settings, got {text!r}. Write {name}.")
        return suite
    if name in ATTACKS:
        return attack_suite(text)
    raise unknown_name_error("suite or attack", name, {**SUITES, **ATTACKS})
