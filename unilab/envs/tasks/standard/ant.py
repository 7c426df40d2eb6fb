"""Ant-v5: a four-legged robot that walks forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics, delta
from unilab.envs.tasks.standard.suite import StandardTask

TORSO = 1  # number of a body


@dataclass(frozen=True)
class Ant(StandardTask):
    """A four-legged robot that walks forward; it terminates when its torso is too low or too high."""

    control_dt: float = 0.05
    episode_s: float = 50.0
    rewards: dict[str, float] = field(
        default_factory=lambda: {"forward": 1.0, "ctrl": -0.5, "contact": -5e-4, "survive": 1.0}
    )

    fields: ClassVar = ("qpos", "qvel", "cfrc_ext", delta("xpos"))
    termination_metric: ClassVar = "fall_rate"
    xml: ClassVar = "ant.xml"
    reset_noise: ClassVar = 0.1
    normal_qvel: ClassVar = True

    def first_state(self) -> Any:
        return {"has_moved": jnp.float32(0.0)}

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        velocity = physics.delta("xpos")[TORSO, 0] / self.control_dt
        height = physics.qpos[2]
        is_healthy = (height >= 0.2) & (height <= 1.0)
        terms = {
            "forward": velocity,
            "ctrl": self.control_cost(action),
            "contact": jnp.sum(jnp.square(_contact_forces(physics))),
            "survive": is_healthy.astype(jnp.float32),
        }
        return {"has_moved": jnp.float32(1.0)}, terms, ~is_healthy, {"velocity": velocity}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        # Right after a reset Gymnasium has not computed the forces: they are zero there.
        forces = jnp.ravel(_contact_forces(physics)[1:]) * state["has_moved"]
        return {"actor": jnp.concatenate([physics.qpos[2:], physics.qvel, forces])}


def _contact_forces(physics: Physics) -> jax.Array:
    return jnp.clip(physics.cfrc_ext, -1.0, 1.0)
