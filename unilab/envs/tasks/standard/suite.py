"""What the standard tasks share: their models, how episodes begin, bounded actions."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from unilab.envs.task import Task


@dataclass(frozen=True)
class StandardTask(Task):
    """A task of Gymnasium's MuJoCo suite, with its rewards, terminations and distribution of first states.

    The reward terms are Gymnasium's, before their weights; `rewards` holds Gymnasium's weights. Actions are in the
    units of the actuators and are cut off at their range.
    """

    xml: ClassVar[str]
    """Name of the model's file in the gymnasium package."""
    reset_noise: ClassVar[float]
    """Scale of the noise on the first qpos and qvel."""
    normal_qvel: ClassVar[bool] = False
    """Whether the noise on qvel is Gaussian; else it is uniform, as that on qpos."""

    train_defaults: ClassVar = {
        "ppo": {
            "steps": 1_000_000, "num_envs": 16, "shard_size": 8, "eval_episodes": 16, "algo.rollout_steps": 128,
            "algo.epochs": 10, "algo.minibatches": 16, "algo.learning_rate": 5e-4, "algo.schedule": "linear",
            "algo.entropy_weight": 0.0, "algo.init_std": 0.6, "algo.actor_hidden": (64, 64),
            "algo.critic_hidden": (64, 64), "algo.activation": "tanh",
        },
        "sac": {"steps": 300_000, "num_envs": 16, "shard_size": 8, "eval_episodes": 16},
        "td3": {"steps": 300_000, "num_envs": 16, "shard_size": 8, "eval_episodes": 16},
    }  # fmt: skip

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_file(str(_asset(self.xml)))

    def reset(self, key: jax.Array, curriculum: Any, randomised: Any) -> tuple[jax.Array, jax.Array, Any]:
        qpos_key, qvel_key = jax.random.split(key)
        qpos = jnp.asarray(self._nominal.qpos0, jnp.float32) + self._noise(qpos_key, self._nominal.nq)
        if self.normal_qvel:
            qvel = self.reset_noise * jax.random.normal(qvel_key, (self._nominal.nv,))
        else:
            qvel = self._noise(qvel_key, self._nominal.nv)
        return qpos, qvel, self.first_state()

    def first_state(self) -> Any:
        """The task's own state when an episode begins."""
        return {}

    def control(self, state: Any, action: jax.Array) -> dict[str, jax.Array]:
        return {"ctrl": self.bounded(action)}

    def bounded(self, action: jax.Array) -> jax.Array:
        """An action within the actuators' range."""
        low, high = self.action_bounds(self._nominal)
        return jnp.clip(action, low, high)

    def action_bounds(self, model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
        low, high = model.actuator_ctrlrange.T.astype(np.float32)
        return low, high

    def control_cost(self, action: jax.Array) -> jax.Array:
        """Sum of the squares of the controls."""
        return jnp.sum(jnp.square(self.bounded(action)))

    @property
    def _nominal(self) -> mujoco.MjModel:
        return _model(self.xml)

    def _noise(self, key: jax.Array, size: int) -> jax.Array:
        return self.reset_noise * jax.random.uniform(key, (size,), minval=-1.0)


def _asset(xml: str) -> Path:
    spec = importlib.util.find_spec("gymnasium")  # found, not imported
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets" / xml


@cache
def _model(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(_asset(xml)))
