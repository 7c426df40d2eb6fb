from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from unilab.algos.distributions import gaussian_entropy, gaussian_kl, gaussian_log_prob

SIZE = 3


def vectors(low: float, high: float) -> Any:
    return st.lists(st.floats(low, high, width=32), min_size=SIZE, max_size=SIZE).map(lambda x: np.array(x, np.float32))


means, log_stds = vectors(-3.0, 3.0), vectors(-2.0, 1.0)


def gaussian(mean: np.ndarray, log_std: np.ndarray) -> Any:
    return stats.multivariate_normal(mean.astype(np.float64), np.diag(np.exp(2 * log_std.astype(np.float64))))


@given(action=means, mean=means, log_std=log_stds)
def test_log_density_and_entropy_are_scipys(action: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> None:
    """Log-density and entropy equal scipy's of the same multivariate normal."""
    oracle = gaussian(mean, log_std)
    np.testing.assert_allclose(gaussian_log_prob(action, mean, log_std), oracle.logpdf(action), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gaussian_entropy(log_std), oracle.entropy(), rtol=1e-5, atol=1e-5)


@given(mean=means, log_std=log_stds)
def test_divergence_from_itself_is_zero(mean: np.ndarray, log_std: np.ndarray) -> None:
    """KL(p || p) = 0, to the last bit."""
    assert float(gaussian_kl(mean, log_std, mean, log_std)) == 0.0


def test_divergence_equals_its_integral() -> None:
    """KL(p || q) of one dimension equals the integral of p log(p / q), and sums over dimensions."""
    p, q = stats.norm(0.3, np.exp(-0.5)), stats.norm(-0.4, np.exp(0.2))
    expected, _ = integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -10, 10)
    one = [np.array([x], np.float32) for x in (0.3, -0.5, -0.4, 0.2)]
    np.testing.assert_allclose(gaussian_kl(*one), expected, rtol=1e-5)
    np.testing.assert_allclose(gaussian_kl(*(np.repeat(x, 4) for x in one)), 4 * expected, rtol=1e-5)


def test_leading_axes_stay() -> None:
    """Results sum over the last axis alone and keep the others."""
    x, log_std = np.zeros((5, 2, SIZE), np.float32), np.zeros(SIZE, np.float32)
    assert gaussian_log_prob(x, x, log_std).shape == (5, 2)
    assert gaussian_kl(x, log_std, x, log_std).shape == (5, 2)
