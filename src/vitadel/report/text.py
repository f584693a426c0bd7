"""Results as text: numbers in tables, escaping for Markdown and LaTeX, manifests in readable lines."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitadel.core.files import write_atomically
from vitadel.core.flags import Flag
from vitadel.runs import ManifestRecord

if TYPE_CHECKING:
    from vitadel.report.reader import RunRecord

DASH = "\N{EN DASH}"
_MINUS, _DOTS = "\N{MINUS SIGN}", "\N{HORIZONTAL ELLIPSIS}"
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\n": " ",
        DASH: "--",
        _MINUS: "$-$",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)
# entries of a list that are written out
_LONG = 12
_HEADS = {
    "joint": "predicts with the mean of its heads",
    "acc": "predicts with its accurate head",
    "rob": "predicts with its robust head",
    "kept": "predicts with the frozen network's head",
}
_IN_GRAY_LEVELS = {"eps", "step_size"}


def write_file(path: Path, text: str) -> Path:
    """Write a file atomically; characters that cannot be encoded in UTF-8 are escaped."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")

    write_atomically(path, write)
    return path


# ---------------------------------------------------------------- numbers


def number(value: float | None, *, is_share: bool) -> str:
    """A number in a table: shares in percent, others with one decimal from 10 on and three below."""
    if value is None or math.isnan(value):
        return DASH
    if is_share:
        return f"{100 * value:.1f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def interval(low: float | None, high: float | None, *, is_share: bool) -> str:
    """The ends of an interval; empty if there is none."""
    if low is None or high is None:
        return ""
    return DASH.join(number(end, is_share=is_share) for end in (low, high))


def signed(difference: float, *, is_share: bool) -> str:
    """A difference with its sign; in percentage points for shares."""
    text = number(abs(difference), is_share=is_share)
    return text if float(text) == 0 else ("+" if difference > 0 else _MINUS) + text


def eps_text(unit: str, eps: float, digits: int = 3) -> str:
    """A radius as in papers: n/255 in the unit 1/255, a decimal without a unit."""
    number = f"{eps * unit_factor(unit):.{digits}g}"
    return f"{number}/{unit.partition('/')[2]}" if unit else number


def unit_factor(unit: str) -> int:
    """How many of a unit such as 1/255 make 1; 1 without a unit."""
    return int(unit.partition("/")[2]) if unit else 1


def p_text(p: float) -> str:
    """A p-value."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def parameters_text(count: int | None) -> str:
    """A number of parameters: 86.6M, 5.4k; a dash if it is not known."""
    if count is None:
        return DASH
    return f"{count / 1e6:.3g}M" if count >= 10_000 else f"{count / 1000:.3g}k"


def evidence(flag: Flag) -> str:
    """The numbers behind a flag."""
    return ", ".join(f"{key} = {compact(value)}" for key, value in flag.evidence.items())


def markdown_text(cell: str) -> str:
    """Text escaped for a cell of a Markdown table."""
    for sign, safe in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        cell = cell.replace(sign, safe)
    return re.sub("[*`]", r"\\\g<0>", cell)


def latex_text(cell: str) -> str:
    """Text escaped for LaTeX."""
    return cell.translate(_LATEX)


# -------------------------------------------------------------- manifests


def compact(value: object, depth: int = 2) -> str:
    """A described value in Python notation, shortened if it is deep or long."""
    if isinstance(value, dict):
        inside = [f"{k}={_named(k, v, depth - 1)}" for k, v in value.items() if k != "is" and v is not None]
        text = ", ".join(inside) if depth > 0 else _DOTS * bool(inside)
        return f"{value.get('is', '')}({text})"
    if isinstance(value, list):
        more = f", {_DOTS} {len(value)} in all" if len(value) > _LONG else ""
        return "[" + ", ".join(compact(v, depth - 1) for v in value[:_LONG]) + more + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def description(run: "RunRecord") -> list[str]:
    """The description of a run's model: recipe, architecture, data, weights; empty texts for unknown parts."""
    find = run.manifest.find
    data, seed = find("data", "spec"), run.manifest.parts.get("seed", find("recipe", "seed"))
    on = (f" on {compact(data)}" if data is not None else "") + (f" (seed {seed})" if seed is not None else "")
    return [
        compact(find("recipe", "about") or ""),
        _architecture(find("recipe", "model") or find("model", "spec")),
        _head(run.manifest),
        f"trained{on}{_objective(find('recipe', 'objective'))}" if run.training else "",
        f"measured{on}" if run.attacks or run.perturbations else "",
        f"studied{on}" if run.study else "",
        f"weights {run.weights[:12]}" if run.weights else "",
    ]


def _architecture(spec: object) -> str:
    """The name, image size and patch size; everything else is listed under provenance."""
    if not isinstance(spec, Mapping):
        return ""
    name = spec.get("name") or spec.get("start")
    sizes = (("image_size", " at {} px"), ("patch_size", ", patch {}"))
    return f"{name}{''.join(form.format(spec[key]) for key, form in sizes if spec.get(key))}" if name else ""


def _head(manifest: ManifestRecord) -> str:
    """Which of its heads a model with adapters predicts with."""
    is_single = manifest.text("model", "spec", "tuning", "tuning") == "single"
    return "" if is_single and manifest.head == "joint" else _HEADS.get(manifest.head, "")


def _objective(objective: object) -> str:
    if not isinstance(objective, Mapping) or not objective.get("is"):
        return ""
    threat = f" under {compact(objective['threat'])}" if objective.get("threat") else ""
    return f" with {objective['is']}{threat}"


def provenance(folder: str, manifest: ManifestRecord) -> list[tuple[str, str]]:
    """Everything in a manifest as pairs of name and text: the most important entries, then every part."""
    content = manifest.to_json()
    first = [(key, _line(content.pop(key))) for key in ("command", "kind", "created", "device", "commit")]
    parts, others = _leaves(content.pop("parts"), ""), [(key, _line(value)) for key, value in content.items()]
    return [("folder", folder), *((key, value) for key, value in [*first, *others, *parts] if value)]


def _named(name: str, value: object, depth: int) -> str:
    """A value under its name: the radius of a threat is written in gray levels."""
    if name in _IN_GRAY_LEVELS and isinstance(value, float):
        levels = 255 * value
        if abs(levels - round(levels)) < 1e-6 and 1 <= levels <= 64:
            return f"{round(levels)}/255"
    return compact(value, depth)


def _line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {compact(entry)}" for key, entry in value.items() if entry is not None)
    return "" if value is None else compact(value)


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _leaves(entry, path if key == "is" else f"{path}.{key}".lstrip("."))
    elif value is not None:
        yield path, _named(path.rpartition(".")[2], value, 2)
