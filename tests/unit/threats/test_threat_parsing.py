"""Threats as text."""

import pytest

from vitadel.core.errors import UsageError
from vitadel.shifts import RotateTranslate
from vitadel.threats import L1, L2, Linf, Threat, as_threat, parse_threat


@pytest.mark.parametrize(
    ("text", "threat"),
    [
        ("linf:8/255", Linf(8 / 255)),
        ("linf:0.5/255", Linf(0.5 / 255)),
        ("linf:0.3", Linf(0.3)),
        ("l2:0.5", L2(0.5)),
        ("l2:128/255", L2(128 / 255)),
        ("l1:12", L1(12)),
    ],
)
def test_threats_are_parsed_and_formatted(text: str, threat: Threat) -> None:
    assert parse_threat(text) == threat
    assert parse_threat(str(threat)).eps == pytest.approx(threat.eps, rel=1e-9)


def test_gray_levels_are_formatted_as_fractions() -> None:
    assert [str(Linf(k / 255)) for k in (0.25, 1, 8, 2.5)] == [f"linf:{k}/255" for k in ("0.25", "1", "8", "2.5")]
    assert [str(Linf(0.05)), str(L2(0.5)), str(L2(128 / 255))] == ["linf:0.05", "l2:0.5", "l2:128/255"]
    assert [str(L1(12)), str(Linf(0.1 / 3))] == ["l1:12", "linf:8.5/255"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lnf:8/255", "unknown threat 'lnf'. Did you mean 'linf'"),
        ("linf", "has no radius. Write for example linf:8/255"),
        ("linf:8", "write 8/255, not 8"),
        ("linf:__import__('os')", "is not a number"),
        ("linf:8/0", "is not a number"),
        ("linf:8/255/2", "the radius of 'linf:8/255/2' is not a number: got '8/255/2'. Write a fraction such as 8/255"),
        ("l2:nan", "is not a number"),
        ("l2:1e999999999", "has too many digits"),
        ("linf:1/1e999999999", "has too many digits"),
        ("l2:-1", "must be positive"),
        ("l2:1e400", "is too large a number: got '1e400'. Write a smaller one"),
    ],
)
def test_invalid_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_threat(text)


def test_a_radius_alone_is_not_a_threat() -> None:
    assert as_threat("linf:8/255") == as_threat(Linf(8 / 255)) == Linf(8 / 255)
    with pytest.raises(UsageError, match=r'a threat is a text such as "linf:8/255", or one of Linf, L2, L1, got 0\.5'):
        as_threat(0.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="or one of Linf, L2, L1, got RotateTranslate"):
        as_threat(RotateTranslate(3.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("radius", "line"), [(8 / 255, "linf:8/255"), (0.5, "linf:0.5"), (8, "linf:8/255")])
def test_a_radius_alone_is_refused_with_the_text_to_write(radius: float, line: str) -> None:
    with pytest.raises(UsageError, match=f'Write "{line}".$'):
        as_threat(radius)  # type: ignore[arg-type]
