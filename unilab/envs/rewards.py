"""Shapes of reward terms that many tasks share. All take and return arrays of one env."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def tracking(error: jax.Array, variance: float) -> jax.Array:
    """exp(-|error|^2 / variance) of an error vector or scalar: 1 when it is zero; variance in its squared units."""
    return jnp.exp(-jnp.sum(jnp.square(error)) / variance)


def tolerance(x: jax.Array, margin: float, value_at_margin: float = 0.1) -> jax.Array:
    """1 at x = 0, falling as a Gaussian to `value_at_margin` at |x| = `margin` (units of x).

    The shape of dm_control's `rewards.tolerance` with bounds (0, 0) and its Gaussian sigmoid.
    """
    scale = (-2.0 * jnp.log(value_at_margin)) ** 0.5
    return jnp.exp(-0.5 * jnp.square(x / margin * scale))


def tolerance_quadratic(x: jax.Array, margin: float) -> jax.Array:
    """1 at x = 0, falling as a parabola to 0 at |x| = `margin`: dm_control's quadratic sigmoid, 0 at the margin."""
    return jnp.clip(1.0 - jnp.square(x / margin), 0.0, 1.0)
