"""Tiny networks on scikit-learn's handwritten digits: what the demo trains, and one that hides its gradient.

Source:  our choice throughout; made to show in a minute on a laptop what adversarial training does.
Differs: from any paper in everything but the idea: a ViT of 0.26 M parameters on 1293 images of 8 x 8 pixels.
Cost:    no run is on record.
"""

from dataclasses import replace

from vitadel.attacks import PGD, Scaling
from vitadel.models import Option
from vitadel.objectives import ARDPRM, Adversarial, AttentionScaling, Standard
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe, Selection
from vitadel.threats import Linf
from vitadel.train import AdamW, TrainingConfig

_EPS = 24 / 255

# mean pooling instead of a class token: on a few hundred updates it learns twice as fast
_TINY: dict[str, Option] = {"depth": 2, "embed_dim": 96, "num_heads": 3, "class_token": False, "global_pool": "avg"}


def digits_standard() -> Recipe:
    """A tiny ViT trained on the digits as they are."""
    return Recipe(
        name="digits-standard",
        about="tiny ViT on digits, standard training",
        model=ModelConfig("timm:test_vit", image_size=8, patch_size=2, normalize=Normalize.DATA, options=_TINY),
        data="digits",
        preprocess="squash:8",
        objective=Standard(),
        plan=TrainingConfig(
            epochs=15,
            batch_size=32,
            optimizer=AdamW(lr=3e-3, weight_decay=0.05),
            warmup_epochs=2,
            clip_grad=1.0,
            checkpoint_every_steps=100,
        ),
        selection=Selection(),
        sources={"*": "our choice"},
    )


def digits_adversarial() -> Recipe:
    """A tiny ViT trained on the worst images that PGD finds; otherwise as digits-standard."""
    threat = Linf(_EPS)
    return replace(
        digits_standard(),
        name="digits-adversarial",
        about="tiny ViT on digits, adversarial training",
        objective=Adversarial(PGD(steps=3, step_size=_EPS / 2, keep_best=False), threat, eps_warmup=0.5),
        selection=Selection(PGD(steps=10), threat),
    )


def digits_class_token() -> Recipe:
    """digits-standard with a class token, which adapters need: the frozen backbone of digits-tora. Learns slowly."""
    base = digits_standard()
    return replace(
        base,
        name="digits-class-token",
        about="tiny ViT with a class token on digits, standard training",
        model=replace(base.model, options={"depth": 3, "embed_dim": 96, "num_heads": 3}),
        plan=replace(base.plan, epochs=30, optimizer=AdamW(lr=2e-3, weight_decay=0.05)),
    )


def digits_masked_gradient() -> Recipe:
    """A network with masked gradients, trained on the same images: a test case for attacks, not a defense."""
    return replace(
        digits_standard(),
        name="digits-masked-gradient",
        about="hard attention on digits, standard training; gradients are zero",
        model=ModelConfig("vitadel:masked_gradient_net", image_size=8, normalize=Normalize.DATA),
    )


def digits_aas() -> Recipe:
    """digits-adversarial with attention scaling factors, which are searched twice during training."""
    base = digits_adversarial()
    scaling = replace(Scaling.paper(), batches=1, batch_size=32)
    return replace(
        base,
        name="digits-aas",
        about="tiny ViT on digits, adversarial training with AAS-AT",
        objective=AttentionScaling(base.objective, period=5, scaling=scaling, batches=10),
    )


def digits_ard_prm() -> Recipe:
    """digits-adversarial with ARD and PRM in the first five epochs."""
    base = digits_adversarial()
    assert isinstance(base.objective, Adversarial)
    return replace(
        base,
        name="digits-ard-prm",
        about="tiny ViT on digits, adversarial training with ARD and PRM",
        objective=ARDPRM(base.objective, warmup_epochs=5),
    )
