r"""Similarity of representations: Pearson's correlation and linear CKA, accumulated over images.

**Pearson.** With :math:`x_l` all values in the output of layer l, the coefficient of two layers is
:math:`|C_{lm}| / \sqrt{C_{ll} C_{mm}}`, :math:`C_{lm} = \sum (x_l - \bar x_l)(x_m - \bar x_m)`. Means and sums of some
images are joined with those of others exactly (Chan, Golub & LeVeque 1979): no image is kept.

**Linear CKA** (Kornblith et al. 2019, arXiv:1905.00414). With :math:`K_l = X_l X_l^\top` of n images,

.. math:: \mathrm{CKA}_{lm} = \frac{H(K_l, K_m)}{\sqrt{H(K_l, K_l) H(K_m, K_m)}}, \qquad
          H(K, L) = \frac{1}{n (n - 3)} \sum_{i \ne j} \tilde K_{ij} \tilde L_{ij}

where the tilde is U-centering (Székely & Rizzo 2014), which makes H the unbiased estimate of Song et al. (2012). Being
unbiased, it may be averaged over groups of images before the fraction is taken (Nguyen et al. 2021,
arXiv:2010.15327). The biased one centers rows and columns and divides by :math:`(n-1)^2`; it is close to one for any
two representations with many more numbers than images.

Shape letters: L layers, G groups that have a coefficient each, K numbers in a group, B images, T tokens, D features,
n images of a Gram matrix, P numbers per image.
"""

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps
GRAM_COLUMNS = 1 << 16  # of features that make a Gram matrix at a time
# numbers in float64 at a time: on a processor few, so that they stay in its cache; elsewhere many, for fewer calls
VALUES_AT_ONCE = {"cpu": 1 << 19}
VALUES_AT_ONCE_ELSEWHERE = 1 << 25


class Grouping(enum.Enum):
    """What each coefficient is of: all values, one token or one feature; the map shows means over them."""

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
    def of(cls, outputs: Sequence[Tensor], per: Grouping, *, normed: bool = False) -> "Moments":
        """Takes outputs [B, T, D] of every layer; `normed` gives every token mean zero and variance one first."""
        first = outputs[0]
        rows = max(
            1, VALUES_AT_ONCE.get(first.device.type, VALUES_AT_ONCE_ELSEWHERE) // (len(outputs) * first[0].numel())
        )
        some = (torch.stack(part) for part in zip(*(out.split(rows) for out in outputs), strict=True))
        moments = [_moments(values_LBTD, per, normed) for values_LBTD in some]
        total = functools.reduce(Moments.merge, moments)
        return cls(total.count, total.mean_GL.cpu(), total.products_GLL.cpu())

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets of images together."""
        count = self.count + other.count
        difference_GL = other.mean_GL - self.mean_GL
        outer_GLL = difference_GL[:, :, None] * difference_GL[:, None] * (self.count * other.count / count)
        mean_GL = self.mean_GL + difference_GL * (other.count / count)
        return Moments(count, mean_GL, self.products_GLL + other.products_GLL + outer_GLL)

    def correlation(self) -> Tensor:
        """[L, L]: absolute coefficients, mean over groups; without those where a layer is constant, nan without any."""
        squares_GL = self.products_GLL.diagonal(dim1=1, dim2=2)
        # what rounding leaves of a constant
        rounding_GL = self.count * (8 * _EPS * self.mean_GL).square()
        size_GL = torch.where(squares_GL > rounding_GL, squares_GL, torch.nan).sqrt()
        return (self.products_GLL / (size_GL[:, :, None] * size_GL[:, None])).abs().clamp_max(1).nanmean(0)

    def row(self) -> dict[str, object]:
        """As plain numbers, for a row of a table."""
        return {"count": self.count, "mean": self.mean_GL.tolist(), "products": self.products_GLL.tolist()}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Moments":
        """What `row` wrote, bit for bit."""
        mean, products = (torch.tensor(row[name], dtype=torch.float64) for name in ("mean", "products"))
        return cls(row["count"], mean, products)


def _moments(values_LBTD: Tensor, per: Grouping, normed: bool) -> Moments:
    values_LBTD = values_LBTD.double()
    if normed:
        values_LBTD = torch.nn.functional.layer_norm(values_LBTD, values_LBTD.shape[-1:], eps=1e-6)
    if per is Grouping.ALL:
        values_GLK = values_LBTD.flatten(1)[None]
    else:
        values_GLK = values_LBTD.permute((2, 0, 1, 3) if per is Grouping.TOKEN else (3, 0, 1, 2)).flatten(2)
    mean_GL = values_GLK.mean(-1)
    deviation_GLK = values_GLK - mean_GL[..., None]
    return Moments(values_GLK.shape[-1], mean_GL, deviation_GLK @ deviation_GLK.mT)


def gram(features: Tensor) -> Tensor:
    """[n, n] float64 on the CPU: inner products of images, whose features were centered.

    Centering changes no similarity, and leaves float32 more digits for what differs between images. Products are made
    in the type of the features, float32 at least, and added up in float64.
    """
    flat_nP = features.flatten(1)
    total_nn = torch.zeros(len(flat_nP), len(flat_nP), dtype=torch.float64, device=flat_nP.device)
    for columns in flat_nP.split(GRAM_COLUMNS, 1):
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
