"""What the parent and the workers of a run agree on, derived from its configuration alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from unilab.algos.algorithm import Algorithm, Horizon, Spaces
from unilab.algos.registry import algorithm_class
from unilab.config import Config, default_shard_size
from unilab.envs.batch import Batch, batch_row_shapes
from unilab.envs.env import Env
from unilab.envs.packing import Packing
from unilab.envs.physics.registry import physics_class, physics_entry
from unilab.runtime.layout import GENERATIONS, Layout, rollout_field_shapes, with_leading
from unilab.runtime.ring import TOTALS


@dataclass(frozen=True)
class Plan:
    """A resolved configuration with compiled models; everything else follows from them.

    Attributes:
        config: the configuration, with nothing left to resolve.
        model: the model to train on.
        evaluation_model: the model to evaluate on, if it is another one.
        fine: evaluate on the task's most faithful physics.
        runner: "module:class" of what runs the jobs in a worker.
    """

    config: Config
    model: mujoco.MjModel
    evaluation_model: mujoco.MjModel | None = None
    fine: bool = False
    runner: str = "unilab.runtime.job:JobRunner"

    worker_bytes: ClassVar[int] = 400 * 2**20
    """Memory of a worker's own; measured: one that has compiled the Go1 task holds about 350 MB."""

    @classmethod
    def of(cls, config: Config, fine: bool = False) -> Plan:
        """Plan of a configuration; compiles the models."""
        model = Env(config.task).model
        evaluation = config.task.evaluation()
        same = not fine and evaluation == config.task
        runner = "unilab.runtime.device:DeviceRunner" if physics_entry(config.physics).on_device else cls.runner
        return cls(config, model, None if same else Env(evaluation, fine).model, fine, runner)

    def __reduce__(self) -> Any:
        return Plan, (
            self.config,
            self.model,
            self.evaluation_model,
            self.fine,
            self.runner,
        )  # what is derived stays behind

    @property
    def shard_size(self) -> int:
        assert self.config.shard_size is not None
        return self.config.shard_size

    @cached_property
    def exact_state(self) -> bool:
        """Whether the physics goes on from a row of the bank bit for bit, as replacement and resume need."""
        return physics_class(self.config.physics).exact_state

    @property
    def num_shards(self) -> int:
        return self.config.num_envs // self.shard_size

    @property
    def evaluation_shard_size(self) -> int:
        """Envs in a shard of an evaluation; as for training, it follows from their number alone."""
        episodes = self.config.eval_episodes
        return episodes if physics_entry(self.config.physics).on_device else default_shard_size(episodes)

    @property
    def num_evaluation_shards(self) -> int:
        return self.config.eval_episodes // self.evaluation_shard_size

    @property
    def rollout_steps(self) -> int:
        return int(self.config.algo.rollout_steps)

    @cached_property
    def env(self) -> Env:
        return Env(self.config.task, model=self.model)

    @cached_property
    def evaluation_env(self) -> Env:
        if self.evaluation_model is None:
            return self.env
        return Env(self.config.task.evaluation(), self.fine, self.evaluation_model)

    @cached_property
    def spaces(self) -> Spaces:
        mirror = self.config.task.mirror()
        if mirror is not None:
            mirror = {"critic": mirror["actor"], **mirror}
            sizes = {**self.env.obs_sizes, "action": self.env.action_size}
            for group, size in sizes.items():
                if len(mirror[group].perm) != size:
                    raise ValueError(f"mirror() of {group!r} has {len(mirror[group].perm)} entries, expected {size}")
        bounds = self.config.task.action_bounds(self.model)
        return Spaces(self.env.obs_sizes, self.env.action_size, mirror, bounds, not self.env.has_critic_obs)

    @cached_property
    def algorithm(self) -> Algorithm:
        config = self.config
        assert config.lag is not None
        horizon = Horizon(
            config.horizon_iterations, config.num_envs, self.rollout_steps, config.lag, config.task.episode_steps
        )
        return algorithm_class(config.algo_name)(config.algo, self.spaces, horizon)

    @cached_property
    def replay_bytes(self) -> int:
        """Bytes of what the algorithm remembers, on the learner's device."""
        memory = jax.eval_shape(lambda: self.algorithm.split(self.algorithm.init(jax.random.key(0)))[1])
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(memory))

    def initial_curriculum(self) -> Any:
        return jax.tree.map(jnp.asarray, self.config.task.curriculum())

    @cached_property
    def snapshot_packing(self) -> Packing:
        def snapshot() -> Mapping[str, Any]:
            state = self.algorithm.init(jax.random.key(0))
            return {"policy": self.algorithm.snapshot(state), "curriculum": self.initial_curriculum()}

        return Packing.of(jax.eval_shape(snapshot))

    @cached_property
    def layout(self) -> Layout:
        config, columns = self.config, len(self.env.columns.names)
        assert config.lag is not None
        slots = config.lag + 1
        rows = batch_row_shapes(Batch(self.env, 1, 0, config.physics))
        ring = with_leading(self._step_shapes(), slots, self.rollout_steps, config.num_envs)
        ring |= dict.fromkeys(TOTALS, (np.float32, (slots, config.num_envs, columns)))
        evaluation_columns = len(self.evaluation_env.columns.names)
        return Layout(
            bank=with_leading(rows, GENERATIONS, config.num_envs),
            ring=ring,
            snapshots={"words": (np.uint32, (config.lag + 2, self.snapshot_packing.size))},
            evaluation={"totals": (np.float32, (config.eval_episodes, evaluation_columns))},
            progress={"steps": (np.uint64, (max(config.workers or 0, 1),))},
        )

    def _step_shapes(self) -> Any:
        size, algorithm = self.shard_size, self.algorithm
        obs = {g: jax.ShapeDtypeStruct((size, n), jnp.float32) for g, n in self.spaces.obs_sizes.items()}

        def act(obs: Any, key: jax.Array) -> Any:
            snapshot = algorithm.snapshot(algorithm.init(key))
            noise = jax.vmap(algorithm.draw_noise)(jax.random.split(key, size), jnp.arange(size))
            return algorithm.act(snapshot, obs, noise)[1]

        extras = jax.eval_shape(act, obs, jax.random.key(0))
        return rollout_field_shapes(self.spaces.obs_sizes, algorithm.final_groups, self.spaces.action_size, extras)
