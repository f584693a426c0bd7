"""Threats as people write them: `linf:8/255`."""

import math

from vitadel.core.errors import UsageError, quoted, unknown
from vitadel.core.numeric import read_number
from vitadel.threats.base import Threat
from vitadel.threats.l1 import L1
from vitadel.threats.l2 import L2
from vitadel.threats.linf import Linf

THREATS: dict[str, type[Linf] | type[L2] | type[L1]] = {"linf": Linf, "l2": L2, "l1": L1}


def read(text: str) -> Threat:
    """The threat that `NORM:EPS` names; the number is a fraction or a decimal, and never evaluated as code."""
    written, colon, size = text.partition(":")
    name = written.lower()
    if name not in THREATS:
        raise unknown("threat", written, THREATS)
    if not colon:
        raise UsageError(f"the threat {quoted(text)} has no radius. Write for example {name}:8/255.")
    return THREATS[name](read_number(size, f"the radius of {quoted(text)}"))


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
