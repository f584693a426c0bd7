"""Results on record: what a computation gave once, compared number by number.

After an intended change, delete the record and run the test twice: the first run records anew and fails.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

# other processors round sums differently
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


def check(record: Path, name: str, result: object) -> None:
    """Fail with the first values that are not those on record."""
    recorded = json.loads(record.read_text()) if record.exists() else {}
    result = plain(result)
    if name not in recorded:
        texts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**recorded, name: result}.items()]
        record.write_text("{\n" + ",\n".join(texts) + "\n}\n")
        pytest.fail(f"{name} was not on record and now is: look at the difference")
    differing = list(differences(result, recorded[name], name))
    assert not differing, differing[:5]


def plain(value: object) -> object:
    """As JSON, with four digits; of packed arrays their shape, mean and a weighted mean."""
    if isinstance(value, Mapping):
        if "base64" in value:
            array = np.frombuffer(base64.b64decode(str(value["base64"])), str(value["dtype"])).astype(np.float64)
            weights = np.cos(np.arange(array.size))
            return [value["dtype"], value["shape"], plain(array.mean()), plain((array * weights).sum() / array.size)]
        return {str(key): plain(one) for key, one in value.items() if key != "seconds"}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value


def differences(result: object, known: object, path: str) -> Iterator[str]:
    if isinstance(result, Mapping) and isinstance(known, Mapping) and result.keys() == known.keys():
        for key in known:
            yield from differences(result[key], known[key], f"{path}.{key}")
    elif isinstance(result, list) and isinstance(known, list) and len(result) == len(known):
        for place, (one, other) in enumerate(zip(result, known, strict=True)):
            yield from differences(one, other, f"{path}.{place}")
    elif not _same(result, known):
        yield f"{path}: {result} instead of {known}"


def _same(result: object, known: object) -> bool:
    numbers = [one for one in (result, known) if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return result == known
