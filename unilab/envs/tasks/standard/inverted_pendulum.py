"""InvertedPendulum-v5: a cart that keeps a pole upright."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.suite import StandardTask


@dataclass(frozen=True)
class InvertedPendulum(StandardTask):
    """A cart that keeps a pole upright; it terminates when the pole leans by more than 0.2 rad."""

    control_dt: float = 0.04
    episode_s: float = 40.0
    rewards: dict[str, float] = field(default_factory=lambda: {"survive": 1.0})

    fields: ClassVar = ("qpos", "qvel")
    xml: ClassVar = "inverted_pendulum.xml"
    reset_noise: ClassVar = 0.01

    def advance(self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        terminated = jnp.abs(physics.qpos[1]) > 0.2
        return state, {"survive": 1.0 - terminated.astype(jnp.float32)}, terminated, {}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        return {"actor": jnp.concatenate([physics.qpos, physics.qvel])}
