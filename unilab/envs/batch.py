"""The envs of one shard on one physics back end.

Everything that an env needs between two jobs is its row in `BatchRows`; a `Batch` only works on rows, in place. Two
jitted calls per control step serve the whole shard: the caller's policy (with `control`), and `advance` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.envs.env import ACTION, ADVANCE, OBSERVATION, Env, EnvState, Outcome, stream_key
from unilab.envs.physics.base import PhysicsRows
from unilab.envs.physics.registry import DEFAULT, make_physics

RESTART_SIZE = 16
"""Envs that are restarted in one jitted call; a fixed number, since bits can depend on the size of a batch."""


@dataclass(frozen=True)
class BatchRows:
    """Rows of a shard's envs: the physics' arrays and the packed `EnvState`s [S, words]."""

    physics: PhysicsRows
    words: np.ndarray


class Batch:
    """Steps and restarts the envs of a shard.

    Args:
        env: the task with its model.
        shard_size: number of envs S.
        seed: seed of all random numbers of these envs.
        physics: name of the back end.

    Raises:
        ValueError: there is no such back end, it is not installed, or it cannot do what the task demands.
    """

    def __init__(self, env: Env, shard_size: int, seed: int, physics: str = DEFAULT) -> None:
        self.env = env
        self.shard_size = shard_size
        self.physics = make_physics(physics, env.demands, shard_size)
        self._seed_key = jax.random.key(seed)
        self._restart_size = min(RESTART_SIZE, shard_size)
        # Compiled for this batch and freed with it: a jitted method of the class would keep every batch for ever.
        self._unpack, self._pack = jax.jit(self._unpack_all), jax.jit(self._pack_all)
        self._begin, self._first = jax.jit(self._begin_all), jax.jit(self._first_of)
        self._set_ages, self._advance = jax.jit(self._set_ages_of), jax.jit(self._advance_all)
        self._draw_keys = jax.jit(self._draw_all_keys, static_argnums=2)

    def attach(self, rows: BatchRows, first_env: int, curriculum: Any) -> None:
        """Work on `rows`, which belong to the envs `first_env`, `first_env + 1`, ..."""
        self.rows = rows
        self.physics.attach(rows.physics)
        self._state = self._unpack(np.array(rows.words))
        self._env_ids = np.arange(first_env, first_env + self.shard_size, dtype=np.int32)
        self.curriculum = curriculum

    def begin(self, random_ages: bool) -> None:
        """Start the first episode of every env; with `random_ages`, as if it had begun a while ago."""
        self._state = self._unpack(np.zeros_like(self.rows.words))
        self._draw_episodes()
        self._restart(np.arange(self.shard_size))
        if random_ages:
            self._state = self._set_ages(self._state, self._env_ids)

    def open_rollout(self, first_step: int, num_steps: int) -> jax.Array:
        """Prepare `num_steps` env steps, counted from `first_step`; returns the keys for action noise [T, S]."""
        zeros = jnp.zeros_like(self._state.step_totals)
        self._state = self._state._replace(step_totals=zeros, ended_totals=zeros)
        self._draw_episodes()
        *self._keys, action_keys = self._draw_keys(self._env_ids, np.int32(first_step), num_steps)
        return action_keys

    @property
    def state(self) -> EnvState:
        """States of the envs [S, ...], to be handed to the jitted policy."""
        return self._state

    def keys(self, t: int, row: int) -> tuple[jax.Array, jax.Array]:
        """The random keys of `advance` and of the observation for one env at one step of the rollout."""
        advance_keys, obs_keys = self._keys
        return advance_keys[t, row], obs_keys[t, row]

    def step(self, t: int, action: Any, controls: dict[str, np.ndarray]) -> Outcome:
        """One env step of every env: physics, `advance`, restart of the ended ones. Returns NumPy arrays [S, ...]."""
        unstable = self.physics.step(controls)
        self._state, outcome = self._advance(
            self._state, self.rows.physics.fields, unstable, action, *self._keys, np.int32(t), self.curriculum
        )
        outcome = jax.tree.map(np.asarray, outcome)
        ended = np.flatnonzero(outcome.terminated + outcome.truncated)
        if ended.size:
            self._restart(ended)
        return outcome

    def close_rollout(self) -> tuple[np.ndarray, np.ndarray]:
        """Write the states back into the rows; returns (step totals, totals of ended episodes) [S, columns]."""
        self.rows.words[:] = self._pack(self._state)
        return np.asarray(self._state.step_totals), self.ended_totals()

    def ended_totals(self) -> np.ndarray:
        """Totals [S, columns] of the episodes that have ended since the rollout was opened."""
        return np.asarray(self._state.ended_totals)

    def _draw_episodes(self) -> None:
        """How the next episode of every env begins: one call for all costs less than one for each that ends."""
        episodes = np.asarray(self._state.episode) + 1
        self._episodes = jax.tree.map(np.asarray, self._begin(self._env_ids, episodes, self.curriculum))
        self._is_drawn = np.ones(self.shard_size, bool)

    def _restart(self, index: np.ndarray) -> None:
        if not self._is_drawn[index].all():  # one has ended twice since the draw
            self._draw_episodes()
        self._is_drawn[index] = False
        qpos, qvel, randomised, task_state = jax.tree.map(lambda x: x[index], self._episodes)
        self.physics.reset(index, qpos, qvel, randomised)
        size, fields = self._restart_size, self.rows.physics.fields
        for start in range(0, len(index), size):
            rows = np.resize(np.arange(start, min(start + size, len(index))), size)  # the last block repeats some
            states = jax.tree.map(lambda x, rows=rows: x[rows], task_state)
            self._state = self._first(self._state, index[rows], self._env_ids[index[rows]], states, fields[index[rows]])

    # --- pure functions of a batch, compiled once per shape --------------------------------------------------------

    def _unpack_all(self, words: jax.Array) -> EnvState:
        return jax.vmap(self.env.state_packing.unpack)(words)

    def _pack_all(self, state: EnvState) -> jax.Array:
        return jax.vmap(self.env.state_packing.pack)(state)

    def _begin_all(self, env_ids: jax.Array, episode: jax.Array, curriculum: Any) -> Any:
        return jax.vmap(self.env.begin, in_axes=(None, 0, 0, None))(self._seed_key, env_ids, episode, curriculum)

    def _first_of(
        self, state: EnvState, index: jax.Array, env_ids: jax.Array, task_state: Any, fields: jax.Array
    ) -> EnvState:
        """States with those of the envs `index` replaced by the first of a new episode; the rollout's totals stay."""
        first_state = jax.vmap(self.env.first_state, in_axes=(None, 0, 0, 0, 0))
        first = first_state(self._seed_key, env_ids, state.episode[index] + 1, task_state, fields)
        new = jax.tree.map(lambda old, value: old.at[index].set(value), state, first)
        return new._replace(ended_totals=state.ended_totals, step_totals=state.step_totals)

    def _set_ages_of(self, state: EnvState, env_ids: jax.Array) -> EnvState:
        age = jax.vmap(self.env.random_age, in_axes=(None, 0))(self._seed_key, env_ids)
        return state._replace(age=age)

    def _draw_all_keys(self, env_ids: jax.Array, first_step: jax.Array, num_steps: int) -> tuple[jax.Array, ...]:
        """Keys [T, S] of the streams that a control step draws from."""
        steps = first_step + jnp.arange(num_steps, dtype=jnp.int32)
        per_env = jax.vmap(stream_key, in_axes=(None, None, 0, None))
        per_step = jax.vmap(per_env, in_axes=(None, None, None, 0))
        return tuple(per_step(self._seed_key, stream, env_ids, steps) for stream in (ADVANCE, OBSERVATION, ACTION))

    def _advance_all(
        self, state: EnvState, fields: jax.Array, unstable: jax.Array, action: jax.Array,
        advance_keys: jax.Array, obs_keys: jax.Array, t: jax.Array, curriculum: Any,
    ) -> tuple[EnvState, Outcome]:  # fmt: skip
        advance = jax.vmap(self.env.advance, in_axes=(0, 0, 0, 0, 0, 0, None))
        return advance(state, fields, unstable, action, advance_keys[t], obs_keys[t], curriculum)
