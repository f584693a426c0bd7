"""The faults that are drawn, on sources small enough to list them all."""

import pytest
from faults import faults_of  # type: ignore[import-not-found]


def changed(source: str) -> list[str]:
    """The source with each fault, without the lines that are as before."""
    result = [fault for place in faults_of(source.encode()) for fault in place]
    lines = source.splitlines()
    texts = [fault.applied(source.encode()).decode().splitlines() for fault in result]
    assert all(len(text) == len(lines) for text in texts)
    for text, fault in zip(texts, result, strict=True):
        assert [number for number, line in enumerate(text, 1) if line != lines[number - 1]] == [fault.line]
    return [text[fault.line - 1].strip() for text, fault in zip(texts, result, strict=True)]


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a < b", ["a <= b", "a > b"]),
        ("a == b != c", ["a != b != c", "a == b == c"]),
        ("a is not b", ["a is b"]),
        ("a not in b", ["a in b"]),
        ("a + b * c", ["a - b * c", "a + b / c"]),
        ("(a) ** (b)", ["(a) * (b)"]),
        ("a -= b", ["a += b"]),
        ("-a", ["a"]),
        ("not a", [" a"]),
        ("a and b and c", ["a or b and c", "a and b or c"]),
        ("f(True)", ["f(False)"]),
        ("f(0, 2)", ["f(1, 2)", "f(0, 3)", "f(0, 1)"]),
        ("f(0.5)", ["f(1.5)", "f(1.0)"]),
        ("f(0.0)", ["f(1.0)"]),
        ("min(a, b)", ["max(a, b)"]),
        ("a.argmax(b)", ["a.argmin(b)"]),
        ("a if b else c", ["a if (not b) else c"]),
        ("ä = 'ä'; a = b + c", ["ä = 'ä'; a = b - c"]),
    ],
)
def test_every_fault_of_a_line(source: str, faults: list[str]) -> None:
    assert [line.strip() for line in changed(source)] == [line.strip() for line in faults]


@pytest.mark.parametrize(
    "source",
    [
        '"""Not 1 < 2."""',
        "assert a < b",
        "raise ValueError(a + 1)",
        "raise UsageError(f'{a + 1} < {b}')",
        "__all__ = [1]",
        "def f(a: Literal[1], b: int | None = None) -> X[2]: ...",
        "a: Literal[1]",
        "if TYPE_CHECKING:\n    a = 1",
        "zip(a, b, strict=True)",
        "@dataclass(frozen=True)\nclass A: ...",
        "A = B | C",
        "folder / 'name' + ['a']",
        "f'{a + 1}'",
    ],
)
def test_code_without_effect_is_not_mutated(source: str) -> None:
    assert changed(source) == []


def test_a_fault_records_its_function() -> None:
    source = """a = 1
class A:
    b = 2
    def f(self, c=3):
        def g():
            return 4
        return lambda: 5
"""
    result = {fault.line: fault.function for place in faults_of(source.encode()) for fault in place}
    assert result == {1: "", 3: "", 4: "", 6: "A.f.g", 7: "A.f"}
