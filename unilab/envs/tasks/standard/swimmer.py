"""Swimmer-v5: a snake of three links that swims forward in a plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics, delta
from unilab.envs.tasks.standard.suite import StandardTask


@dataclass(frozen=True)
class Swimmer(StandardTask):
    """A snake of three links that swims forward in a plane; it never terminates."""

    control_dt: float = 0.04
    episode_s: float = 40.0
    rewards: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "ctrl": -1e-4})

    fields: ClassVar = ("qpos", "qvel", delta("qpos"))
    xml: ClassVar = "swimmer.xml"
    reset_noise: ClassVar = 0.1

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        velocity = physics.delta("qpos")[0] / self.control_dt
        terms = {"forward": velocity, "ctrl": self.control_cost(action)}
        return state, terms, jnp.bool_(False), {"velocity": velocity}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        return {"actor": jnp.concatenate([physics.qpos[2:], physics.qvel])}
