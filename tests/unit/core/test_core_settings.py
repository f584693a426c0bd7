"""Settings as text: values have the types of their fields, and errors say what to write."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from vitadel.core.errors import UsageError
from vitadel.core.settings import Notation, field_docs, setting_names, split_assignment, split_name, with_settings


@dataclass(frozen=True)
class Optimizer:
    lr: float = 0.1
    momentum: float | None = 0.9


@dataclass(frozen=True)
class Plan:
    """A plan.

    Args:
        epochs: How many passes over the data.
        flip: Whether images are flipped.
    """

    epochs: int = 3
    flip: bool = True
    blocks: tuple[int, ...] = (1, 2)
    folder: Path = Path("here")
    optimizer: Optimizer = Optimizer()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs=7", Plan(epochs=7)),
        ("flip=false", Plan(flip=False)),
        ("flip=true", Plan(flip=True)),
        ("blocks=4+5+6", Plan(blocks=(4, 5, 6))),
        ("folder=there", Plan(folder=Path("there"))),
    ],
)
def test_values_have_the_types_of_their_fields(text: str, expected: Plan) -> None:
    name, _, value = text.partition("=")
    assert with_settings(Plan(), [(name, value)], Notation()) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("flip", "yes", "needs true or false, got 'yes'"),
        ("epochs", "many", "got 'many'"),
        ("epoch", "3", "epochs"),
        ("blocks", "1+x", "got 'x'"),
    ],
)
def test_other_values_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_settings(Plan(), [(name, value)], Notation())


def test_texts_are_split_at_colons_commas_and_the_first_equals_sign() -> None:
    assert split_name("pgd:steps=3,loss=dlr") == ("pgd", [("steps", "3"), ("loss", "dlr")])
    assert split_name("quick") == ("quick", [])
    assert split_assignment("a=b=c", "--set", "plan.epochs=3") == ("a", "b=c")


def test_descriptions_are_those_of_the_docstring() -> None:
    assert field_docs(Plan)["flip"] == "Whether images are flipped."
    assert {"epochs", "flip", "blocks", "folder"} <= set(setting_names(Plan()))
