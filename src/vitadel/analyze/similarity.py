r"""How alike are representations? Pearson's correlation and linear CKA, gathered image by image.

**Pearson.** With :math:`x_l` all numbers that layer l gives, the coefficient of two layers is
:math:`|C_{lm}| / \sqrt{C_{ll} C_{mm}}`, :math:`C_{lm} = \sum (x_l - \bar x_l)(x_m - \bar x_m)`. Means and sums of some
images are joined with those of others exactly (Chan, Golub & LeVeque 1979): no image is kept.

**Linear CKA** (Kornblith et al. 2019, arXiv:1905.00414). With :math:`K_l = X_l X_l^\top` of n images,

.. math:: \mathrm{CKA}_{lm} = \frac{H(K_l, K_m)}{\sqrt{H(K_l, K_l) H(K_m, K_m)}}, \qquad
          H(K, L) = \frac{1}{n (n - 3)} \sum_{i \ne j} \tilde K_{ij} \tilde L_{ij}

where the tilde is U-centring (Székely & Rizzo 2014), which makes H the unbiased estimate of Song et al. (2012). Being
unbiased, it may be averaged over groups of images before the fraction is taken (Nguyen et al. 2021,
arXiv:2010.15327). The biased one centers rows and columns and divides by :math:`(n-1)^2`; it is close to one for any
two representations with many more numbers than images.

Shape letters: L layers, G groups that have a coefficient each, K numbers in a group, B images, T tokens, D features,
n images of a Gram matrix, P numbers per image.
"""

import base64
import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps
_COLUMNS = 1 << 16  # of features that make a Gram matrix at a time
# numbers in float64 at a time: on a processor few, so that they stay in its cache; elsewhere many, for fewer calls
_AT_ONCE = {"cpu": 1 << 19}
_ELSEWHERE = 1 << 25


class Per(enum.Enum):
    """What has a coefficient of its own: nothing, every token, every feature; the map shows means over them."""

    ALL = "all"
    TOKEN = "token"  # noqa: S105
    FEATURE = "feature"


