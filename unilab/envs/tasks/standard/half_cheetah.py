"""HalfCheetah-v5: a planar two-legged runner that runs forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics, delta
from unilab.envs.tasks.standard.suite import StandardTask


@dataclass(frozen=True)
class HalfCheetah(StandardTask):
    """A planar two-legged runner that runs forward; it never terminates."""

    control_dt: float = 0.05
    episode_s: float = 50.0
    rewards: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "ctrl": -0.1})

    fields: ClassVar = ("qpos", "qvel", delta("qpos"))
    xml: ClassVar = "half_cheetah.xml"
    reset_noise: ClassVar = 0.1
    normal_qvel: ClassVar = True
    unseen: ClassVar = 1
    """Entries of qpos, from the first on, that are not observed."""

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        velocity = physics.delta("qpos")[0] / self.control_dt
        terms = {"forward": velocity, "ctrl": self.control_cost(action)}
        return state, terms, jnp.bool_(False), {"velocity": velocity}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        return {"actor": jnp.concatenate([physics.qpos[self.unseen :], physics.qvel])}
