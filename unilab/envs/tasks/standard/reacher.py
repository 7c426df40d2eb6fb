"""Reacher-v5: a planar arm of two links that reaches for a point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.suite import StandardTask

GOAL_RADIUS = 0.2  # [m]


@dataclass(frozen=True)
class Reacher(StandardTask):
    """A planar arm of two links that reaches for a point; it never terminates."""

    control_dt: float = 0.02
    episode_s: float = 1.0
    rewards: dict[str, float] = field(default_factory=lambda: {"dist": -1.0, "ctrl": -1.0})

    fields: ClassVar = ("qpos", "qvel", "xpos")
    xml: ClassVar = "reacher.xml"
    reset_noise: ClassVar = 0.1

    def reset(self, key: jax.Array, curriculum: Any, randomised: Any) -> tuple[jax.Array, jax.Array, Any]:
        key, radius_key, angle_key, qvel_key = jax.random.split(key, 4)
        qpos, _, state = super().reset(key, curriculum, randomised)
        # Evenly over a disc.
        radius = GOAL_RADIUS * jnp.sqrt(jax.random.uniform(radius_key))
        angle = 2 * jnp.pi * jax.random.uniform(angle_key)
        qpos = qpos.at[-2:].set(radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
        qvel = jnp.zeros(4).at[:2].set(0.005 * jax.random.uniform(qvel_key, (2,), minval=-1.0))
        return qpos, qvel, state

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        distance = jnp.linalg.norm(self._miss(physics))
        terms = {"dist": distance, "ctrl": self.control_cost(action)}
        return state, terms, jnp.bool_(False), {"distance": distance}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        angles = physics.qpos[:2]
        parts = [jnp.cos(angles), jnp.sin(angles), physics.qpos[2:], physics.qvel[:2], self._miss(physics)[:2]]
        return {"actor": jnp.concatenate(parts)}

    def _miss(self, physics: Physics) -> jax.Array:
        return physics.row("xpos", "fingertip") - physics.row("xpos", "target")