@dataclass(frozen=True, slots=True)
class Moments:
    """Means, and sums of products of deviations from them, in float64 on the CPU."""

    count: int
    mean_GL: Tensor
    products_GLL: Tensor

    @classmethod
    def of(cls, outputs: Sequence[Tensor], per: Per, *, normed: bool = False) -> "Moments":
        """Of outputs [B, T, D] of every layer; `normed` gives every token mean zero and variance one first."""
        first = outputs[0]
        rows = max(1, _AT_ONCE.get(first.device.type, _ELSEWHERE) // (len(outputs) * first[0].numel()))
        some = (torch.stack(part) for part in zip(*(out.split(rows) for out in outputs), strict=True))
        found = [_moments(values_LBTD, per, normed) for values_LBTD in some]
        total = functools.reduce(Moments.with_, found)
        return cls(total.count, total.mean_GL.cpu(), total.products_GLL.cpu())

    def with_(self, other: "Moments") -> "Moments":
        """Those of both together."""
        count = self.count + other.count
        apart_GL = other.mean_GL - self.mean_GL
        outer_GLL = apart_GL[:, :, None] * apart_GL[:, None] * (self.count * other.count / count)
        mean_GL = self.mean_GL + apart_GL * (other.count / count)
        return Moments(count, mean_GL, self.products_GLL + other.products_GLL + outer_GLL)

    def correlation(self) -> Tensor:
        """[L, L]: absolute coefficients, mean over groups; without those where a layer is constant, nan without any."""
        spread_GL = self.products_GLL.diagonal(dim1=1, dim2=2)
        # what is left of a constant after rounding is no variance
        dust_GL = self.count * (8 * _EPS * self.mean_GL).square()
        size_GL = torch.where(spread_GL > dust_GL, spread_GL, torch.nan).sqrt()
        return (self.products_GLL / (size_GL[:, :, None] * size_GL[:, None])).abs().clamp_max(1).nanmean(0)

    def told(self) -> dict[str, object]:
        return {"count": self.count, "mean": packed(self.mean_GL), "products": packed(self.products_GLL)}

    @classmethod
    def read(cls, told: dict[str, object]) -> "Moments":
        return cls(int(str(told["count"])), unpacked(told["mean"]), unpacked(told["products"]))


def _moments(values_LBTD: Tensor, per: Per, normed: bool) -> Moments:
    values_LBTD = values_LBTD.double()
    if normed:
        values_LBTD = torch.nn.functional.layer_norm(values_LBTD, values_LBTD.shape[-1:], eps=1e-6)
    if per is Per.ALL:
        values_GLK = values_LBTD.flatten(1)[None]
    else:
        values_GLK = values_LBTD.permute((2, 0, 1, 3) if per is Per.TOKEN else (3, 0, 1, 2)).flatten(2)
    mean_GL = values_GLK.mean(-1)
    apart_GLK = values_GLK - mean_GL[..., None]
    return Moments(values_GLK.shape[-1], mean_GL, apart_GLK @ apart_GLK.mT)


def gram(features: Tensor) -> Tensor:
    """[n, n] float64 on the CPU: inner products of images, whose features were centered.

    Centring changes no similarity, and leaves float32 more digits for what differs between images. Products are made
    in the type of the features, float32 at least, and added up in float64.
    """
    flat_nP = features.flatten(1)
    total_nn = torch.zeros(len(flat_nP), len(flat_nP), dtype=torch.float64, device=flat_nP.device)
    for columns in flat_nP.split(_COLUMNS, 1):
        part = columns.float() if columns.dtype in (torch.float16, torch.bfloat16) else columns
        part = part - part.mean(0, dtype=torch.float64).to(part.dtype)
        total_nn += (part @ part.T).double()
    return total_nn.cpu()


def dependence(grams_Lnn: Tensor, *, biased: bool = False) -> Tensor:
    """[L, L]: H of all pairs of Gram matrices, of at least four images."""
    n = grams_Lnn.shape[-1]
    centered_Lnn = _centered(grams_Lnn) if biased else _u_centered(grams_Lnn)
    flat_LN = centered_Lnn.flatten(1)
    return flat_LN @ flat_LN.T / ((n - 1) ** 2 if biased else n * (n - 3))


def cka(dependence_LL: Tensor) -> Tensor:
    """[L, L]: the similarity; nan where an estimate of a layer's own H is not positive."""
    own_L = dependence_LL.diagonal()
    size_L = torch.where(own_L > 0, own_L, torch.nan).sqrt()
    return dependence_LL / (size_L[:, None] * size_L)


def _centered(k_Lnn: Tensor) -> Tensor:
    return k_Lnn - k_Lnn.mean(1, keepdim=True) - k_Lnn.mean(2, keepdim=True) + k_Lnn.mean((1, 2), keepdim=True)


def _u_centered(k_Lnn: Tensor) -> Tensor:
    n = k_Lnn.shape[-1]
    off = ~torch.eye(n, dtype=torch.bool, device=k_Lnn.device)
    k_Lnn = k_Lnn * off
    rows_Ln = k_Lnn.sum(2) / (n - 2)
    rest = rows_Ln.sum(1)[:, None, None] / (n - 1)
    return (k_Lnn - rows_Ln[:, :, None] - rows_Ln[:, None] + rest) * off


def packed(values: Tensor) -> dict[str, object]:
    """A float64 tensor in JSON, bit for bit."""
    told = base64.b64encode(values.contiguous().numpy().tobytes()).decode()
    return {"shape": list(values.shape), "float64": told}


def unpacked(told: object) -> Tensor:
    """The tensor that `packed` wrote."""
    assert isinstance(told, dict)
    flat = torch.frombuffer(bytearray(base64.b64decode(told["float64"])), dtype=torch.float64)
    return flat.view(told["shape"])
