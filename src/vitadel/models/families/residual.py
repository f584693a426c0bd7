"""Residual networks of convolutions: ResNet, its variant with activation first, and WideResNet."""

from collections.abc import Sequence

from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from torch import nn

from vitadel.models.families.base import Family, Layer
from vitadel.models.wide_resnet import WideResNet

_SHORTCUTS = ("downsample", "shortcut")


class Residual(Family):
    """No blocks with attention; the layers are the residual units, under the network's own names."""

    architectures = (ResNet, ResNetV2, WideResNet)

    def layers(self, net: nn.Module) -> Sequence[Layer]:
        if isinstance(net, ResNet):
            stages = {f"layer{i}": net.get_submodule(f"layer{i}").named_children() for i in range(1, 5)}
        elif isinstance(net, ResNetV2):
            stages = {f"stages.{i}.blocks": stage.blocks.named_children() for i, stage in enumerate(net.stages)}
        else:
            assert isinstance(net, WideResNet)
            stages = {f"groups.{i}": group.named_children() for i, group in enumerate(net.groups)}
        return [_unit(f"{stage}.{name}", module) for stage, units in stages.items() for name, module in units]


def _unit(name: str, module: nn.Module) -> Layer:
    """A unit with a projection shortcut changes the shape of its input."""
    return Layer(
        name, module, changes_shape=any(getattr(module, shortcut, None) is not None for shortcut in _SHORTCUTS)
    )
