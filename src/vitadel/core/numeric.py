"""Numbers that users set: how they are written as text, and the range in which each must lie.

A setting declares its range in its annotation, and `check_ranges` refuses every value outside of it:

    @dataclass(frozen=True, slots=True)
    class PGD:
        steps: Count = 20
        step_size: Positive | None = None

        def __post_init__(self) -> None:
            check_ranges(self)

`typing.get_type_hints` leaves the ranges out, so whoever reads the types sees plain `int` and `float | None`.
"""

import functools
import math
import re
import typing
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

from vitadel.core.errors import UsageError, short_repr

# bounds where a range names none: counts fit in 32 bits, and every float in a float32 tensor
_LARGEST_COUNT = 2**31 - 1
_LARGEST_FLOAT = 3.4028234663852886e38
# the weights of red, green and blue in a gray level (ITU-R BT.601)
LUMA = (0.299, 0.587, 0.114)
# ASCII only, without underscores
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?")
_WHOLE = re.compile(r"-?[0-9]+")
# a float's exact decimal has fewer digits; longer numbers would take `Fraction` and `int` forever to build
_MOST_DIGITS, _MOST_EXPONENT_DIGITS = 1100, 4


@dataclass(frozen=True, slots=True)
class Range:
    """The values allowed: greater than `gt`, or equal to `ge`; less than `lt`, or equal to `le`.

    Beyond `top` a value has a meaning, but no machine could compute with it; only the error for such a value says so.
    `hint` is what an error adds: what to write instead.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    top: float | None = None
    hint: str = ""

    def __repr__(self) -> str:
        """Only the bounds that are set, since signatures in `help` show it."""
        limits = (
            f"{name}={_plain(value)}"
            for name in ("ge", "gt", "le", "lt", "top")
            if (value := getattr(self, name)) is not None
        )
        return f"Range({', '.join(limits)})"

    def contains(self, value: float) -> bool:
        """Whether the value lies in the range; NaN never does."""
        above = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        return above and (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)

    def bounded(self, largest: float) -> "Range":
        """The same range with `top`, by default `largest`, on the sides that are open to infinity."""
        largest = largest if self.top is None else self.top
        below = self.ge is None and self.gt is None
        above = self.le is None and self.lt is None
        return replace(self, ge=-largest if below else self.ge, le=largest if above else self.le)

    @property
    def description(self) -> str:
        """The condition as an error states it: `lie in (0, 1]`, `be at least 1`, `be positive`."""
        low, high = self.ge if self.gt is None else self.gt, self.le if self.lt is None else self.lt
        if low is not None and high is not None:
            opened, closed = "[" if self.gt is None else "(", "]" if self.lt is None else ")"
            return f"lie in {opened}{_plain(low)}, {_plain(high)}{closed}"
        if high is not None:
            return f"be at most {_plain(high)}" if self.lt is None else f"be below {_plain(high)}"
        assert low is not None, "a range has at least one bound"
        if low == 0:
            return "not be negative" if self.gt is None else "be positive"
        return f"be at least {_plain(low)}" if self.gt is None else f"be above {_plain(low)}"


# pixels along a side of an image
LARGEST_SIDE = 4096
# steps, queries and the like of one search: some attacks make a table of all their steps before the first one
LARGEST_STEPS = 1_000_000

# the ranges that many settings share
Side = Annotated[int, Range(ge=1, le=LARGEST_SIDE)]
Count = Annotated[int, Range(ge=1)]
CountOrZero = Annotated[int, Range(ge=0)]
Steps = Annotated[int, Range(ge=1, top=LARGEST_STEPS)]
StepsOrZero = Annotated[int, Range(ge=0, top=LARGEST_STEPS)]
Positive = Annotated[float, Range(gt=0)]
NonNegative = Annotated[float, Range(ge=0)]
Degrees = Annotated[float, Range(ge=0, le=180)]
Probability = Annotated[float, Range(ge=0, le=1, hint="Write for example 0.5.")]
# the seeds of torch.manual_seed that fit into a signed 64-bit integer
Seed = Annotated[int, Range(ge=-(2**63), le=2**63 - 1)]


def check_ranges(settings: object) -> None:
    """Refuse a dataclass of settings in which a number is outside of its declared range, or no number."""
    kind: Any = type(settings)
    for name, declared in _declared(kind):
        check_number(f"{kind.__name__}.{name}", declared, getattr(settings, name))


def check_seed(seed: object) -> None:
    """Refuse a seed that is not an int of 64 bits."""
    check_number("the seed", Seed, seed)


def check_number(name: str, declared: object, value: object) -> None:
    """Refuse a value that does not fit a declared type, such as `Count | None` or `tuple[Positive, ...]`.

    Args:
        name: What the error calls the value.
        declared: The type with its range; types without one fit every value.
        value: The value that was given.
    """
    inner = typing.get_args(declared)
    if typing.get_origin(declared) is Annotated:
        for allowed in inner[1:]:
            if isinstance(allowed, Range):
                _check_range(name, inner[0], allowed, value)
    elif type(None) in inner:
        if value is not None:
            for one in inner:
                check_number(name, one, value)
    elif typing.get_origin(declared) is tuple and _has_range(declared):
        _check_tuple(name, inner, value)


def parse_number(text: str, what: str) -> float:
    """`8/255`, `0.5/255`, `0.03` or `3e-2` as a float; spaces around a number are ignored.

    Args:
        text: One decimal, or two with a slash between them.
        what: What the error calls the number.
    """
    parts = [part.strip() for part in text.split("/")]
    matches = [_DECIMAL.fullmatch(part) for part in parts]
    if len(parts) > 2 or not all(matches):
        raise _no_number(text, what)
    if any(_too_long(one) for one in matches if one):
        raise UsageError(
            f"{what} has too many digits: got {short_repr(text)}. Write a fraction such as 8/255 or a decimal."
        )
    try:
        number = Fraction(parts[0]) / Fraction(parts[1]) if len(parts) == 2 else Fraction(parts[0])
        value = float(number)
    except ZeroDivisionError:
        raise _no_number(text, what) from None
    except OverflowError:
        raise UsageError(f"{what} is too large a number: got {short_repr(text)}. Write a smaller one.") from None
    if number and not value:
        raise UsageError(f"{what} is too small a number: got {short_repr(text)}. Write a larger one, or 0.")
    return value


def pixel_text(value: float) -> str:
    """The shortest text that `parse_number` reads back: 8/255 rather than 0.0313725, 0.05 rather than 12.75/255."""
    texts = [f"{value * 255:.6g}/255", f"{value:.6g}", repr(value)]
    exact = [text for text in texts if math.isclose(parse_number(text, "number"), value, rel_tol=1e-9)]
    return min(exact, key=len)


def parse_int(text: str, what: str, *, more: str = "") -> int:
    """`12` or `-3` as an int of at most 64 bits.

    Args:
        text: Digits, with a minus before them or not.
        what: What the error calls the number.
        more: What the error adds about the notation.
    """
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"{what} needs a whole number{more}, got {short_repr(text)}. Write for example 12.")
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise UsageError(f"{what} is too large a number: got {short_repr(text)}. Write a smaller one.")
    return int(text)


@functools.cache
def _declared(kind: type) -> tuple[tuple[str, object], ...]:
    """The fields of a dataclass that have ranges, with their types; another class declares none."""
    if not is_dataclass(kind):
        return ()
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((f.name, hints[f.name]) for f in fields(kind) if _has_range(hints[f.name]))


def _has_range(declared: object) -> bool:
    return isinstance(declared, Range) or any(map(_has_range, typing.get_args(declared)))


def _check_range(name: str, kind: object, allowed: Range, value: object) -> None:
    whole = kind is int
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        must = f"be a {'whole' if whole else 'finite'} number and {allowed.description}"
        raise _refused(name, must, value, allowed.hint)
    assert isinstance(value, int | float)
    if not allowed.contains(value):
        raise _refused(name, allowed.description, value, allowed.hint)
    if not (limited := allowed.bounded(_LARGEST_COUNT if whole else _LARGEST_FLOAT)).contains(value):
        raise _refused(name, limited.description, value, allowed.hint)


def _check_tuple(name: str, inner: tuple[object, ...], value: object) -> None:
    if not isinstance(value, tuple | list):
        raise UsageError(f"{name} must be a tuple of numbers, got {short_repr(value)}. Write for example (1, 2).")
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
    if len(value) != len(kinds):
        example = ", ".join("0" * len(kinds))
        raise UsageError(
            f"{name} must be a tuple of {len(kinds)} numbers, got {short_repr(value)}. Write for example ({example})."
        )
    for position, (kind, one) in enumerate(zip(kinds, value, strict=True)):
        check_number(f"{name}[{position}]", kind, one)


def _refused(name: str, must: str, value: object, hint: str) -> UsageError:
    return UsageError(f"{name} must {must}, got {short_repr(value)}.{' ' if hint else ''}{hint}")


def _no_number(text: str, what: str) -> UsageError:
    return UsageError(f"{what} is not a number: got {short_repr(text)}. Write a fraction such as 8/255 or a decimal.")


def _too_long(number: re.Match[str]) -> bool:
    return len(number[0]) > _MOST_DIGITS or len((number[1] or "").lstrip("+-")) > _MOST_EXPONENT_DIGITS


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
