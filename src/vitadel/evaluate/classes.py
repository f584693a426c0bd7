"""Whether a model's answers and a data set's labels are numbers of the same classes."""

from torch import nn

from vitadel.data import SHAPES, DataSet
from vitadel.errors import UsageError


def refuse_other_classes(model: nn.Module, data: DataSet) -> None:
    """Raise if the model is known to choose among more or fewer classes than the data has.

    A label is a place among the classes of the data; to a model of others that number means another class. The shapes
    of cue-conflict stimuli are classes of no model: the suite that judges them knows what to make of them.
    """
    known = getattr(getattr(model, "spec", None), "answers", None)
    if known is None or known == data.num_classes or data.classes == SHAPES:
        return
    raise UsageError(
        f"the model answers with {known} classes and {data.spec} has {data.num_classes}, so a label is not the number "
        f"of an answer. Is it the model for this data set? Choose one with {data.num_classes} classes, or data with "
        f"all {known}: ImageNet's are read by imagenet:DIR, whichever of them have images."
    )
