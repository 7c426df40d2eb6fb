"""Diagonal Gaussian over actions. Arrays are [..., A]; results sum over the action's entries."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

LOG_2PI = math.log(2.0 * math.pi)


def gaussian_log_prob(action: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """Log-density of `action` [..., A] -> [...]."""
    z = (action - mean) * jnp.exp(-log_std)
    return -0.5 * jnp.sum(jnp.square(z) + 2.0 * log_std + LOG_2PI, axis=-1)


def gaussian_entropy(log_std: jax.Array) -> jax.Array:
    """Differential entropy in nats of log_std [..., A] -> [...]."""
    return jnp.sum(log_std + 0.5 * (1.0 + LOG_2PI), axis=-1)


def gaussian_kl(mean: jax.Array, log_std: jax.Array, new_mean: jax.Array, new_log_std: jax.Array) -> jax.Array:
    """KL(old || new) in nats [...]."""
    ratio = jnp.exp(2.0 * (log_std - new_log_std))
    shift = jnp.square((new_mean - mean) * jnp.exp(-new_log_std))
    return jnp.sum(0.5 * (ratio + shift - 1.0) + new_log_std - log_std, axis=-1)
