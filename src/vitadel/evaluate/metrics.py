"""Numbers with their uncertainty, as other rooms know them too."""

from vitadel.intervals import Accuracy, accuracy, expected_accuracy

__all__ = ["Accuracy", "accuracy", "expected_accuracy"]
