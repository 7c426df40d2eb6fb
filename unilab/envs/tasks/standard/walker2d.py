"""Walker2d-v5: a planar two-legged robot that walks forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from unilab.envs.task import Physics
from unilab.envs.tasks.standard.hopper import Hopper


@dataclass(frozen=True)
class Walker2d(Hopper):
    """A planar two-legged robot that walks forward; it terminates when it falls. Rewards are those of the Hopper."""

    xml: ClassVar = "walker2d_v5.xml"

    def is_healthy(self, physics: Physics) -> jax.Array:
        """Whether it is upright."""
        height, angle = physics.qpos[1], physics.qpos[2]
        return (height > 0.8) & (height < 2.0) & (jnp.abs(angle) < 1.0)
