"""Hopper-v5: a planar one-legged robot that hops forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics, delta
from unilab.envs.tasks.standard.suite import StandardTask


@dataclass(frozen=True)
class Hopper(StandardTask):
    """A planar one-legged robot that hops forward; it terminates when it falls."""

    control_dt: float = 0.008
    episode_s: float = 8.0
    rewards: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "ctrl": -1e-3, "survive": 1.0})

    fields: ClassVar = ("qpos", "qvel", delta("qpos"))
    termination_metric: ClassVar = "fall_rate"
    xml: ClassVar = "hopper.xml"
    reset_noise: ClassVar = 5e-3

    def is_healthy(self, physics: Physics) -> jax.Array:
        """Whether it is upright and nothing is out of bounds."""
        height, angle = physics.qpos[1], physics.qpos[2]
        rest = jnp.concatenate([physics.qpos[2:], physics.qvel])
        return (height > 0.7) & (jnp.abs(angle) < 0.2) & jnp.all(jnp.abs(rest) < 100.0)

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        velocity, is_healthy = physics.delta("qpos")[0] / self.control_dt, self.is_healthy(physics)
        terms = {"forward": velocity, "ctrl": self.control_cost(action), "survive": is_healthy.astype(jnp.float32)}
        return state, terms, ~is_healthy, {"velocity": velocity}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        return {"actor": jnp.concatenate([physics.qpos[1:], jnp.clip(physics.qvel, -10.0, 10.0)])}
