"""The envs of a shard on JAX's device: the task's functions and the physics in one pure function per env step.

The counterpart of `Batch` for physics that needs no host. It is for use inside a caller's `jit` and `lax.scan`; its
arrays are those of `BatchRows`, so that the bank holds its envs as it holds all others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from unilab.envs.env import ADVANCE, OBSERVATION, Env, EnvState, Outcome, stream_key
from unilab.envs.physics.mjx import MjxEnv, MjxRow

RESTART_SIZE = 32
"""Envs that are restarted in one go; as often as it takes after each env step."""


class DeviceEnvs(NamedTuple):
    """All envs of a shard between two env steps: physics and `EnvState` [S, ...]."""

    physics: MjxRow
    state: EnvState


class DeviceBatch:
    """Pure functions that begin and step the envs of a shard.

    Args:
        env: the task with its model.
        physics: the physics of one env.
        seed: seed of all random numbers of these envs.
    """

    def __init__(self, env: Env, physics: MjxEnv, seed: int) -> None:
        self.env, self._physics = env, physics
        self._seed_key = jax.random.key(seed)

    def begin(self, envs: DeviceEnvs, env_ids: jax.Array, curriculum: Any) -> DeviceEnvs:
        """The next episode of every env; totals begin anew."""
        envs = self._restart(envs, env_ids, jnp.ones(env_ids.shape, bool), curriculum)
        return self.clear_totals(envs)

    def with_random_ages(self, envs: DeviceEnvs, env_ids: jax.Array) -> DeviceEnvs:
        """As if the episodes had begun a while ago."""
        age = jax.vmap(self.env.random_age, in_axes=(None, 0))(self._seed_key, env_ids)
        return envs._replace(state=envs.state._replace(age=age))

    def clear_totals(self, envs: DeviceEnvs) -> DeviceEnvs:
        """The envs with no step and no ended episode counted."""
        zeros = jnp.zeros_like(envs.state.step_totals)
        return envs._replace(state=envs.state._replace(step_totals=zeros, ended_totals=zeros))

    def keys(self, stream: int, env_ids: jax.Array, step: jax.Array) -> jax.Array:
        """Random keys of a stream [S] at one env step."""
        return jax.vmap(stream_key, in_axes=(None, None, 0, None))(self._seed_key, stream, env_ids, step)

    def step(
        self, envs: DeviceEnvs, env_ids: jax.Array, step: jax.Array, action: jax.Array, curriculum: Any
    ) -> tuple[DeviceEnvs, Outcome]:
        """One env step of every env: physics, `advance`, restart of the ended ones.

        Args:
            env_ids: numbers of the envs [S].
            step: env steps before this one, which count the random numbers.
            action: actions [S, A].
        """
        controls = jax.vmap(self.env.control)(envs.state, action)
        physics, is_unstable = jax.vmap(self._physics.step)(envs.physics, controls)
        advance_keys, obs_keys = self.keys(ADVANCE, env_ids, step), self.keys(OBSERVATION, env_ids, step)
        advance = jax.vmap(self.env.advance, in_axes=(0, 0, 0, 0, 0, 0, None))
        state, outcome = advance(envs.state, physics.fields, is_unstable, action, advance_keys, obs_keys, curriculum)
        ended = outcome.terminated + outcome.truncated > 0
        return self._restart(DeviceEnvs(physics, state), env_ids, ended, curriculum), outcome

    def _restart(self, envs: DeviceEnvs, env_ids: jax.Array, ended: jax.Array, curriculum: Any) -> DeviceEnvs:
        """The next episode of the envs `ended` [S]; a block of them at a time, so that few cost little."""
        num_envs = len(env_ids)
        size = min(RESTART_SIZE, num_envs)

        def restart_some(left_envs: tuple[jax.Array, DeviceEnvs]) -> tuple[jax.Array, DeviceEnvs]:
            left, envs = left_envs
            index = jnp.nonzero(left, size=size, fill_value=num_envs)[0]  # num_envs: no env, dropped when written
            first = self._first(envs, jnp.minimum(index, num_envs - 1), env_ids, curriculum)
            envs = jax.tree.map(lambda old, new: old.at[index].set(new, mode="drop"), envs, first)
            return left.at[index].set(False, mode="drop"), envs

        return jax.lax.while_loop(lambda left_envs: left_envs[0].any(), restart_some, (ended, envs))[1]

    def _first(self, envs: DeviceEnvs, index: jax.Array, env_ids: jax.Array, curriculum: Any) -> DeviceEnvs:
        """The first states of the next episodes of the envs `index` [K]; the rollout's totals stay."""
        ids, old = env_ids[index], jax.tree.map(lambda x: x[index], envs.state)
        episode = old.episode + 1
        begin = jax.vmap(self.env.begin, in_axes=(None, 0, 0, None))
        qpos, qvel, randomised, task_state = begin(self._seed_key, ids, episode, curriculum)
        physics = jax.vmap(self._physics.reset)(qpos, qvel, randomised)
        first_state = jax.vmap(self.env.first_state, in_axes=(None, 0, 0, 0, 0))
        first = first_state(self._seed_key, ids, episode, task_state, physics.fields)
        return DeviceEnvs(physics, first._replace(ended_totals=old.ended_totals, step_totals=old.step_totals))
