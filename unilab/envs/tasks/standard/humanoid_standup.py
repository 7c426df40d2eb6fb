"""HumanoidStandup-v5: a humanoid that lies on its back and gets up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.humanoid import LARGEST_CONTACT_COST, Humanoid

PHYSICS_DT = 0.003  # [s]


@dataclass(frozen=True)
class HumanoidStandup(Humanoid):
    """A humanoid that lies on its back and gets up; it never terminates."""

    rewards: dict[str, float] = field(
        default_factory=lambda: {"height": 1.0, "ctrl": -0.1, "impact": -1.0, "constant": 1.0}
    )

    fields: ClassVar = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    termination_metric: ClassVar = "termination_rate"
    xml: ClassVar = "humanoidstandup.xml"

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        height = physics.qpos[2]
        terms = {
            "height": height / PHYSICS_DT,
            "ctrl": self.control_cost(action),
            "impact": jnp.clip(5e-7 * jnp.sum(jnp.square(physics.cfrc_ext)), max=LARGEST_CONTACT_COST),
            "constant": jnp.float32(1.0),
        }
        return {"has_moved": jnp.float32(1.0)}, terms, jnp.bool_(False), {"height": height}
