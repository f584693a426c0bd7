"""Threats as people write them: `linf:8/255`."""

import math
from fractions import Fraction

from vitadel.errors import UsageError, unknown
from vitadel.threat.base import Threat
from vitadel.threat.l1 import L1
from vitadel.threat.l2 import L2
from vitadel.threat.linf import Linf

THREATS: dict[str, type[Linf] | type[L2] | type[L1]] = {"linf": Linf, "l2": L2, "l1": L1}


def read(text: str) -> Threat:
    """The threat that `NORM:EPS` names; the number is a fraction or a decimal, and never evaluated as code."""
    name, colon, size = text.partition(":")
    if name not in THREATS:
        raise unknown("threat", name, THREATS)
    if not colon:
        raise UsageError(f"the threat {text!r} has no radius. Write for example {name}:8/255.")
    return THREATS[name](read_number(size, f"the radius of {text!r}"))


def read_number(text: str, what: str) -> float:
    """`8/255`, `0.5/255` or `0.03` as a float."""
    above, slash, below = text.partition("/")
    try:
        return float(Fraction(above.strip()) / Fraction(below.strip())) if slash else float(Fraction(text.strip()))
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"{what} is not a number: got {text!r}. Write a fraction such as 8/255 or a decimal."
        ) from None
    except OverflowError:
        raise UsageError(f"{what} is too large a number: got {text!r}. Write a smaller one.") from None


def as_threat(threat: Threat | str) -> Threat:
    """A threat, or what the text of one stands for; a bare radius does not say of what."""
    if isinstance(threat, str):
        return read(threat)
    if not isinstance(threat, tuple(THREATS.values())):
        kinds = ", ".join(kind.__name__ for kind in THREATS.values())
        raise UsageError(f'a threat is a text such as "linf:8/255", or one of {kinds}, got {threat!r}.')
    return threat


def spell(threat: Threat) -> str:
    """The shortest text that `read` takes back: 8/255 rather than 0.0313725, 0.05 rather than 12.75/255."""
    known = as_threat(threat)
    name = next(name for name, kind in THREATS.items() if isinstance(known, kind))
    texts = [f"{threat.eps * 255:.6g}/255", f"{threat.eps:.6g}", repr(threat.eps)]
    exact = [text for text in texts if math.isclose(read_number(text, "eps"), threat.eps, rel_tol=1e-9)]
    return f"{name}:{min(exact, key=len)}"
