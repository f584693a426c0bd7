"""Threats by name: `linf:8/255`."""

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.numeric import parse_number
from vitadel.threats.base import Threat
from vitadel.threats.l1 import L1
from vitadel.threats.l2 import L2
from vitadel.threats.linf import Linf

THREATS: dict[str, type[Threat]] = {kind.name: kind for kind in (Linf, L2, L1)}


def parse_threat(text: str) -> Threat:
    """The threat that `NORM:EPS` names.

    Args:
        text: Such as "linf:8/255" or "l2:0.5"; the number is a fraction or a decimal, and never evaluated as code.

    Returns:
        The threat model.

    Raises:
        UsageError: If the norm is unknown, or the radius missing or out of range.

    Example:
        >>> threat = parse_threat("l2:0.5")
        >>> threat
        L2(eps=0.5)
        >>> x_new = threat.project(torch.rand_like(x), x)
        >>> bool((threat.distance(x_new, x) <= 0.5 + 1e-6).all())
        True
    """
    written, colon, eps = text.partition(":")
    name = written.lower()
    if name not in THREATS:
        raise unknown_name_error("threat", written, THREATS)
    if not colon:
        usual = f"{name}:{THREATS[name].usual_eps}"
        raise UsageError(f"the threat {short_repr(text)} has no radius. Write for example {usual}.")
    return THREATS[name](parse_number(eps, f"the radius of {short_repr(text)}"))


def as_threat(threat: Threat | str) -> Threat:
    """A threat, or the one that a text names.

    Args:
        threat: A threat, or a text such as "linf:8/255".

    Returns:
        The threat model.

    Raises:
        UsageError: If it is neither, such as a bare radius, which does not say in which norm.
    """
    if isinstance(threat, str):
        return parse_threat(threat)
    if not isinstance(threat, Threat):
        kinds = ", ".join(kind.__name__ for kind in THREATS.values())
        raise UsageError(
            f'a threat is a text such as "linf:8/255", or one of {kinds}, got {threat!r}. '
            f'Write "{suggested_threat(None, threat)}".'
        )
    return threat


def suggested_threat(norm: object, eps: object) -> str:
    """The text to write for a norm and a radius as other libraries take them, with a usual radius where there is none.

    Args:
        norm: Such as "Linf", "L2", 2 or inf; None for linf.
        eps: The radius, if it is a number.
    """
    name = "linf" if norm is None else str(norm).lower()
    kind = THREATS.get(name if name.startswith("l") else f"l{name}", Linf)
    if isinstance(eps, int | float):
        try:
            return str(kind(eps))
        except UsageError:  # out of range, such as a radius for pixels in [0, 255]
            pass
    return f"{kind.name}:{kind.usual_eps}"
