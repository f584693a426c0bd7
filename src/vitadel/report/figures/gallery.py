"""The gallery of attacked images: PNG files as data URLs, and perturbations with increased contrast."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitadel.report.text import eps_text
from vitadel.runs.schema import ROBUST, WRONG_BEFORE, Gallery

_MOST_CARDS = 12
_PAGE_BYTES = 12_000_000  # uncompressed pixels per page, to keep pages with photographs small
_PIXELATED_BELOW = 96


@dataclass(frozen=True, slots=True)
class Card:
    """One image of the gallery: three pictures and the model's predictions."""

    clean: str
    adversarial: str
    perturbation: str
    true: str
    before: str
    after: str
    result: str
    state: str
    scale: str


def cards(gallery: Gallery, *, unit: str, galleries: int) -> tuple[Card, ...]:
    """Some of the images, broken and robust ones; how many depends on the number of galleries on the page.

    Args:
        gallery: The images.
        unit: The unit of the radius; with one, the radius bounds every pixel value and is the scale of differences.
        galleries: How many galleries the page has.
    """
    each = 3 * gallery.clean[0].size if len(gallery.clean) else 1
    limit = max(2, min(_MOST_CARDS, _PAGE_BYTES // (each * galleries)))
    return tuple(_card(gallery, unit, number) for number in _chosen(gallery.broken_by, limit))


def pixelated(gallery: Gallery) -> bool:
    """Whether the images are so small that they should be shown without smoothing."""
    return max(gallery.clean.shape[1:3]) < _PIXELATED_BELOW


def perturbation(clean: NDArray[np.float32], adversarial: NDArray[np.float32], full: float) -> NDArray[np.uint8]:
    """The difference as gray levels: -full is 0, no change is 128, +full is 255."""
    relative = (adversarial.astype(np.float64) - clean) / full if full > 0 else np.zeros(clean.shape)
    # rounded, so that a change of eps in float32 is exactly the end of the scale
    return np.floor(255 * np.clip(np.round(relative, 6) / 2 + 0.5, 0, 1) + 0.5).astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An [H, W, 3] picture as a PNG file; the same picture always gives the same bytes."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * 3)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    up_filtered = np.hstack([np.full((height, 1), 2, np.uint8), rows - above])  # bytes wrap, as PNG needs
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(up_filtered.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _address(pixels: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def _bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.floor(255 * np.clip(pixels, 0, 1) + 0.5).astype(np.uint8)


def _state(broken_by: str) -> str:
    return {ROBUST: "robust", WRONG_BEFORE: "wrong"}.get(broken_by, "broken")


def _chosen(broken_by: Sequence[str], limit: int) -> list[int]:
    """At most `limit` images, alternating between broken, robust and misclassified ones."""
    states = [_state(name) for name in broken_by]
    kinds = [[i for i, state in enumerate(states) if state == kind] for kind in ("broken", "robust", "wrong")]
    in_turn = sorted((rank, turn, i) for turn, kind in enumerate(kinds) for rank, i in enumerate(kind))
    return [i for _, _, i in sorted(in_turn[:limit], key=lambda entry: (entry[1], entry[2]))]


def _card(gallery: Gallery, unit: str, number: int) -> Card:
    clean = gallery.clean[number].astype(np.float32) / np.float32(255)
    adversarial, broken_by = gallery.adversarial[number], gallery.broken_by[number]
    largest = float(np.abs(adversarial - clean).max())
    full = gallery.eps if unit else largest
    results = {"robust": "robust", "wrong": "misclassified before any attack"}
    return Card(
        clean=_address(gallery.clean[number]),
        adversarial=_address(_bytes(adversarial)),
        perturbation=_address(perturbation(clean, adversarial, full)),
        true=_class_name(gallery, gallery.label[number]),
        before=_class_name(gallery, gallery.clean_prediction[number]),
        after=_class_name(gallery, gallery.prediction[number]),
        result=results.get(_state(broken_by), f"broken by {broken_by}"),
        state=_state(broken_by),
        scale=f"\N{PLUS-MINUS SIGN}{eps_text(unit, full)}",
    )


def _class_name(gallery: Gallery, number: int) -> str:
    return gallery.classes[number] if 0 <= number < len(gallery.classes) else str(number)
