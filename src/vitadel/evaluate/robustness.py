"""One call for images in hand: how robust is this model?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel import threat as threats
from vitadel.attacks import Engine
from vitadel.errors import UsageError, unknown
from vitadel.evaluate.cascade import Cascade
from vitadel.evaluate.device import device_of
from vitadel.evaluate.journal import Notebook
from vitadel.evaluate.metrics import Accuracy
from vitadel.evaluate.runner import ready
from vitadel.evaluate.suites import SUITES, Entry, Suite
from vitadel.evaluate.summary import summarise
from vitadel.evaluate.verdicts import verdicts
from vitadel.runs import Notify, silent
from vitadel.threat import Threat


@dataclass(frozen=True, slots=True)
class Robustness:
    """What a suite found out about a model on some images.

    `fell_to` names, per image, the attack it fell to first: "clean" if it was wrong before any, "" if it stands. `x`
    are the images found, or the last attempts on those that stand.
    """

    clean: Accuracy
    robust: Accuracy
    fell_to: Sequence[str]
    prediction: Sequence[int]
    size: Sequence[float]
    x: Tensor
    attacks: Sequence[Mapping[str, object]]
    flags: Sequence[Mapping[str, object]]
    seconds: float


def robustness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str = "linf:8/255",
    suite: str | Sequence[Entry] = "adversarial",
    *,
    seed: int = 0,
    engine: Engine | None = None,
    notify: Notify = silent,
) -> Robustness:
    """Attack the images `x` with pixels in [0, 1] and labels `y`; the default suite is AutoAttack.

    `suite` is a name or attacks of your own, one after the other. The model decides where the work is done.
    """
    if isinstance(suite, str) and suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    chosen = SUITES[suite] if isinstance(suite, str) else Suite("own", "", tuple(suite))
    radius = threats.read(threat) if isinstance(threat, str) else threat
    images, entries, name = _InHand(x, y), chosen.cascade(radius), chosen.name
    found, notebook = x.detach().float().cpu().clone(), Notebook()
    engine = engine or Engine()

    def keep(row: int, image: Tensor, fell: bool) -> None:
        found[row] = image

    cascade = Cascade(model, images, entries, radius, notebook, seed, engine, keep=keep, notify=notify, name=name)
    standing = cascade.classify()
    ready(cascade, images.images(torch.arange(min(len(x), 64))).to(device_of(model)))
    cascade.attack(standing)
    rows = verdicts(notebook, images, [str(row) for row in range(len(x))], entries, {})
    summary = summarise(name, name, entries, radius, rows, cascade.flags)
    clean, robust = (Accuracy(**summary[name]) for name in ("clean", "robust"))  # type: ignore[arg-type]
    return Robustness(
        clean,
        robust,
        [str(to) for to in rows["fell_to"]],
        [int(str(answer)) for answer in rows["prediction"]],
        [float(str(size)) for size in rows["size"]],
        found,
        summary["attacks"],  # type: ignore[arg-type]
        summary["flags"],  # type: ignore[arg-type]
        float(str(summary["seconds"])),
    )


class _InHand:
    """Tensors as a caller has them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if x.ndim != 4 or not x.is_floating_point() or len(x) == 0:
            raise UsageError(f"images must be floats [n, channels, rows, columns], got {x.dtype} of {list(x.shape)}.")
        if len(y) != len(x) or y.ndim != 1:
            raise UsageError(f"got {len(x)} images and labels of shape {list(y.shape)}. Give one label per image.")
        low, high = float(x.min()), float(x.max())
        if not (low >= 0 and high <= 1):
            raise UsageError(
                f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
                "Normalisation belongs inside the model: vitadel.models.wrap(net, mean=..., std=...)."
            )
        self._x, self.labels = x.detach(), y.detach().cpu().long()

    def __len__(self) -> int:
        return len(self._x)

    def images(self, rows: Tensor) -> Tensor:
        return self._x[rows.to(self._x.device)].float()
