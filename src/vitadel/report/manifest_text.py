"""A manifest in words: one sentence about a model, and a run's parts as lines to read."""

from collections.abc import Iterator, Mapping, Sequence

from vitadel.report.records import Record

_LONG = 12
_HEADS = {
    "joint": "answers with the mean of its heads",
    "acc": "answers with its accurate head",
    "rob": "answers with its robust head",
    "kept": "answers with the frozen network's head",
}
_IN_GRAY_LEVELS = {"eps", "step_size"}


def compact(value: object, depth: int = 2) -> str:
    """A described value as one would write it in Python, cut short where it gets deep or long."""
    if isinstance(value, dict):
        inside = [f"{k}={_named(k, v, depth - 1)}" for k, v in value.items() if k != "is" and v is not None]
        text = ", ".join(inside) if depth > 0 else "\N{HORIZONTAL ELLIPSIS}" * bool(inside)
        return f"{value.get('is', '')}({text})"
    if isinstance(value, list):
        more = f", \N{HORIZONTAL ELLIPSIS} {len(value)} in all" if len(value) > _LONG else ""
        return "[" + ", ".join(compact(v, depth - 1) for v in value[:_LONG]) + more + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sentence(runs: Sequence[Record]) -> str:
    """What a model is, from all the runs that trained or measured it."""
    words = [_what(run) for run in runs]
    return "; ".join(dict.fromkeys(part for run in words for part in run if part)) + "."


def _what(run: Record) -> tuple[str, ...]:
    parts = _mapping(run.manifest.get("parts"))
    recipe, model = _mapping(parts.get("recipe")), _mapping(parts.get("model"))
    data = _mapping(parts.get("data")).get("spec")
    seed = parts.get("seed", recipe.get("seed"))
    where = (f" on {compact(data)}" if data is not None else "") + (f" (seed {seed})" if seed is not None else "")
    return (
        compact(recipe.get("about") or ""),
        _architecture(_mapping(recipe.get("model")) or _mapping(model.get("spec"))),
        _head(_mapping(_mapping(model.get("spec")).get("tuning"))),
        f"trained{where}{_objective(_mapping(recipe.get('objective')))}" if run.training else "",
        f"measured{where}" if run.evaluations or run.surveys else "",
        f"studied{where}" if run.masking or run.findings else "",
        f"weights {str(model['sha256'])[:12]}" if model.get("sha256") else "",
    )


def _architecture(spec: Mapping[str, object]) -> str:
    """The name and the geometry; the rest stands under provenance."""
    name = spec.get("name") or spec.get("start")
    sizes = (("image_size", " at {} px"), ("patch_size", ", patch {}"))
    return f"{name}{''.join(form.format(spec[key]) for key, form in sizes if spec.get(key))}" if name else ""


def _head(tuning: Mapping[str, object]) -> str:
    """Which of its heads a model with adapters answers with."""
    head = tuning.get("head", tuning.get("answer"))  # as earlier versions called it
    return "" if tuning.get("tuning") == "single" and head == "joint" else _HEADS.get(str(head), "")


def _objective(objective: Mapping[str, object]) -> str:
    threat = f" under {compact(objective['threat'])}" if objective.get("threat") else ""
    return f" with {objective['is']}{threat}" if objective.get("is") else ""


def provenance(record: Record) -> list[tuple[str, str]]:
    """Everything the manifest says, as pairs of name and text: what one needs first, then every part."""
    manifest = record.manifest
    first = [(key, _line(manifest.get(key))) for key in ("command", "kind", "created", "device", "commit")]
    later = [(key, _line(value)) for key, value in manifest.items() if key not in {*dict(first), "parts"}]
    parts = list(_leaves(manifest.get("parts"), ""))
    return [("folder", record.folder), *((k, v) for k, v in [*first, *later, *parts] if v)]


def _named(name: str, value: object, depth: int) -> str:
    """A value under its name: the small numbers of a threat are gray levels to those who read them."""
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


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
