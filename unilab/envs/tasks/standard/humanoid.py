"""Humanoid-v5: a humanoid that walks forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Delta, Physics, delta
from unilab.envs.tasks.standard.suite import StandardTask

LARGEST_CONTACT_COST = 10.0


@dataclass(frozen=True)
class Humanoid(StandardTask):
    """A humanoid that walks forward; it terminates when its torso is too low or too high."""

    control_dt: float = 0.015
    episode_s: float = 15.0
    rewards: dict[str, float] = field(
        default_factory=lambda: {"forward": 1.25, "ctrl": -0.1, "contact": -1.0, "survive": 5.0}
    )

    fields: ClassVar[tuple[str | Delta, ...]] = (
        "qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext", delta("xipos"),
    )  # fmt: skip
    termination_metric: ClassVar = "fall_rate"
    xml: ClassVar = "humanoid.xml"
    reset_noise: ClassVar = 1e-2

    def first_state(self) -> Any:
        return {"has_moved": jnp.float32(0.0)}

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        share = jnp.asarray(self._nominal.body_mass / self._nominal.body_mass.sum(), jnp.float32)
        velocity = jnp.sum(share * physics.delta("xipos")[:, 0]) / self.control_dt  # of the centre of mass
        height = physics.qpos[2]
        is_healthy = (height > 1.0) & (height < 2.0)
        terms = {
            "forward": velocity,
            "ctrl": self.control_cost(action),
            "contact": jnp.clip(5e-7 * jnp.sum(jnp.square(physics.cfrc_ext)), max=LARGEST_CONTACT_COST),
            "survive": is_healthy.astype(jnp.float32),
        }
        return {"has_moved": jnp.float32(1.0)}, terms, ~is_healthy, {"velocity": velocity}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        # Right after a reset Gymnasium has not computed the forces: they are zero there.
        forces = jnp.ravel(physics.cfrc_ext[1:]) * state["has_moved"]
        inertia, body_velocity = jnp.ravel(physics.cinert[1:]), jnp.ravel(physics.cvel[1:])
        parts = [physics.qpos[2:], physics.qvel, inertia, body_velocity, physics.qfrc_actuator[6:], forces]
        return {"actor": jnp.concatenate(parts)}
