import numpy as np
import pytest

from vitadel.report.comparison.fits import fit_line, fit_power_law, inside, inverse_logit, logit


def test_a_line_is_numpy_s_least_squares() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 40):
        x, y = rng.normal(100, 3, n), rng.normal(size=n)
        line = fit_line(x.tolist(), y.tolist())
        assert line is not None
        np.testing.assert_allclose((line.slope, line.intercept), np.polyfit(x, y, 1), rtol=1e-6)
        assert line.points == n
        assert line.at(7.0) == pytest.approx(7 * line.slope + line.intercept)


@pytest.mark.parametrize("x", [(), (1.0, 2.0), (2.0, 2.0, 2.0)])
def test_too_little_for_a_line_gives_none(x: tuple[float, ...]) -> None:
    assert fit_line(x, x) is None


def test_a_power_law_is_found_again_and_is_numpy_s_fit_of_logarithms() -> None:
    sizes = [1.0, 4.0, 20.0, 80.0]
    law = fit_power_law(sizes, [0.5 * size**-0.25 for size in sizes])
    assert law is not None
    np.testing.assert_allclose((law.factor, law.exponent), (0.5, -0.25))
    assert law.points == 4
    assert law.at(16) == pytest.approx(0.25)
    errors = [0.4, 0.31, 0.33, 0.2]
    found = fit_power_law(sizes, errors)
    assert found is not None
    exponent, factor = np.polyfit(np.log(sizes), np.log(errors), 1)
    np.testing.assert_allclose((found.exponent, found.factor), (exponent, np.exp(factor)), rtol=1e-9)


def test_three_models_of_two_sizes_make_no_power_law() -> None:
    assert fit_power_law([1.0, 1.0, 2.0], [0.3, 0.2, 0.1]) is None


def test_logits_go_there_and_back_and_half_an_image_keeps_them_finite() -> None:
    assert logit(0.5) == 0
    assert logit(0.75) == pytest.approx(np.log(3))
    for share in (0.001, 0.3, 0.999):
        assert inverse_logit(logit(share)) == pytest.approx(share)
    assert [inside(share, 100) for share in (0.0, 0.004, 0.3, 1.0)] == [0.005, 0.005, 0.3, 0.995]
