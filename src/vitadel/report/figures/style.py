"""The style of figures, and figures as inline SVG or as files; colors are CSS variables of the page."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitadel.core.errors import UsageError, short_reason
from vitadel.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors, distinguishable with any color vision; without their yellow, which is too light on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖")
DASHED: tuple[float, tuple[float, float]] = (0, (5, 3))
DOTTED: tuple[float, tuple[float, float]] = (0, (1.5, 2))
INK = "#010203"  # a unique color, which is replaced by the page's text color
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.0,
    "axes.formatter.limits": (-3, 5),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its title and alternative text; `width` is its width in inches."""

    title: str
    svg: str
    alt: str
    width: float = 0.0


def glyph(number: int) -> str:
    """The marker of the model of this number in legends and tables, the same as on its lines."""
    return _GLYPHS[number % len(_GLYPHS)]


def color(number: int) -> str:
    """The CSS color of the model of this number, which the page may change in dark mode."""
    number %= len(PALETTE)
    return f"var(--line-{number}, {PALETTE[number]})"


@contextmanager
def styled(name: str, inches: tuple[float, float]) -> Iterator["Figure"]:
    """An empty figure in the style of the page."""
    import matplotlib.style
    from matplotlib.figure import Figure

    # a salt per figure, so that ids are unique on the page
    with matplotlib.style.context({**_STYLE, "svg.hashsalt": name}, after_reset=True), warnings.catch_warnings():
        # characters that the font lacks are drawn as boxes, and in SVG with the fonts of the browser; edited numbers
        # may overflow
        warnings.filterwarnings("ignore", r"Glyph \d+ ", UserWarning)
        warnings.filterwarnings("ignore", r"(overflow|invalid value) encountered", RuntimeWarning)
        with _drawing(name):
            yield Figure(figsize=inches, layout="constrained")


@contextmanager
def _drawing(name: str) -> Iterator[None]:
    """Inside, an error of matplotlib is blamed on the numbers, such as an edited one of 1e308 that no axis can show."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"the figure {name!r} cannot be drawn ({type(error).__name__}: {short_reason(error)}). "
            "Check the numbers in the run folder, or leave that run out."
        ) from error


def svg(figure: "Figure") -> str:
    """The figure as an SVG element without date, namespace and fixed size, whose colors are set by the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[^"]*pt"| id="[\w.]+_\d+[^"]*"', "", text)
    text = text.replace("xlink:href", "href").replace("<svg", '<svg aria-hidden="true"', 1).replace(INK, "currentColor")
    for number, shade in enumerate(PALETTE):
        text = text.replace(shade, color(number))
    return text


def save_figure(figure: "Figure", path: Path, suffixes: Sequence[str] = (".png", ".pdf")) -> list[Path]:
    """The figure as PNG and PDF, named like `path`."""
    paths = [path.with_suffix(suffix) for suffix in suffixes]
    for one in paths:
        # without dates, so that files are reproducible
        metadata: dict[str, None] = {"CreationDate": None} if one.suffix == ".pdf" else {"Software": None}

        # drawn in memory, as matplotlib raises its own errors on a full disk
        drawn = io.BytesIO()
        figure.savefig(drawn, format=one.suffix[1:], dpi=200, facecolor="white", metadata=metadata)

        def write(temporary: Path, drawn: io.BytesIO = drawn) -> None:
            temporary.write_bytes(drawn.getvalue())

        write_atomically(one, write)
    return paths
