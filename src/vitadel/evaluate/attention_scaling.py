"""Attacks that learn from a rescaled model, in a cascade: factors found once, every attack plain and then scaled."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from vitadel.attacks import Engine, Factors, Flag, Found, Scaling, scaled, search_factors
from vitadel.core.device import device_of
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_json
from vitadel.evaluate.attack_suites import SCALED, Entry
from vitadel.evaluate.cascade import Images
from vitadel.threats import Threat

# what the paper reports: the rescaled model, attacked and scored in the place of the model itself
PAPER_PROTOCOL = "paper-protocol"
ANOTHER_NETWORK = Flag(
    "rescaled-model",
    "these are the numbers of the rescaled model, which nobody deploys: the paper's protocol, not the model's accuracy",
    {},
)


def with_scaled(entries: tuple[Entry, ...], factors: Factors) -> tuple[Entry, ...]:
    """Every attack as it is; then, on what is left, every attack once more, learning from the rescaled model."""
    again = (replace(entry, name=entry.name + SCALED, attack=scaled(entry.attack, factors)) for entry in entries)
    return (*entries, *again)


def in_float32(engine: Engine) -> Engine:
    """The engine for a scaled search: what scaling brings back is what lower precision would lose again."""
    if engine.precision not in (None, "float32"):
        raise UsageError(f"scaled attacks search in float32, got precision={engine.precision!r}. Leave it out.")
    if engine.compile:
        raise UsageError("scaled attacks reach into attention, and compiled code does not see taps. Leave compile out.")
    return replace(engine, precision="float32")


def find(model: torch.nn.Module, images: Images, threat: Threat, scaling: Scaling, seed: int) -> Found:
    """Factors from the first images of the split, whose order is pinned."""
    rows = torch.arange(min(len(images), max(scaling.batches * scaling.batch, scaling.held)))
    device = device_of(model)
    x, y = images.images(rows).to(device), images.labels[rows].to(device)
    return search_factors(model, x, y, threat, scaling, seed=seed)


def find_once(
    model: torch.nn.Module, images: Images, threat: Threat, scaling: Scaling, seed: int, file: Path, ranks: Ranks
) -> Mapping[str, object]:
    """What `told` says of the factors; found by one process, read by all, and read again after a restart."""
    if ranks.rank == 0 and not file.exists():
        write_json(file, told(find(model, images, threat, scaling, seed)))
    ranks.wait()
    words = read_json(file)
    try:
        factors_of(words)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file} does not hold factors as a search writes them ({error!r}). Delete it to have them searched again."
        ) from error
    return words


def told(found: Found) -> dict[str, object]:
    """What is written down of a search for factors."""
    cost = {"forwards": found.forwards, "backwards": found.backwards, "seconds": round(found.seconds, 3)}
    return {"factors": asdict(found.best), "tried": [asdict(one) for one in found.tried], **cost}


def factors_of(words: Mapping[str, object]) -> Factors:
    kept = words["factors"]
    assert isinstance(kept, dict)
    return Factors(**{**kept, "attentions": tuple(kept["attentions"])})
