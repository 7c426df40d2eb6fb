from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unilab.algos.normalizer import Normalizer

SIZE, BATCH = 3, 8
UPDATE = jax.jit(Normalizer.update)


def number_of(norm: Normalizer) -> float:
    return float(norm.total) + float(norm.rest)


@given(seed=st.integers(0, 2**16), batches=st.integers(1, 5), data=st.data())
def test_statistics_are_numpys(seed: int, batches: int, data: Any) -> None:
    """After any batches, mean, variance and count are numpy's of all rows with weight 1 together."""
    rng = np.random.default_rng(seed)
    shift, scale = rng.normal(0, 5, SIZE), rng.uniform(0.1, 5, SIZE)
    x = (shift + scale * rng.normal(size=(batches, BATCH, SIZE))).astype(np.float32)
    weights = st.lists(st.sampled_from([0.0, 1.0, 1.0]), min_size=BATCH, max_size=BATCH)
    weight = np.array([data.draw(weights) for _ in range(batches)], np.float32)
    norm = Normalizer.of_size(SIZE)
    for rows, w in zip(x, weight, strict=True):
        norm = UPDATE(norm, rows, w)
    seen = x.reshape(-1, SIZE)[weight.ravel() > 0].astype(np.float64)
    assert number_of(norm) == len(seen)
    if len(seen):
        np.testing.assert_allclose(norm.mean, seen.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(norm.var, seen.var(0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            norm.normalize(seen[-1]), (seen[-1] - seen.mean(0)) / (seen.std(0) + 1e-8), rtol=0.02, atol=0.02
        )


def test_a_batch_without_weight_changes_nothing() -> None:
    """Rows with weight 0 leave every statistic as it was, whatever they hold."""
    norm = UPDATE(Normalizer.of_size(2), jnp.array([[1.0, 2.0], [3.0, 6.0]]), jnp.ones(2))
    after = UPDATE(norm, jnp.full((4, 2), 1e6), jnp.zeros(4))
    for before, now in zip(norm, after, strict=True):
        np.testing.assert_array_equal(before, now)


def test_unseen_data_are_scaled_by_one() -> None:
    """Before anything was seen, numbers pass unchanged up to the clip."""
    norm = Normalizer.of_size(2)
    np.testing.assert_allclose(norm.normalize(jnp.array([0.5, -30.0])), [0.5, -10.0], rtol=1e-6)


def test_count_goes_on_beyond_2_to_the_24() -> None:
    """Odd batches are counted exactly far beyond 2^24, where a lone float32 would stand still."""
    start = Normalizer.of_size(1)._replace(total=jnp.float32(2**24))
    batch, weight = jnp.ones((BATCH, 1)), jnp.ones(BATCH).at[0].set(0.0)  # 7 rows: float32 would round to 8

    def add(norm: Normalizer, _: Any) -> tuple[Normalizer, None]:
        return norm.update(batch, weight), None

    norm, _ = jax.jit(lambda n: jax.lax.scan(add, n, length=10_001))(start)
    assert number_of(norm) == 2**24 + 7 * 10_001
    one, _ = jax.jit(lambda n: jax.lax.scan(lambda m, _: (m.update(batch[:1], weight[1:2]), None), n, length=101))(
        start
    )
    assert number_of(one) == 2**24 + 101


def test_symmetrized_equals_statistics_of_data_and_mirrored_data() -> None:
    """Symmetrising equals having seen each row and its mirror image."""
    rng = np.random.default_rng(0)
    x = rng.normal([1.0, -2.0, 0.5], [1.0, 3.0, 0.2], (50, SIZE)).astype(np.float32)
    perm, sign = np.array([1, 0, 2]), np.array([-1.0, -1.0, 1.0], np.float32)
    norm = Normalizer.of_size(SIZE).update(x, np.ones(50, np.float32)).symmetrized(perm, sign)
    both = np.concatenate([x, sign * x[:, perm]]).astype(np.float64)
    np.testing.assert_allclose(norm.mean, both.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.var, both.var(0), rtol=1e-5)
    np.testing.assert_allclose(
        norm.normalize(sign * x[:, perm]), sign * np.asarray(norm.normalize(x))[:, perm], atol=1e-6
    )
