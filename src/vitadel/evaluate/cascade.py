"""Attack after attack on the images of one batch that still stand.

Shape letters: B images, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.attacks import frozen
from vitadel.draws import fold_seed
from vitadel.errors import UsageError
from vitadel.evaluate.device import device_of
from vitadel.evaluate.suites import Entry
from vitadel.goals import Diverge, Goal, Targeted, Untargeted
from vitadel.losses import kl_divergence
from vitadel.threat import Threat

STANDING, WRONG = "", "clean"

# what an attack says of itself, shared out evenly over the images it was tried on
COSTS = ("forwards", "backwards", "seconds", "zero_gradients")


@dataclass(frozen=True, slots=True)
class Fall:
    """How an image fell: to which attack, as which class, at what distance; and as what, if it is in the gallery."""

    to: str
    prediction: int
    size: float
    x_adv: Tensor | None = None


class Batch:
    """Images on their way through a cascade, and what is known of each; everything is kept on the CPU."""

    def __init__(self, row_B: Tensor, x: Tensor, label_B: Tensor, clean_BK: Tensor) -> None:
        self.row_B, self.x, self.label_B = row_B, x, label_B
        self.clean_BK = clean_BK
        self.clean_prediction_B = clean_BK.argmax(1)
        self.prediction_B = self.clean_prediction_B.clone()
        self.size_B = torch.zeros(len(x))
        self.x_adv = x.clone()
        self.fell_to = [STANDING if right else WRONG for right in (self.prediction_B == label_B).tolist()]
        self.costs: dict[str, list[list[float]]] = {what: [[] for _ in row_B] for what in COSTS}

    @property
    def standing(self) -> Tensor:
        return torch.tensor([place for place, name in enumerate(self.fell_to) if name == STANDING], dtype=torch.int64)

    def let_fall(self, fallen: Mapping[int, Fall]) -> None:
        """Images that fell inside a smaller threat have fallen inside this one."""
        for place, row in enumerate(self.row_B.tolist()):
            if row not in fallen or self.fell_to[place] != STANDING:
                continue
            fall = fallen[row]
            self.fell_to[place], self.prediction_B[place], self.size_B[place] = fall.to, fall.prediction, fall.size
            if fall.x_adv is not None:
                self.x_adv[place] = fall.x_adv

    def columns(self, ids: tuple[str, ...]) -> dict[str, list[object]]:
        """The rows to keep. Costs are lists with one number per attack of the cascade."""
        return {
            "row": self.row_B.tolist(),
            "id": [ids[row] for row in self.row_B.tolist()],
            "label": self.label_B.tolist(),
            "clean_prediction": self.clean_prediction_B.tolist(),
            "prediction": self.prediction_B.tolist(),
            "fell_to": list(self.fell_to),
            "size": self.size_B.tolist(),
            **self.costs,
        }


@torch.no_grad()
def classify(model: nn.Module, row_B: Tensor, x: Tensor, label_B: Tensor) -> Batch:
    """The batch before any attack; answers that are not logits for these labels are refused."""
    with frozen(model):
        z_BK = model(x.to(device_of(model))).float().cpu()
    if z_BK.ndim != 2 or int(label_B.max()) >= z_BK.shape[1]:
        raise UsageError(
            f"the model returns outputs of shape {list(z_BK.shape[1:])}, the data has label {int(label_B.max())}. "
            "Is it the model for this data set?"
        )
    if bad := int((~z_BK.isfinite()).any(1).sum()):
        raise UsageError(f"the model returned NaN or infinite logits for {bad} of {len(x)} clean images.")
    return Batch(row_B, x, label_B, z_BK)


def strike(model: nn.Module, batch: Batch, entry: Entry, threat: Threat, *, seed: int) -> None:
    """One attack on the images of `batch` that stand; an image that fell is not attacked again."""
    places, device = batch.standing, device_of(model)
    spent = dict.fromkeys(COSTS, 0.0)
    if len(places):
        goal = _goal(batch, places, entry, device)
        # streams are numbered by the image's row, so another batch size draws the same numbers
        own_seed = fold_seed(seed, *entry.name.encode())
        x = batch.x[places].to(device)
        result = entry.attack(model, x, goal, threat, seed=own_seed, index_B=batch.row_B[places])
        spent = {what: getattr(result, what) / len(places) for what in spent}
        # an image that stands shows the last attempt on it
        batch.x_adv[places] = result.x.float().cpu()
        batch.prediction_B[places] = result.prediction.cpu()
        batch.size_B[places] = result.size.float().cpu()
        for place in places[result.reached.cpu()].tolist():
            batch.fell_to[place] = entry.name
    tried = set(places.tolist())
    for what, per_image in batch.costs.items():
        for place, numbers in enumerate(per_image):
            numbers.append(spent[what] if place in tried else 0.0)


def _goal(batch: Batch, places: Tensor, entry: Entry, device: torch.device) -> Goal:
    if entry.loss is kl_divergence:
        return Diverge(batch.clean_BK[places].to(device))
    if entry.target is None:
        return Untargeted(batch.label_B[places].to(device), entry.loss)
    return Targeted(entry.target(batch.clean_BK[places]).to(device), entry.loss)
