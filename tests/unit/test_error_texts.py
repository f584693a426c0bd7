"""Every UsageError says what to write instead: its text has a sentence in the imperative."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitadel

SOURCE = Path(vitadel.__file__).parent
ERRORS = ("UsageError", "NonFiniteError")
VERBS = (
    "add allow apply ask attack begin build call change check choose close convert copy cut define delete "
    "describe divide do download draw drop enter evaluate export extract fetch fix free get give go import "
    "install keep leave let list load look lower make mark move name normalize open pass pick put raise "
    "re-save read reduce remove rename repeat replace report resize restart restore resume run save say scale "
    "see select send set shorten split start study swap switch take train try turn type unpack unset update "
    "use wait widen wrap write"
)
# a sentence or a clause that begins with a verb, perhaps after a condition such as "for one image"
_BEFORE = r"^|[.;:,)?!}] |\b(?:or|and|instead|Otherwise) "
_IMPERATIVE = re.compile(f"({_BEFORE})({'|'.join(VERBS.split())})\\b", re.I)


def text_of(node: ast.expr) -> str:
    """The text of an expression, with {} for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "{}"


def error_texts() -> Iterator[tuple[str, str]]:
    """Where each error is made, and its text."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", text_of(node.args[0])


def says_what_to_write(text: str) -> bool:
    """Whether a sentence is in the imperative, what is known is listed, or the end is filled in elsewhere."""
    return text.endswith("{}") or " Known: " in text or bool(_IMPERATIVE.search(text))


def test_errors_say_what_to_write() -> None:
    texts = list(error_texts())
    assert len(texts) > 400
    silent = [f"{place}: {text}" for place, text in texts if not says_what_to_write(text)]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize(
    ("text", "advises"),
    [
        ("PGD.targets need keep_best: of several searches one has to be chosen.", False),
        ("the model returned NaN or infinite logits for {} of {} images.", False),
        ("images must be floats [n, channels, rows, columns], got {} of {}.", False),
        ("the data has labels from {} to {}. Is it the model for this data set?", False),
        ("{} needs three numbers, one per channel, got {}.", False),
        ("the model takes images of shape {}, got {}.", False),
        ("labels must be whole numbers, got {}. Write y.long() if they are whole.", True),
        ("only models made by `load` know how to be built again; save this one's state dict instead.", True),
        ("{} cannot be read: {}. {}", True),
    ],
)
def test_advice_is_told_from_what_only_states_a_fault(text: str, advises: bool) -> None:
    assert says_what_to_write(text) is advises
