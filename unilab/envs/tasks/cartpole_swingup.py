"""Swing a pole up by moving its cart, and hold it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import mujoco

from unilab.envs.rewards import tolerance, tolerance_quadratic
from unilab.envs.task import Mirror, Physics, Task


@dataclass(frozen=True)
class CartpoleSwingup(Task):
    """Swing a pole up by moving its cart, and hold it there.

    The reward is that of dm_control's cartpole "swingup": the product of four factors in [0, 1], so that an episode of
    10 s returns between 0 and 1000: there at most 1 comes every 10 ms, here at most 2 every 20 ms, as
    with the action repeat of 2 that published results use. The pole starts hanging down; an episode never terminates.
    """

    control_dt: float = 0.02
    episode_s: float = 10.0
    rewards: dict[str, float] = field(default_factory=lambda: {"upright_centred_calm": 2.0})

    fields: ClassVar = ("qpos", "qvel")
    train_defaults: ClassVar = {
        "ppo": {
            "steps": 1_500_000,
            "num_envs": 256,
            "eval_every": 500_000,
            "algo.rollout_steps": 32,
            "algo.init_std": 1.0,
            "algo.max_learning_rate": 3e-3,
            "algo.entropy_weight": 0.02,  # with less, some seeds keep spinning the pole
            "algo.actor_hidden": (64, 64),
            "algo.critic_hidden": (64, 64),
        },
    }

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        """The cart and pole; `fine` integrates with Runge-Kutta at an eighth of the step."""
        spec = mujoco.MjSpec.from_file(str(Path(__file__).with_name("cartpole.xml")))
        if fine:
            spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4
            spec.option.timestep = self.control_dt / 16
        return spec

    def reset(
        self, key: jax.Array, curriculum: Any, randomised: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, Any]:
        position_key, angle_key, velocity_key = jax.random.split(key, 3)
        position = 0.01 * jax.random.normal(position_key)
        angle = jnp.pi + 0.01 * jax.random.normal(angle_key)
        return jnp.stack([position, angle]), 0.01 * jax.random.normal(velocity_key, (2,)), {}

    def control(self, state: Any, action: jax.Array) -> dict[str, jax.Array]:
        return {"ctrl": jnp.clip(action, -1.0, 1.0)}

    def advance(
        self, state: Any, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any
    ) -> tuple[Any, dict[str, jax.Array], jax.Array, dict[str, Any]]:
        position, angle = physics.qpos
        upright = (jnp.cos(angle) + 1.0) / 2.0
        centred = (1.0 + tolerance(position, margin=2.0)) / 2.0
        small_control = (4.0 + tolerance_quadratic(jnp.clip(action[0], -1.0, 1.0), margin=1.0)) / 5.0
        calm = (1.0 + tolerance(physics.qvel[1], margin=5.0)) / 2.0
        terms = {"upright_centred_calm": upright * centred * small_control * calm}
        return state, terms, jnp.bool_(False), {"upright": upright}

    def observe(self, state: Any, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        position, angle = physics.qpos
        return {"actor": jnp.stack([position, jnp.cos(angle), jnp.sin(angle), *physics.qvel])}

    def mirror(self) -> dict[str, Mirror]:
        return {
            "actor": Mirror.of([-1, 1, -1, -1, -1]),
            "critic": Mirror.of([-1, 1, -1, -1, -1]),
            "action": Mirror.of([-1]),
        }
