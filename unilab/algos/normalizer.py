"""Running mean and variance of vectors."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Normalizer(NamedTuple):
    """Statistics of all vectors seen so far; `total` + `rest` is their number: one float32 would stop at 2^24."""

    mean: jax.Array
    var: jax.Array
    total: jax.Array
    rest: jax.Array

    @classmethod
    def of_size(cls, size: int) -> Normalizer:
        # Separate arrays: the state is donated, and one buffer cannot be donated twice.
        return cls(jnp.zeros(size), jnp.ones(size), jnp.zeros(()), jnp.zeros(()))

    def normalize(self, x: jax.Array, clip: float = 10.0) -> jax.Array:
        """(x - mean) / std, clipped to +-`clip`."""
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.var + 1e-8), -clip, clip)

    @property
    def std(self) -> jax.Array:
        return jnp.sqrt(self.var + 1e-8)

    def update(self, x: jax.Array, weight: jax.Array) -> Normalizer:
        """Statistics after also seeing x [B, n] with weights [B] of 0 or 1 (Chan et al. 1979, parallel variance)."""
        batch = jnp.sum(weight)
        safe = jnp.maximum(batch, 1.0)
        mean = jnp.sum(weight[:, None] * x, axis=0) / safe
        var = jnp.sum(weight[:, None] * jnp.square(x - mean), axis=0) / safe
        total, rest = _two_sum(self.total, self.rest + batch)
        fraction = batch / jnp.maximum(total, 1.0)
        delta = mean - self.mean
        new_mean = self.mean + fraction * delta
        new_var = (1.0 - fraction) * self.var + fraction * var + fraction * (1.0 - fraction) * jnp.square(delta)
        return Normalizer(new_mean, new_var, total, rest)

    def symmetrized(self, perm: np.ndarray, sign: np.ndarray) -> Normalizer:
        """Statistics of the data together with their mirror images."""
        mirrored_mean, mirrored_var = sign * self.mean[perm], self.var[perm]
        mean = 0.5 * (self.mean + mirrored_mean)
        var = 0.5 * (self.var + mirrored_var) + jnp.square(0.5 * (self.mean - mirrored_mean))
        return self._replace(mean=mean, var=var)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a + b as a float32 and the float32 that rounding lost (Knuth's TwoSum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
