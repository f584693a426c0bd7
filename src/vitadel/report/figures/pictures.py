"""Pictures for the gallery: PNG files as data addresses, and the perturbation made visible."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitadel.report.checks import eps_text
from vitadel.report.records import Evaluation, Gallery

_MOST_CARDS = 12
_PAGE_BYTES = 12_000_000  # uncompressed pixels in one page; a page of photographs should still open on a phone
_PIXELATED_BELOW = 96


@dataclass(frozen=True, slots=True)
class Card:
    """One image of the gallery: three pictures and what the model said."""

    clean: str
    adversarial: str
    perturbation: str
    true: str
    before: str
    after: str
    outcome: str
    fell: bool
    wrong_before: bool
    scale: str


def cards(gallery: Gallery, *, galleries: int) -> tuple[Card, ...]:
    """Some of the images, fallen and standing ones both, as many as a page with `galleries` of them can bear."""
    each = 3 * gallery.clean[0].size if len(gallery.clean) else 1
    limit = max(2, min(_MOST_CARDS, _PAGE_BYTES // (each * galleries)))
    return tuple(_card(gallery, index) for index in _chosen(gallery.fell_to, limit))


def pixelated(gallery: Gallery) -> bool:
    """Whether the images are so small that smoothing them would hide their pixels."""
    return max(gallery.clean.shape[1:3]) < _PIXELATED_BELOW


def perturbation(clean: NDArray[np.float32], adversarial: NDArray[np.float32], full: float) -> NDArray[np.uint8]:
    """The difference as gray levels: -full is 0, no change is 128, +full is 255."""
    share = (adversarial.astype(np.float64) - clean) / full if full > 0 else np.zeros(clean.shape)
    # rounding clears float32's last digits, so that a change of exactly eps gets exactly the end of the scale
    return np.floor(255 * np.clip(np.round(share, 6) / 2 + 0.5, 0, 1) + 0.5).astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An [H, W, 3] picture as a PNG file; the same picture always gives the same bytes."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * 3)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    up_filtered = np.hstack([np.full((height, 1), 2, np.uint8), rows - above])  # bytes wrap, as PNG wants
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(up_filtered.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def has_gallery(evaluation: Evaluation) -> bool:
    return evaluation.gallery is not None and len(evaluation.gallery.clean) > 0


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _address(pixels: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def _bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.floor(255 * np.clip(pixels, 0, 1) + 0.5).astype(np.uint8)


def _chosen(fell_to: Sequence[str], limit: int) -> list[int]:
    """At most `limit` images, in turn one that fell, one that stands, one that was wrong before."""
    fallen = [i for i, name in enumerate(fell_to) if name not in ("", "clean")]
    standing = [i for i, name in enumerate(fell_to) if name == ""]
    wrong = [i for i, name in enumerate(fell_to) if name == "clean"]
    in_turn = sorted(
        (place, turn, i) for turn, kind in enumerate((fallen, standing, wrong)) for place, i in enumerate(kind)
    )
    return [i for _, _, i in sorted(in_turn[:limit], key=lambda entry: (entry[1], entry[2]))]


def _card(gallery: Gallery, index: int) -> Card:
    clean, adversarial = gallery.clean[index], gallery.adversarial[index]
    largest = float(np.abs(adversarial - clean).max())
    full = gallery.eps if gallery.norm == "linf" else largest
    return Card(
        clean=_address(_bytes(clean)),
        adversarial=_address(_bytes(adversarial)),
        perturbation=_address(perturbation(clean, adversarial, full)),
        true=_class_name(gallery, gallery.label[index]),
        before=_class_name(gallery, gallery.clean_prediction[index]),
        after=_class_name(gallery, gallery.prediction[index]),
        outcome=_outcome(gallery.fell_to[index]),
        fell=gallery.fell_to[index] not in ("", "clean"),
        wrong_before=gallery.fell_to[index] == "clean",
        scale=f"\N{PLUS-MINUS SIGN}{eps_text(gallery.norm, full)}",
    )


def _outcome(fell_to: str) -> str:
    return {"": "stands", "clean": "wrong before any attack"}.get(fell_to, f"fell to {fell_to}")


def _class_name(gallery: Gallery, number: int) -> str:
    return gallery.classes[number] if 0 <= number < len(gallery.classes) else str(number)
