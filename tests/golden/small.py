"""The small network and the few images of the recorded results."""

import torch
from torch import Tensor

from vitadel.models import Model, load

CLASSES, SIDE, IMAGES = 5, 16, 12


def network(seed: int = 0) -> Model:
    """In float64, and the same whatever draws the first weights."""
    options = {"depth": 3, "embed_dim": 24, "num_heads": 3}
    model = load("timm:vit_tiny_patch16_224", num_classes=CLASSES, image_size=SIDE, patch_size=4, options=options)
    return filled(model.double(), seed)


def filled(model: Model, seed: int = 0) -> Model:
    """With sinusoidal weights, and predictions of all classes."""
    with torch.no_grad():
        for number, (name, weight) in enumerate(model.named_parameters()):
            restart = torch.sin(torch.arange(weight.numel(), dtype=weight.dtype).square() * (0.7 + 0.1 * number + seed))
            weight.copy_(
                restart.view_as(weight) * (0.5 if weight.ndim > 1 else 0.2) + ("norm" in name and "weight" in name)
            )
        for name, bias in model.named_parameters():
            if name.endswith("head.bias"):
                bias.sub_(model.eval()(images()).mean(0))
    return model.eval()


def images() -> Tensor:
    places, number = torch.arange(3 * SIDE * SIDE, dtype=torch.float64), torch.arange(IMAGES)[:, None]
    num_restarts = torch.sin(places * (0.11 + 0.23 * number)) * torch.cos(places.square() * 0.01 * number)
    return (0.5 + 0.45 * num_restarts).view(IMAGES, 3, SIDE, SIDE).float()


def labels(model: Model) -> Tensor:
    """Mostly the predictions of the model."""
    with torch.no_grad():
        label_B = model(images()).argmax(1)
    label_B[::4] = (label_B[::4] + 1) % CLASSES
    return label_B
