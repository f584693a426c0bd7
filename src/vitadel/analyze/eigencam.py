r"""EigenCAM: the strongest pattern in a feature map, without labels and without gradients.

Muhammad & Yeasin (2020, arXiv:2008.00299): with the features of N cells in C channels as a matrix :math:`A` and
:math:`v_1` its first right singular vector, the map is :math:`A v_1`. The sign of a singular vector is arbitrary: here
the value farthest from zero is positive. The paper does not center; `center` subtracts the mean of each channel over
cells first, as pytorch-grad-cam does, which shows where features differ instead of where they are large.

Since only one vector is needed, Lanczos' iteration (1950) computes the first eigenvector of the smaller of
:math:`A A^\top` and :math:`A^\top A`, for all images together.

Shape letters: B images, N cells, C channels, n the smaller of both, S steps.
"""

import torch
from torch import Tensor

_STEPS = 8  # Lanczos vectors between two checks of convergence
_ROUNDS = 16
# the tolerance of the residual, relative to the eigenvalue
_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-11}


def eigencam(features_BNC: Tensor, *, center: bool = False) -> Tensor:
    """[B, N]: the map of each image, whose value farthest from zero is positive; zeros if all features are zero."""
    a_BNC = features_BNC.detach()
    a_BNC = a_BNC if a_BNC.dtype == torch.float64 else a_BNC.float()
    if center:
        a_BNC = a_BNC - a_BNC.mean(1, keepdim=True)
    # squares of large features would not fit into single precision
    size_B11 = a_BNC.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(a_BNC.dtype).tiny)
    a_BNC = a_BNC / size_B11
    if a_BNC.shape[1] <= a_BNC.shape[2]:
        value_B, vector_BN = _leading(a_BNC @ a_BNC.mT)
        map_BN = vector_BN * value_B.clamp_min(0).sqrt()[:, None]
    else:
        _, vector_BC = _leading(a_BNC.mT @ a_BNC)
        map_BN = _times(a_BNC, vector_BC)
    map_BN = map_BN * size_B11[:, 0]
    return torch.where(map_BN.amax(1, keepdim=True) >= -map_BN.amin(1, keepdim=True), map_BN, -map_BN)


def _leading(g_Bnn: Tensor) -> tuple[Tensor, Tensor]:
    """[B] and [B, n]: the largest eigenvalue of symmetric positive semidefinite matrices, and its eigenvector.

    If two eigenvalues are so close that the iteration does not converge, all are computed.
    """
    n = g_Bnn.shape[1]
    value_B, vector_Bn = g_Bnn.new_zeros(len(g_Bnn)), g_Bnn.new_zeros(len(g_Bnn), n)
    open_, g = torch.arange(len(g_Bnn), device=g_Bnn.device), g_Bnn
    start_Bn = _first_vector(n).to(g_Bnn).expand(len(g_Bnn), n)
    for _ in range(_ROUNDS):
        ritz_B, start_Bn, off_B = _lanczos(g, start_Bn, min(n, _STEPS))
        # each image stops when it has converged, so its map does not depend on the other images
        converged_B = off_B <= _TOLERANCE[g.dtype] * ritz_B
        value_B[open_[converged_B]], vector_Bn[open_[converged_B]] = ritz_B[converged_B], start_Bn[converged_B]
        if bool(converged_B.all()):
            return value_B, vector_Bn
        open_, g, start_Bn = open_[~converged_B], g[~converged_B], start_Bn[~converged_B]
    all_Bn, vectors_Bnn = torch.linalg.eigh(g.double())
    value_B[open_], vector_Bn[open_] = all_Bn[:, -1].to(g), vectors_Bnn[..., -1].to(g)
    return value_B, vector_Bn


def _lanczos(g_Bnn: Tensor, start_Bn: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest Ritz value and vector in the Krylov space of `steps` products, and the norm of the residual."""
    basis_BSn, t_BSS = g_Bnn.new_zeros(len(g_Bnn), steps, g_Bnn.shape[1]), g_Bnn.new_zeros(len(g_Bnn), steps, steps)
    w_Bn, length_B1 = start_Bn, start_Bn.norm(dim=1, keepdim=True)
    least_B1 = torch.zeros_like(length_B1)
    for step in range(steps):
        # an exhausted space is extended by zero vectors, which do not change the result
        q_Bn = w_Bn * torch.where(length_B1 > least_B1, 1 / length_B1.clamp_min(torch.finfo(g_Bnn.dtype).tiny), 0.0)
        basis_BSn[:, step] = q_Bn
        known_BSn = basis_BSn[:, : step + 1]
        w_Bn = _times(g_Bnn, q_Bn)
        least_B1 = torch.maximum(least_B1, 4 * torch.finfo(g_Bnn.dtype).eps * w_Bn.norm(dim=1, keepdim=True))
        part_BS = _times(known_BSn, w_Bn)
        t_BSS[:, : step + 1, step] = part_BS
        w_Bn = w_Bn - _mixed(known_BSn, part_BS)
        w_Bn = w_Bn - _mixed(known_BSn, _times(known_BSn, w_Bn))  # twice, for orthogonality in floating point
        length_B1 = w_Bn.norm(dim=1, keepdim=True)
    ritz_BS, mix_BSS = torch.linalg.eigh(t_BSS, UPLO="U")
    mix_BS = mix_BSS[..., -1]
    return ritz_BS[:, -1], _mixed(basis_BSn, mix_BS), length_B1[:, 0] * mix_BS[:, -1].abs()


def _times(matrix_Bij: Tensor, vector_Bj: Tensor) -> Tensor:
    """[B, i]: many small matrix-vector products, for which torch.bmm is slower."""
    return (matrix_Bij * vector_Bj[:, None]).sum(-1)


def _mixed(vectors_BSn: Tensor, weight_BS: Tensor) -> Tensor:
    """[B, n]: weighted sums of vectors."""
    return (vectors_BSn * weight_BS[..., None]).sum(1)


def _first_vector(side: int) -> Tensor:
    """[n]: a fixed random vector."""
    return torch.randn(side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
