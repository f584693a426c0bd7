"""Results of everything that draws random numbers: a seed gives the same numbers in every version of the code.

Runs are resumed and compared across versions, so a stream that is folded in another way is a change of results.
"""

from pathlib import Path

import pytest
import torch
from on_record import check  # type: ignore[import-not-found]
from small import CLASSES, images, labels, network  # type: ignore[import-not-found]
from torch import Tensor

import vitadel as vd
from vitadel.attacks import APGD, FAB, FGSM, GAMA, PGD, Attack, Square
from vitadel.core.rng import RandomStreams
from vitadel.models import Model
from vitadel.shifts import Corruption
from vitadel.train import Augment, Chain, ColorJitter, Erase, Flip, Mixing, PadCrop, ResizedCrop, Rotate

RECORD = Path(__file__).with_name("random.json")

AUGMENTS: dict[str, Augment] = {
    "flip": Flip(),
    "pad-crop": PadCrop(2, fill=0.5),
    "resized-crop": ResizedCrop(),
    "color-jitter": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "erase": Erase(probability=0.75),
    "rotate": Rotate(20.0),
    "chain": Chain((Flip(), PadCrop(1), Erase(probability=0.5))),
}
ATTACKS: dict[str, Attack] = {
    "fgsm": FGSM(random_start=True),
    "pgd": PGD(steps=3, restarts=3),
    "pgd-noise": PGD(steps=2, start_noise=0.01),
    "pgd-targets": PGD(steps=2, targets=2),
    "apgd": APGD(steps=4, restarts=2),
    "apgd-eot": APGD(steps=2, eot_samples=2),
    "apgd-targets": APGD(steps=2, targets=2),
    "fab": FAB(steps=3, restarts=2),
    "square": Square(queries=8, restarts=2),
    "gama": GAMA(steps=3),
}
THREATS = ["linf:0.004", "l2:0.05", "l1:0.4"]


def summary(x: Tensor) -> list[list[float]]:
    """Two weighted means of each image."""
    flat = x.flatten(1).double()
    weights = torch.stack([torch.ones(flat.shape[1]), torch.cos(torch.arange(flat.shape[1]))]).double()
    return (flat @ weights.T / flat.shape[1]).tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    return network()


@pytest.fixture(scope="module")
def batch(model: Model) -> tuple[Tensor, Tensor]:
    x = images()[:6].double()
    return x, labels(model)[:6]


@pytest.mark.parametrize("name", AUGMENTS)
def test_augmentations(name: str, batch: tuple[Tensor, Tensor]) -> None:
    rng = RandomStreams.of(3, torch.arange(6) + 100)
    check(RECORD, f"augment {name}", summary(AUGMENTS[name](batch[0], rng)))


def test_procedural_frost() -> None:
    """Every tint occurs among these images, and a tint that is off by one level is seen."""
    frosted = Corruption("frost", 3, "imagenet")(torch.zeros(24, 3, 16, 16), torch.arange(24), seed=0)
    check(RECORD, "frost", (frosted * 255).round().double().mean((2, 3)).mul(100).tolist())


def test_mixing(batch: tuple[Tensor, Tensor]) -> None:
    found = []
    for seed in range(3):
        x, shares_BK = Mixing(mixup=0.8, cutmix=1.0)(*batch, CLASSES, seed=seed)
        found.append([summary(x), shares_BK.tolist()])
    check(RECORD, "mixing", found)


def test_streams() -> None:
    rng = RandomStreams.of(7, torch.tensor([0, 5, 2**40]))
    found = {
        "uniform": rng.uniform(3).tolist(),
        "normal": rng.normal(3).tolist(),
        "below": rng.randint(10, 4).tolist(),
        "signs": rng.signs(5).tolist(),
        "folded": rng.fold(2).uniform(2, dtype=torch.float64).tolist(),
    }
    check(RECORD, "streams", found)


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name: str, threat: str, model: Model, batch: tuple[Tensor, Tensor]) -> None:
    """On a batch in step, and image by image in the engine of evaluations."""
    x, y = batch
    at_once = ATTACKS[name](model, x, y, threat, seed=5)
    one_by_one = vd.robustness(model, x, y, threat, suite=ATTACKS[name], seed=5, batch_size=4, progress=False)
    found = {
        "change": summary((at_once.x_adv - x) * 100),
        "success": at_once.success.tolist(),
        "engine": summary((one_by_one.x_adv - x) * 100),
        "robust": one_by_one.robust.correct,
    }
    check(RECORD, f"{name} {threat}", found)
