"""Every small fault that a source file can be given: a comparison, sign, constant, boolean or minimum changed.

Left out is what no test should detect: docstrings, annotations, assertions, the texts of errors, decorators.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">")),
    ast.LtE: (r"<=", ("<", ">=")),
    ast.Gt: (r">", (">=", "<")),
    ast.GtE: (r">=", (">", "<=")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitOr: (r"\|", "&"),
    ast.BitAnd: (r"&", "|"),
}
_SIGNS: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.Not: "not", ast.Invert: "~"}
_PAIRS = [
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("clamp_min_", "clamp_max_"),
    ("any", "all"),
    ("floor", "ceil"),
    ("logical_and", "logical_or"),
]
_CALLS = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}
# a keyword that only guards or points at a line
_SILENT_KEYWORDS = {"strict", "stacklevel"}
_SILENT_CALLS = {"UsageError", "warn", "isinstance", "cast", "TypeVar"}
_SILENT_NAMES = {"__all__", "__slots__"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file: the bytes from `start` to `end` become `text`."""

    start: int
    end: int
    text: str
    line: int
    function: str  # the qualified name of the function it is in; empty outside of functions

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def faults_of(source: bytes) -> list[list[Fault]]:
    """All faults of a file, those of one place together."""
    return [faults for faults in _Finder(source).found() if faults]


class _Finder:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.tree = ast.parse(source)
        lines = source.splitlines(keepends=True)
        self.starts = [sum(map(len, lines[:number])) for number in range(len(lines))]

    def found(self) -> Iterator[list[Fault]]:
        yield from self._visit(self.tree, "", "")

    def _visit(self, node: ast.AST, name: str, function: str) -> Iterator[list[Fault]]:
        for start, end, texts in self._faults(node, function):
            line = self.source.count(b"\n", 0, start) + 1
            yield [Fault(start, end, text, line, function) for text in texts]
        if not isinstance(node, DEFINITIONS):
            for child in _children(node):
                yield from self._visit(child, name, function)
            return
        name = f"{name}.{node.name}".lstrip(".")
        inner = function if isinstance(node, ast.ClassDef) else name
        for child in _children(node):
            # the defaults of a function are evaluated where it is defined
            yield from self._visit(child, name, function if isinstance(child, ast.arguments) else inner)

    def _faults(self, node: ast.AST, function: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        match node:
            case ast.Compare():
                for left, operator, right in zip(
                    [node.left, *node.comparators], node.ops, node.comparators, strict=False
                ):
                    pattern, texts = _COMPARISONS[type(operator)]
                    yield from self._between(left, right, pattern, texts)
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _of_text(node, function):
                pattern, text = _ARITHMETIC[type(node.op)]
                yield from self._between(node.left, node.right, pattern, (text,))
            case ast.AugAssign() if type(node.op) in _ARITHMETIC and not isinstance(node.value, _SEQUENCES):
                pattern, text = _ARITHMETIC[type(node.op)]
                yield from self._between(node.target, node.value, pattern, (text,))
            case ast.BoolOp():
                word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, rf"\b{word}\b", (other,))
            case ast.UnaryOp() if type(node.op) in _SIGNS:
                start = self._start(node)
                yield start, start + len(_SIGNS[type(node.op)]), ("",)
            case ast.Constant():
                yield self._start(node), self._end(node), _constants(node.value)
            case ast.Call():
                name = _name(node.func)
                if name in _CALLS:
                    yield self._end(node.func) - len(name), self._end(node.func), (_CALLS[name],)
            case ast.If() | ast.While() | ast.IfExp():
                if isinstance(node.test, ast.Name | ast.Attribute | ast.Call) and _name(node.test) != "TYPE_CHECKING":
                    start, end = self._start(node.test), self._end(node.test)
                    yield start, end, (f"(not {self.source[start:end].decode()})",)

    def _between(
        self, left: ast.AST, right: ast.AST, pattern: str, texts: tuple[str, ...]
    ) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        start = self._end(left)
        gap = self.source[start : self._start(right)].decode()
        result = re.search(pattern, gap)
        if result is not None and "#" not in gap:
            first = start + len(gap[: result.start()].encode())
            yield first, first + len(result[0].encode()), texts

    def _start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that a fault may change."""
    match node:
        # the positions of nodes within an f-string are wrong before Python 3.12
        case ast.Assert() | ast.Raise() | ast.JoinedStr():
            return
        case ast.Call() if _name(node.func) in _SILENT_CALLS:
            return
        case ast.If() if _name(node.test) == "TYPE_CHECKING":
            yield from node.orelse
        case ast.Assign() if any(_name(target) in _SILENT_NAMES for target in node.targets):
            return
        case ast.AnnAssign():
            yield from [node.value] if node.value is not None else []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.args
            yield from node.body
        case ast.ClassDef():
            yield from node.body
        case ast.arg():
            return
        case ast.keyword() if node.arg in _SILENT_KEYWORDS:
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _of_text(node: ast.BinOp, function: str) -> bool:
    """Strings, lists and paths have operators of their own, and so have types: no other fits."""
    if isinstance(node.op, ast.BitOr | ast.BitAnd) and not function:
        return True
    return any(
        isinstance(side, _SEQUENCES) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _constants(value: object) -> tuple[str, ...]:
    match value:
        case bool():
            return (str(not value),)
        case int():
            return (str(value + 1),) if value < 1 else (str(value + 1), str(value - 1))
        case float():
            return (repr(value + 1), repr(value * 2)) if value else ("1.0",)
        case _:
            return ()
