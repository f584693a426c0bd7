"""What `help` shows: the most used names say what they take and show a call, signatures are readable."""

import inspect

import pytest

import vitadel as vd
from vitadel.core.numeric import Range

FUNCTIONS = ["analyze", "evaluate", "load_data", "load_model", "report", "robustness", "show_data", "sweep", "train"]
CLASSES = [
    *(vd.attacks.PGD, vd.attacks.APGD, vd.attacks.FGSM, vd.attacks.FAB, vd.attacks.Square),
    *(vd.threats.Linf, vd.threats.L2, vd.threats.L1, vd.goals.Untargeted, vd.goals.Targeted),
    *(vd.objectives.TRADES, vd.models.wrap, vd.models.load),
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_package_are_documented_with_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(vd, name)) or ""
    assert all(part in text for part in ("Args:", "Returns:", "Example:")), text


@pytest.mark.parametrize("named", CLASSES, ids=lambda named: named.__name__)
def test_classes_document_their_settings_with_an_example(named: object) -> None:
    text = inspect.getdoc(named) or ""
    assert all(part in text for part in ("Args:", "Example:")), text


def test_a_package_that_is_called_keeps_its_own_description() -> None:
    text = vd.train.__doc__
    assert text is not None
    assert text.index("Args:") < text.index("the package `vitadel.train`. Training: the loop")


def test_ranges_in_signatures_show_what_is_set() -> None:
    assert repr(Range(ge=1)) == "Range(ge=1)"
    assert repr(Range(gt=0, le=0.5, hint="It is a share.")) == "Range(gt=0, le=0.5)"
    assert "Range(ge=1)" in str(inspect.signature(vd.attacks.PGD))
