from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unilab.algos.critics import CategoricalCritics, ScalarCritics, projected

SUPPORT = jnp.linspace(-2.0, 2.0, 5)
LOGITS = jax.random.normal(jax.random.key(0), (2, 3, 5))  # of two critics for three samples


def logits_as_they_are(params: jax.Array, x: jax.Array) -> jax.Array:
    return params


EMPTY = jnp.zeros((3, 0))
project = jax.jit(projected)


@given(
    logits=hnp.arrays(np.float32, 5, elements=st.floats(-3, 3, width=32)),
    values=hnp.arrays(np.float32, 5, elements=st.floats(-5, 5, width=32)),
)
def test_projection_keeps_probability_and_mean(logits: np.ndarray, values: np.ndarray) -> None:
    """The projection is what a loop over atoms says; its sum is 1, and its mean that of the clipped values."""
    probs = np.exp(logits) / np.exp(logits).sum()
    expected = np.zeros(5)
    for p, value in zip(probs, np.clip(values, -2.0, 2.0), strict=True):
        below = min(int(np.floor(value + 2.0)), 3)
        expected[below] += p * (1.0 - (value + 2.0 - below))
        expected[below + 1] += p * (value + 2.0 - below)
    result = np.asarray(project(jnp.asarray(probs), jnp.asarray(values), SUPPORT))
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert result.sum() == pytest.approx(1.0, abs=1e-5)
    assert result @ np.asarray(SUPPORT) == pytest.approx(float(probs @ np.clip(values, -2.0, 2.0)), abs=1e-4)


@pytest.mark.parametrize("reduction", ["min", "mean"])
def test_target_distributions_have_the_right_mean(reduction: str) -> None:
    """The mean of the target is reward + discount * (reduced value + bonus) while the support holds it."""
    critics = CategoricalCritics(logits_as_they_are, reduction, SUPPORT)
    reward, discount, bonus = jnp.array([0.1, -0.2, 0.0]), jnp.array([0.5, 0.5, 0.0]), jnp.array([0.2, 0.0, 9.0])
    target = critics.target(LOGITS, EMPTY, EMPTY, bonus, reward, discount)
    value = critics.reduced(critics.values(LOGITS, EMPTY, EMPTY))
    np.testing.assert_allclose(target @ SUPPORT, reward + discount * (value + bonus), atol=1e-5)
    scalar = ScalarCritics(lambda params, x: params @ SUPPORT[:, None], reduction)
    number = scalar.target(jax.nn.softmax(LOGITS), EMPTY, EMPTY, bonus, reward, discount)
    np.testing.assert_allclose(target @ SUPPORT, number, atol=1e-5)


def test_cross_entropy_is_least_at_the_target() -> None:
    """The gradient of the loss is zero where each critic's distribution is the target; weight 0 takes a sample out."""
    critics = CategoricalCritics(logits_as_they_are, "min", SUPPORT)
    same = jnp.broadcast_to(LOGITS[:1], LOGITS.shape)
    target, weight = jax.nn.softmax(LOGITS[0]), jnp.array([1.0, 0.0, 1.0])

    def gradient(logits: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.grad(lambda p: critics.loss(p, EMPTY, EMPTY, target, weight)[0])(logits)

    np.testing.assert_allclose(gradient(same, jnp.ones(3)), 0.0, atol=1e-6)
    assert np.abs(gradient(LOGITS, weight)[1, 0]).max() > 1e-3
    np.testing.assert_array_equal(gradient(LOGITS, weight)[:, 1], 0.0)
