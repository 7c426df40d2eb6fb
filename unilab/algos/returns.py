"""Advantages and value targets from a rollout."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gae(
    reward: jax.Array, value: jax.Array, next_value: jax.Array, terminated: jax.Array, ended: jax.Array,
    weight: jax.Array, discount: float, trace: float,
) -> jax.Array:  # fmt: skip
    """Generalised advantage estimate (Schulman et al. 2016, arXiv 1506.02438, eq. 16) of a rollout [T, ...].

        delta_t = r_t + discount (1 - terminated_t) V(s_{t+1}) - V(s_t)
        A_t     = delta_t + discount trace (1 - ended_t) A_{t+1}

    Args:
        next_value: value of the *true* successor of each step, also where the episode ended.
        terminated: 1 where the MDP ended: nothing follows, so nothing is bootstrapped.
        ended: 1 where the episode ended for whatever reason: the trace is cut.
        weight: 0 where a step is void: its advantage is 0 and the step before it bootstraps from its value.
    """
    delta = reward + discount * (1.0 - terminated) * next_value - value

    def backward(advantage: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, ended_t, weight_t = inputs
        advantage = weight_t * (delta_t + discount * trace * (1.0 - ended_t) * advantage)
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(value[0]), (delta, ended, weight), reverse=True)
    return advantages
