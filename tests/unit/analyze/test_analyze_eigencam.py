"""EigenCAM against full decompositions in double precision, and the map of a planted pattern.

Shape letters: B images, N cells, C channels.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitadel.analyze.eigencam import eigencam


def features(images: int, cells: int, channels: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Features whose singular values fall slowly, as those of networks do."""
    rng = torch.Generator().manual_seed(seed)
    u = torch.randn(images, cells, cells, generator=rng, dtype=torch.float64)
    values = 1 / torch.arange(1, cells + 1, dtype=torch.float64).sqrt()
    v = torch.randn(images, cells, channels, generator=rng, dtype=torch.float64)
    return (u * values @ v + 0.3).to(dtype)


def by_svd(a_BNC: Tensor, center: bool) -> Tensor:
    a = a_BNC.double()
    a = a - a.mean(1, keepdim=True) if center else a
    u, s, _ = torch.linalg.svd(a, full_matrices=False)
    return u[..., 0] * s[:, :1]


def upright(map_BN: Tensor) -> Tensor:
    strongest = map_BN.gather(1, map_BN.abs().argmax(1, keepdim=True))
    return map_BN * strongest.sign()


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(("cells", "channels"), [(4, 30), (49, 64), (64, 64), (196, 24), (9, 5)])
def test_maps_match_a_full_decomposition(cells: int, channels: int, center: bool) -> None:
    a = features(6, cells, channels)
    torch.testing.assert_close(eigencam(a, center=center), upright(by_svd(a, center)), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("center", [False, True])
def test_single_precision_is_accurate_to_a_few_digits_less(center: bool) -> None:
    a = features(8, 100, 80, torch.float32)
    known = upright(by_svd(a, center))
    result = eigencam(a, center=center)
    assert result.dtype == torch.float32
    assert float(((result - known).abs().amax(1) / known.abs().amax(1)).max()) < 2e-4


def test_the_strongest_value_is_positive_whatever_the_sign_of_the_features() -> None:
    a = features(5, 36, 20)
    for one in (a, -a):
        result = eigencam(one)
        assert bool((result.amax(1) >= -result.amin(1)).all())
    torch.testing.assert_close(eigencam(-a), eigencam(a), atol=1e-9, rtol=1e-9)


def test_a_planted_pattern_is_found_and_centering_removes_the_mean() -> None:
    pattern = torch.tensor([0.0, 1.0, 3.0, 0.5, 0.0, 0.0])
    direction = torch.linspace(-1, 1, 24)
    a = (pattern[:, None] * direction)[None]
    torch.testing.assert_close(eigencam(a)[0], pattern * direction.norm(), atol=1e-5, rtol=1e-5)
    # a large constant in another direction hides the pattern until it is taken out
    hidden = a + 100 * torch.ones(24)
    assert float(eigencam(hidden)[0].std() / eigencam(hidden)[0].mean()) < 1e-2
    centered = pattern - pattern.mean()
    torch.testing.assert_close(eigencam(hidden, center=True)[0], centered * direction.norm(), atol=1e-3, rtol=1e-3)


def test_a_map_does_not_depend_on_the_batch() -> None:
    a = features(7, 64, 48, torch.float32)
    together = eigencam(a)
    apart = torch.cat([eigencam(one[None]) for one in a])
    torch.testing.assert_close(apart, together, atol=1e-5, rtol=1e-5)


def test_two_equal_eigenvalues_converge_to_one_of_their_vectors() -> None:
    a = torch.zeros(1, 40, 40, dtype=torch.float64)
    a[0].fill_diagonal_(1.0)
    result = eigencam(a)[0]
    assert float(result.norm()) == pytest.approx(1, abs=1e-9)
    # and close ones, on which the iteration converges slowly
    close = torch.diag_embed(1 - 1e-9 * torch.arange(40, dtype=torch.float64))[None]
    assert float(eigencam(close)[0].norm()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e25])
def test_features_of_any_size(size: float) -> None:
    a = features(2, 30, 20, torch.float32) * size
    result = eigencam(a)
    assert bool(result.isfinite().all())
    torch.testing.assert_close(result, size * eigencam(features(2, 30, 20, torch.float32)), atol=0, rtol=1e-4)


def test_matches_the_reference_up_to_the_sign() -> None:
    spec = importlib.util.find_spec("pytorch_grad_cam")
    if spec is None or spec.origin is None:
        pytest.skip("grad-cam is not installed")
    path = Path(spec.origin).parent / "utils" / "svd_on_activations.py"  # the package itself imports many others
    alone = importlib.util.spec_from_file_location("svd_on_activations", path)
    assert alone is not None
    assert alone.loader is not None
    peer = importlib.util.module_from_spec(alone)
    alone.loader.exec_module(peer)
    a = features(4, 49, 64, torch.float32)
    theirs = torch.from_numpy(peer.get_2d_projection(a.mT.reshape(4, 64, 7, 7).numpy())).flatten(1)
    torch.testing.assert_close(upright(theirs), eigencam(a, center=True), atol=2e-4, rtol=1e-3)
