"""A network whose softmax masks its gradient: a test case for gradient-based attacks.

Shape letters: B images, N image tokens, Q queries, D channels, H heads, d channels per head.
"""

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError

SIDE = 8
# the smallest power of ten at which the gradient vanishes on 99% of the test digits
SHARPNESS = 1e6


class _Attention(nn.Module):
    """Cross-attention of learned queries to image tokens, whose values depend on the tokens' positions alone.

    In training, the forward pass uses the sharp softmax and the backward pass the gradient at sharpness 1.
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
    """Zero, with the gradient of the softmax; written out, because taps intercept calls of softmax inside attention."""
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
    """Learned queries select positions in an image of 8 x 8 pixels; the class depends on these positions alone.

    The image enters only the keys, and `sharpness` multiplies every score until the softmax in float32 is exactly 1 at
    one position and 0 at the others. The gradient of any loss with respect to the pixels is then exactly zero, however
    accurate the network is; scaling the scores down (`taps.scale`) restores it. The queries of later blocks depend on
    the positions that earlier ones selected (tests/unit/models/test_masked_gradient_net.py).
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
        # position embeddings: one part of the keys, and all of the values
        self.key_places_ND = nn.Parameter(0.02 * torch.randn(SIDE * SIDE, dim))
        self.value_places_ND = nn.Parameter(torch.randn(SIDE * SIDE, dim))
        self.queries_QD = nn.Parameter(torch.randn(queries, dim))
        self.blocks = nn.ModuleList(_Block(dim, heads, sharpness) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(queries * dim, num_classes)
        self.pretrained_cfg = {"classifier": "head"}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (SIDE, SIDE):
            raise UsageError(
                f"vitadel:masked_gradient_net takes {SIDE} x {SIDE} images, got {x.shape[2]} x {x.shape[3]}. "
                "Resize them."
            )
        tokens_BND = self.norm_embed(self.embed(x).flatten(2).transpose(1, 2) + self.key_places_ND)
        x_BQD = self.queries_QD.expand(len(x), -1, -1)
        for block in self.blocks:
            x_BQD = block(tokens_BND, x_BQD, self.value_places_ND)
        return self.head(self.norm(x_BQD).flatten(1))
