"""Options of commands are read as the arguments of the functions are."""

from types import SimpleNamespace
from typing import Any

import pytest

from vitadel.cli.options import per_channel
from vitadel.core.errors import UsageError

MEAN: Any = SimpleNamespace(name="mean")
CONTEXT: Any = None


def test_one_mean_is_for_all_channels() -> None:
    assert per_channel(CONTEXT, MEAN, "0.5") == 0.5
    assert per_channel(CONTEXT, MEAN, "0.4,0.5,128/255") == (0.4, 0.5, 128 / 255)
    assert per_channel(CONTEXT, MEAN, "0.4+0.5+0.6") == (0.4, 0.5, 0.6)
    assert per_channel(CONTEXT, MEAN, None) is None
    for text in ("0.4,0.5", "1,2,3,4"):
        with pytest.raises(UsageError, match=f"--mean needs one number, or three, .* got '{text}'. Write --mean 0.5,0"):
            per_channel(CONTEXT, MEAN, text)
