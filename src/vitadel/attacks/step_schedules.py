"""How the step of an iterative attack shrinks: functions of (step, steps) to a factor in (0, 1]."""

import math
from collections.abc import Callable

Schedule = Callable[[int, int], float]


def constant(step: int, steps: int) -> float:
    """The same step throughout."""
    return 1.0


def linear(step: int, steps: int) -> float:
    """Falls evenly; the last step has length 1/steps."""
    return 1 - step / steps


def cosine(step: int, steps: int) -> float:
    """Falls slowly, then fast, then slowly."""
    return (1 + math.cos(math.pi * step / steps)) / 2


SCHEDULES: dict[str, Schedule] = {"constant": constant, "linear": linear, "cosine": cosine}
