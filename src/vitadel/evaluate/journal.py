"""Where the findings of a cascade are written down, attack by attack, so that nothing is searched for twice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Columns = Mapping[str, Sequence[object]]


class Page(Protocol):
    """What is known from one attack, one line per image, keyed by `row`."""

    def add(self, columns: Columns) -> None:
        """Write down some lines."""

    def read(self) -> dict[str, list[object]]:
        """All lines so far, in order of `row`; empty if there are none."""


class Journal(Protocol):
    """A page per attack; `vitadel.runs.Rows` is one on disk."""

    def page(self, name: str) -> Page:
        """The page of this name, blank if it is new."""


@dataclass(slots=True)
class Notebook:
    """A journal in memory."""

    pages: dict[str, "_Leaf"] = field(default_factory=lambda: defaultdict(_Leaf))

    def page(self, name: str) -> Page:
        return self.pages[name]


@dataclass(slots=True)
class _Leaf:
    lines: dict[str, list[object]] = field(default_factory=dict)

    def add(self, columns: Columns) -> None:
        for name, values in columns.items():
            self.lines.setdefault(name, []).extend(values)

    def read(self) -> dict[str, list[object]]:
        order = sorted(range(len(self.lines.get("row", []))), key=lambda at: int(str(self.lines["row"][at])))
        return {name: [values[at] for at in order] for name, values in self.lines.items()}
