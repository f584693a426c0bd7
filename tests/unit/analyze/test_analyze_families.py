"""The study runs on every family whose attention Vitadel supports."""

import pytest
import torch

from vitadel.analyze import Masking, study
from vitadel.attacks import PGD, Scaling
from vitadel.models import Option, load

TINY: dict[str, tuple[str, int, dict[str, Option]]] = {
    "deit": ("timm:deit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 48}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 48}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 48}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "levit": ("timm:levit_128s", 8, {"stem_type": "s8", "num_heads": 2}),
}
LEAST = Masking(
    steps=2,
    iterations=(1, 2),
    shares=(1.0,),
    curve_steps=1,
    blocks=(1,),
    targets=1,
    queries=2,
    scaling=Scaling(steps=1, batches=1, batch_size=2, trial_images=1, trial_attack=PGD(steps=1)),
)


@pytest.mark.parametrize("family", TINY)
def test_every_attention_and_head_is_counted(family: str) -> None:
    name, patch, options = TINY[family]
    model = load(name, num_classes=5, image_size=32, patch_size=patch, options=options).train()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    result = study(model, x, torch.tensor([0, 1, 2]), LEAST, threat="linf:8/255")
    gaps = result["gaps"]
    assert isinstance(gaps, dict)
    for kind in ("plain", "scaled"):
        assert [one["name"] for one in gaps[kind]] == model.taps.attentions()
        for one in gaps[kind]:
            assert one["all"]["rows"] == sum(head["rows"] for head in one["heads"])
        # the last stages of the small Swin and LeViT have a single token, and no gap
        assert gaps[kind][0]["all"]["rows"] > 0
    assert model.training
    # statistics of BatchNorm too
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
