"""Warnings that belong to a result: a reason to trust a number less."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A reason to trust a number less.

    Args:
        code: A short name for programs, such as `zero-gradients`.
        sentence: What is wrong, for readers.
        evidence: The numbers that show it.
    """

    code: str
    sentence: str
    evidence: Mapping[str, float]
