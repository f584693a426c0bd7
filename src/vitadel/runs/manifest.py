"""The manifest of a run: everything that identifies it and is needed to repeat it."""

import dataclasses
import enum
import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from vitadel import __version__
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json
from vitadel.runs.typed_json import from_json, to_json

_PACKAGES = ("torch", "torchvision", "timm", "accelerate", "safetensors", "numpy", "pyarrow")


REMEDY = "Restore it from a copy, or choose another run folder."
# kinds of runs as earlier versions wrote them
_FORMER_KINDS = {"analyse": "analyze"}


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """The content of `manifest.json`.

    Args:
        kind: The kind of run: `train`, `evaluate`, `attack`, `analyze`, `sweep`.
        parts: Everything that determines the result (recipe, model, data, seed, ...), as returned by `describe`.
        hashes: The fingerprint of each part.
        created: Time of creation in UTC.
        versions: The versions of Python, Vitadel and the packages that determine results.
        commit: The commit of the code; None for an installed package.
        machine: System and processor.
        device: The device of the computation.
        command: The command line.
    """

    kind: str
    parts: Mapping[str, Any]
    hashes: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    commit: str | None = None
    machine: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    command: str | None = None

    def find(self, *path: str) -> Any:
        """The value at a path into the parts, such as `find("model", "sha256")`; None if there is none."""
        value: object = self.parts
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def text(self, *path: str) -> str:
        """The text at a path into the parts; empty if there is none."""
        value = self.find(*path)
        return value if isinstance(value, str) else ""

    @property
    def head(self) -> str:
        """The head that a model with adapters predicts with (`answer` in earlier versions); empty otherwise."""
        return next(filter(None, (self.text("model", "spec", "tuning", key) for key in ("head", "answer"))), "")

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON."""
        # parts without to_json, which would replace infinities by null and thereby change their hashes
        return {**to_json(self), "parts": self.parts}

    @classmethod
    def read(cls, path: Path) -> "ManifestRecord":
        """The record in a `manifest.json`; raises a UsageError if parts do not match their hashes."""
        content = read_json(path, REMEDY)
        if not isinstance(content.get("parts"), dict) or not isinstance(content.get("kind"), str):
            raise UsageError(f"{path} does not say what the run is: it has no kind and no parts. {REMEDY}")
        record = from_json(cls, content, path, REMEDY)
        # manifests of the first version have no hashes
        for name, known in record.hashes.items():
            if name in record.parts and known != fingerprint(record.parts[name]):
                raise UsageError(f"{path} is damaged or was edited: its {name} does not match the hash in it. {REMEDY}")
        return replace(record, kind=_FORMER_KINDS.get(record.kind, record.kind))


def describe(value: object) -> object:
    """`value` as plain JSON: dataclasses become objects with their class name in `is`, functions become names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(f"a manifest cannot hold a {type(value).__name__}: {value!r}")


def fingerprint(part: object) -> str:
    """A short hash of a value as returned by `describe`."""
    text = json.dumps(describe(part), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(then: object, now: object, path: str = "", *, longest: int | None = None) -> list[str]:
    """The differences of two described values, one line per leaf: `recipe.plan.epochs: 3 -> 5`.

    With `longest`, longer names and values are shortened to that many characters around the first difference.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(k for k in now if k not in then)]
        pairs = ((then.get(k), now.get(k), f"{path}.{k}".lstrip(".")) for k in keys)
        return [line for pair in pairs for line in differences(*pair, longest=longest)]
    if then == now:
        return []
    old, new = json.dumps(then), json.dumps(now)
    if longest is not None:
        first = next((position for position, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        path, old, new = _excerpt(path, 0, longest), _excerpt(old, first, longest), _excerpt(new, first, longest)
    return [f"{path}: {old} -> {new}"]


def _excerpt(text: str, position: int, longest: int) -> str:
    """At most `longest` characters of a text around `position`."""
    if len(text) <= longest:
        return text
    start = max(0, min(position - longest // 2, len(text) - longest))
    part = text[start : start + longest]
    if start:
        part = "..." + part[3:]
    return part if start + longest == len(text) else part[:-3] + "..."


def code_hashes(*packages: str) -> dict[str, str]:
    """A short hash of every source file of these packages or modules, so that a manifest can name what changed."""
    root = Path(__file__).parents[1]
    files = [
        path
        for package in packages
        for path in ([root / package] if package.endswith(".py") else (root / package).rglob("*.py"))
    ]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in sorted(files)
    }


def environment() -> dict[str, Any]:
    """Versions, commit and machine: recorded with every run, not part of its identity."""
    return {
        "versions": {
            "vitadel": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "commit": _commit(),
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout, with `+changes` if files differ from it; None for an installed package."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        return head + ("+changes" if _git(here, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
