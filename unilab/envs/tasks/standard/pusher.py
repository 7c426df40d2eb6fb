"""Pusher-v5: an arm of seven joints that pushes a cylinder to a goal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.suite import StandardTask

TRIES = 32  # candidates for the cylinder's place, of which the first that is far enough from the goal is taken
SMALLEST_DISTANCE = 0.17  # between cylinder and goal at first [m]


@dataclass(frozen=True)
class Pusher(StandardTask):
    """An arm of seven joints that pushes a cylinder to a goal; it never terminates."""

    control_dt: float = 0.05
    episode_s: float = 5.0
    rewards: dict[str, float] = field(default_factory=lambda: {"near": -0.5, "dist": -1.0, "ctrl": -0.1})

    fields: ClassVar = ("qpos", "qvel", "xpos")
    xml: ClassVar = "pusher_v5.xml"
    reset_noise: ClassVar = 0.005

    def reset(self, key: jax.Array, curriculum: Any, randomised: Any) -> tuple[jax.Array, jax.Array, Any]:
        place_key, qvel_key = jax.random.split(key)
        places = jax.random.uniform(place_key, (TRIES, 2), minval=jnp.array([-0.3, -0.2]), maxval=jnp.array([0.0, 0.2]))
        place = places[jnp.argmax(jnp.linalg.norm(places, axis=-1) > SMALLEST_DISTANCE)]
        qpos = jnp.asarray(self._nominal.qpos0, jnp.float32).at[-4:].set(jnp.append(place, jnp.zeros(2)))
        return qpos, self._noise(qvel_key, self._nominal.nv).at[-4:].set(0.0), {}

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        tips, cylinder, goal = (physics.row("xpos", name) for name in ("tips_arm", "object", "goal"))
        distance = jnp.linalg.norm(cylinder - goal)
        terms = {"near": jnp.linalg.norm(cylinder - tips), "dist": distance, "ctrl": self.control_cost(action)}
        return state, terms, jnp.bool_(False), {"distance": distance}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        places = [physics.row("xpos", name) for name in ("tips_arm", "object", "goal")]
        return {"actor": jnp.concatenate([physics.qpos[:7], physics.qvel[:7], *places])}
