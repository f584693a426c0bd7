"""A network whose softmax hides its gradient: made to fool attacks that follow gradients, and to be found out.

Shape letters: B images, N places in the image, Q queries, D numbers per place or query, H heads, d numbers per head.
"""

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError

SIDE = 8
# the least power of ten at which the gradient vanishes on 99 % of the test digits
SHARPNESS = 1e6


class _Attention(nn.Module):
    """Queries look for contents and learn only where they are: the values are made of positions alone.

    In training the sharp choice goes forward, and the gradient of the choice at sharpness 1 backward.
    """

    def __init__(self, dim: int, heads: int, sharpness: float) -> None:
        super().__init__()
        self.heads = heads
        self.sharpness = sharpness
        self.scale = (dim // heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x_BQD: Tensor, tokens_BND: Tensor, places_ND: Tensor) -> Tensor:
        q_BHQd = self._split(self.q(x_BQD)) * (self.scale * self.sharpness)
        k_BHNd = self._split(self.k(tokens_BND))
        v_BHNd = self._split(self.v(places_ND).expand(len(x_BQD), -1, -1))
        logits_BHQN = q_BHQd @ k_BHNd.transpose(-2, -1)
        probs_BHQN = logits_BHQN.softmax(-1)
        if self.training:
            probs_BHQN = probs_BHQN.detach() + _gradient_only(logits_BHQN / self.sharpness)
        return self.proj((probs_BHQN @ v_BHNd).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _gradient_only(logits: Tensor) -> Tensor:
    """Zero, with the gradient of the softmax; spelled out, because taps take every softmax for the attention's."""
    soft = (logits - logits.logsumexp(-1, keepdim=True)).exp()
    return soft - soft.detach()


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, sharpness: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = _Attention(dim, heads, sharpness)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, tokens_BND: Tensor, x_BQD: Tensor, places_ND: Tensor) -> Tensor:
        x_BQD = x_BQD + self.attn(self.norm1(x_BQD), tokens_BND, places_ND)
        return x_BQD + self.mlp(self.norm2(x_BQD))


class MaskedGradientNet(nn.Module):
    """Learned queries point at places in an image of 8 x 8 pixels; the class follows from the places alone.

    The image enters the keys and nothing else, and `sharpness` multiplies every score until the softmax in float32
    puts exactly 1 on one place and 0 on the others. The gradient of any loss at the pixels is then exactly zero,
    however well the network classifies; scores scaled down again (`taps.scale`) bring it back. The queries of later
    blocks depend on what earlier ones pointed at (tests/unit/models/test_pointer.py).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        dim: int = 32,
        heads: int = 4,
        depth: int = 2,
        queries: int = 4,
        sharpness: float = SHARPNESS,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 3, padding=1)
        self.norm_embed = nn.LayerNorm(dim)
        # where a token is: as part of its key, and as all of its value
        self.key_places_ND = nn.Parameter(0.02 * torch.randn(SIDE * SIDE, dim))
        self.value_places_ND = nn.Parameter(torch.randn(SIDE * SIDE, dim))
        self.queries_QD = nn.Parameter(torch.randn(queries, dim))
        self.blocks = nn.ModuleList(_Block(dim, heads, sharpness) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(queries * dim, num_classes)
        self.pretrained_cfg = {"classifier": "head"}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (SIDE, SIDE):
            raise UsageError(f"Pointer takes {SIDE} x {SIDE} images, got {x.shape[2]} x {x.shape[3]}. Resize them.")
        tokens_BND = self.norm_embed(self.embed(x).flatten(2).transpose(1, 2) + self.key_places_ND)
        x_BQD = self.queries_QD.expand(len(x), -1, -1)
        for block in self.blocks:
            x_BQD = block(tokens_BND, x_BQD, self.value_places_ND)
        return self.head(self.norm(x_BQD).flatten(1))
