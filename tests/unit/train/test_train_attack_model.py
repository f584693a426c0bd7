"""The copy of the model that attacks use in training."""

import torch
from torch import nn

from vitadel.models import Model, load
from vitadel.train.attack_model import AttackModel


def differing(attack_model: AttackModel, model: Model) -> list[str]:
    """The weights of the copy that are not those of the model in bfloat16."""
    own, theirs = attack_model.net.state_dict(), model.net.state_dict()
    return [name for name, value in own.items() if not torch.equal(value, theirs[name].to(torch.bfloat16))]


def test_weights_of_every_layout_are_copied() -> None:
    model = load("timm:test_vit", num_classes=5, image_size=16, patch_size=4)
    head = model.net.get_submodule("head")
    assert isinstance(head, nn.Linear)
    sparse = torch.zeros(5, 2 * head.weight.shape[1])[:, ::2]  # a view, whose copy has other strides
    head.weight = nn.Parameter(sparse.copy_(head.weight.detach()))
    attack_model = AttackModel(model)
    assert attack_model.net.get_parameter("head.weight").stride() != head.weight.stride()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    assert len(differing(attack_model, model)) > 10
    attack_model.copy_weights()
    assert differing(attack_model, model) == []
