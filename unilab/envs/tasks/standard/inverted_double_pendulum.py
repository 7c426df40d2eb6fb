"""InvertedDoublePendulum-v5: a cart that keeps two poles, one on top of the other, upright."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.suite import StandardTask


@dataclass(frozen=True)
class InvertedDoublePendulum(StandardTask):
    """A cart that keeps two poles, one on top of the other, upright; it terminates when the tip falls below 1 m."""

    control_dt: float = 0.05
    episode_s: float = 50.0
    rewards: dict[str, float] = field(default_factory=lambda: {"survive": 10.0, "distance": -1.0, "velocity": -1.0})

    fields: ClassVar = ("qpos", "qvel", "site_xpos", "qfrc_constraint")
    xml: ClassVar = "inverted_double_pendulum.xml"
    reset_noise: ClassVar = 0.1
    normal_qvel: ClassVar = True

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        x, _, height = physics.site_xpos[0]
        terminated = height <= 1.0
        terms = {
            "survive": 1.0 - terminated.astype(jnp.float32),
            "distance": 0.01 * jnp.square(x) + jnp.square(height - 2.0),
            "velocity": 1e-3 * jnp.square(physics.qvel[1]) + 5e-3 * jnp.square(physics.qvel[2]),
        }
        return state, terms, terminated, {"height": height}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        angles = physics.qpos[1:]
        velocity, force = (jnp.clip(x, -10.0, 10.0) for x in (physics.qvel, physics.qfrc_constraint[:1]))
        return {"actor": jnp.concatenate([physics.qpos[:1], jnp.sin(angles), jnp.cos(angles), velocity, force])}
