"""WideResNet for small images, which timm does not have."""

import math
from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from vitadel.core.errors import unknown_name_error

Activation = Callable[[Tensor], Tensor]

# by timm's names; Zagoruyko & Komodakis have ReLU, Gowal et al. 2020 and Wang et al. 2023 SiLU, also called Swish
ACTIVATIONS: Mapping[str, Activation] = {"relu": F.relu, "silu": F.silu}


class _Unit(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and activation; a projection shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, active: Activation) -> None:
        super().__init__()
        self.active = active
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.active(self.bn1(x))
        # a projection shortcut takes the activated input, an identity shortcut the input itself
        shortcut = x if self.shortcut is None else self.shortcut(active)
        return shortcut + self.conv2(self.active(self.bn2(self.conv1(active))))


class WideResNet(nn.Module):
    """WRN-depth-width (Zagoruyko & Komodakis 2016, arXiv:1605.07146): three groups of (depth - 4) / 6 units.

    Checked against the published sizes: WRN-28-10 has 36.48 M parameters at ten classes, WRN-34-10 46.16 M and
    WRN-70-16 266.80 M (tests/unit/models/test_models_wide_resnet.py).

    Args:
        depth: The number of convolutions, including projection shortcuts.
        width: The factor by which its groups are wider than 16, 32 and 64 channels.
        num_classes: Outputs of its head.
        act_layer: The activation, a name of `ACTIVATIONS`.
    """

    def __init__(self, depth: int, width: int, num_classes: int, act_layer: str = "relu") -> None:
        super().__init__()
        assert (depth - 4) % 6 == 0, depth
        if act_layer not in ACTIVATIONS:
            raise unknown_name_error("act_layer of a WideResNet", act_layer, ACTIVATIONS)
        active = ACTIVATIONS[act_layer]
        units = (depth - 4) // 6
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        channels, groups = 16, []
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            later = (_Unit(outputs, outputs, 1, active) for _ in range(units - 1))
            steps = [_Unit(channels, outputs, stride, active), *later]
            groups.append(nn.Sequential(*steps))
            channels = outputs
        self.groups = nn.Sequential(*groups)
        self.bn = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, num_classes)
        self.active = active
        self.pretrained_cfg = {"classifier": "head"}
        self._init_weights()

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.active(self.bn(self.groups(self.stem(x))))
        return self.head(x.mean((2, 3)))
