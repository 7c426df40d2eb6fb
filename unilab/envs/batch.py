"""The envs of one shard on one physics back end.

Everything that an env needs between two jobs is its row in `BatchRows`; a `Batch` only works on rows, in place. Two
jitted calls per control step serve the whole shard: the caller's policy (with `control`), and `advance` here.

A batch is driven in one of two ways. In rollouts (`open_rollout`, `step`, ..., `close_rollout`) random keys are drawn
ahead, and ended envs restart in the same step. Alone (`reseed`, `restart`, `step_alone`) each env counts its own steps,
and the caller says who restarts and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.envs.env import ACTION, ADVANCE, OBSERVATION, Env, EnvState, Outcome, stream_key
from unilab.envs.physics.base import NOBODY, PhysicsRows
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
        self._seed_keys = _seed_keys(np.full(shard_size, seed, np.uint64))
        self._steps = np.zeros(shard_size, np.int32)
        self._is_drawn = np.zeros(shard_size, bool)
        self._restart_size = min(RESTART_SIZE, shard_size)
        # Compiled for this batch and freed with it: a jitted method of the class would keep every batch for ever.
        self._unpack, self._pack = jax.jit(self._unpack_all), jax.jit(self._pack_all)
        self._begin, self._first = jax.jit(self._begin_all), jax.jit(self._first_of)
        self._set_ages, self._advance = jax.jit(self._set_ages_of), jax.jit(self._advance_all)
        self._draw_keys = jax.jit(self._draw_all_keys, static_argnums=3)
        self._advance_alone = jax.jit(self._advance_all_alone)

    def attach(self, rows: BatchRows, first_env: int, curriculum: Any) -> None:
        """Work on `rows`, which belong to the envs `first_env`, `first_env + 1`, ..."""
        self.rows = rows
        self.physics.attach(rows.physics)
        self._state = self._unpack(np.array(rows.words))
        self.env_ids = np.arange(first_env, first_env + self.shard_size, dtype=np.int32)
        self.curriculum = curriculum

    def begin(self, random_ages: bool) -> None:
        """Start the first episode of every env; with `random_ages`, as if it had begun a while ago."""
        self._state = self._unpack(np.zeros_like(self.rows.words))
        self._draw_episodes()
        self.restart(np.arange(self.shard_size))
        if random_ages:
            self._state = self._set_ages(self._state, self._seed_keys, self.env_ids)

    def reseed(self, index: np.ndarray, seeds: np.ndarray) -> None:
        """Make the envs `index` [K] the first envs of these seeds [K], uint64; their next restart is episode 1."""
        self._seed_keys = self._seed_keys.at[index].set(_seed_keys(seeds))
        self.env_ids[index] = self._steps[index] = 0
        self._is_drawn[index] = False
        self._state = self._state._replace(episode=self._state.episode.at[index].set(0))

    def open_rollout(self, first_step: int, num_steps: int) -> jax.Array:
        """Prepare `num_steps` env steps, counted from `first_step`; returns the keys for action noise [T, S]."""
        zeros = jnp.zeros_like(self._state.step_totals)
        self._state = self._state._replace(step_totals=zeros, ended_totals=zeros)
        self._draw_episodes()
        *self._keys, action_keys = self._draw_keys(self._seed_keys, self.env_ids, np.int32(first_step), num_steps)
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
        """Env step `t` of a rollout of every env: physics, `advance`, restart of the ended ones.

        Returns NumPy arrays [S, ...].
        """
        outcome = self._move(controls, NOBODY, self._advance, action, *self._keys, np.int32(t))
        self.restart(np.flatnonzero(outcome.terminated + outcome.truncated))
        return outcome

    def step_alone(self, action: Any, controls: dict[str, np.ndarray], resting: np.ndarray) -> Outcome:
        """One env step of every env, outside a rollout; nobody is restarted, and `step_totals` are those of the step.

        The envs `resting` [K] do not take part: what becomes of them is undefined until they are restarted.
        """
        outcome = self._move(controls, resting, self._advance_alone, action, self._seed_keys, self.env_ids, self._steps)
        self._steps += 1
        self._steps[resting] -= 1
        return outcome

    def _move(self, controls: dict[str, np.ndarray], resting: np.ndarray, advance: Any, *args: Any) -> Outcome:
        unstable = self.physics.step(controls, resting)
        fields = self.rows.physics.fields
        self._state, outcome = advance(self._state, fields, unstable, *args, self.curriculum)
        return jax.tree.map(np.asarray, outcome)

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
        drawn = self._begin(self._seed_keys, self.env_ids, episodes, self.curriculum)
        self._episodes = jax.tree.map(np.asarray, drawn)
        self._is_drawn[:] = True

    def restart(self, index: np.ndarray) -> None:
        """Begin the next episode of the envs `index` [K]; totals stay as they are."""
        if not index.size:
            return
        if not self._is_drawn[index].all():  # one has ended twice since the draw
            self._draw_episodes()
        self._is_drawn[index] = False
        qpos, qvel, randomised, task_state = jax.tree.map(lambda x: x[index], self._episodes)
        self.physics.reset(index, qpos, qvel, randomised)
        size, fields = self._restart_size, self.rows.physics.fields
        for start in range(0, len(index), size):
            rows = np.resize(np.arange(start, min(start + size, len(index))), size)  # the last block repeats some
            states = jax.tree.map(lambda x, rows=rows: x[rows], task_state)
            envs = index[rows]
            self._state = self._first(self._state, self._seed_keys, self.env_ids, envs, states, fields[envs])

    # --- pure functions of a batch, compiled once per shape --------------------------------------------------------

    def _unpack_all(self, words: jax.Array) -> EnvState:
        return jax.vmap(self.env.state_packing.unpack)(words)

    def _pack_all(self, state: EnvState) -> jax.Array:
        return jax.vmap(self.env.state_packing.pack)(state)

    def _begin_all(self, seed_keys: jax.Array, env_ids: jax.Array, episode: jax.Array, curriculum: Any) -> Any:
        return jax.vmap(self.env.begin, in_axes=(0, 0, 0, None))(seed_keys, env_ids, episode, curriculum)

    def _first_of(
        self, state: EnvState, seed_keys: jax.Array, env_ids: jax.Array, index: jax.Array, task_state: Any,
        fields: jax.Array,
    ) -> EnvState:  # fmt: skip
        """States with those of the envs `index` replaced by the first of a new episode; the totals stay."""
        episode = state.episode[index] + 1
        first = jax.vmap(self.env.first_state)(seed_keys[index], env_ids[index], episode, task_state, fields)
        new = jax.tree.map(lambda old, value: old.at[index].set(value), state, first)
        return new._replace(ended_totals=state.ended_totals, step_totals=state.step_totals)

    def _set_ages_of(self, state: EnvState, seed_keys: jax.Array, env_ids: jax.Array) -> EnvState:
        return state._replace(age=jax.vmap(self.env.random_age)(seed_keys, env_ids))

    def _draw_all_keys(
        self, seed_keys: jax.Array, env_ids: jax.Array, first_step: jax.Array, num_steps: int
    ) -> tuple[jax.Array, ...]:
        """Keys [T, S] of the streams that a control step draws from."""
        steps = first_step + jnp.arange(num_steps, dtype=jnp.int32)
        per_env = jax.vmap(stream_key, in_axes=(0, None, 0, None))
        per_step = jax.vmap(per_env, in_axes=(None, None, None, 0))
        return tuple(per_step(seed_keys, stream, env_ids, steps) for stream in (ADVANCE, OBSERVATION, ACTION))

    def _advance_all(
        self, state: EnvState, fields: jax.Array, unstable: jax.Array, action: jax.Array,
        advance_keys: jax.Array, obs_keys: jax.Array, t: jax.Array, curriculum: Any,
    ) -> tuple[EnvState, Outcome]:  # fmt: skip
        advance = jax.vmap(self.env.advance, in_axes=(0, 0, 0, 0, 0, 0, None))
        return advance(state, fields, unstable, action, advance_keys[t], obs_keys[t], curriculum)

    def _advance_all_alone(
        self, state: EnvState, fields: jax.Array, unstable: jax.Array, action: jax.Array,
        seed_keys: jax.Array, env_ids: jax.Array, steps: jax.Array, curriculum: Any,
    ) -> tuple[EnvState, Outcome]:  # fmt: skip
        zeros = jnp.zeros_like(state.step_totals)
        state = state._replace(step_totals=zeros, ended_totals=zeros)
        per_env = jax.vmap(stream_key, in_axes=(0, None, 0, 0))
        advance_keys, obs_keys = (per_env(seed_keys, stream, env_ids, steps) for stream in (ADVANCE, OBSERVATION))
        advance = jax.vmap(self.env.advance, in_axes=(0, 0, 0, 0, 0, 0, None))
        return advance(state, fields, unstable, action, advance_keys, obs_keys, curriculum)


def _seed_keys(seeds: np.ndarray) -> jax.Array:
    """Random keys [K] of seeds [K], uint64: those that `jax.random.key` makes of seeds below 2^32."""
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], axis=-1)
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))


def batch_row_shapes(batch: Batch) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """dtype and shape of one env's row."""
    physics = batch.physics
    return {
        "state": (np.float64, (physics.state_size,)),
        "model": (np.float64, (physics.model_size,)),
        "last": (np.float64, (physics.last_size,)),
        "fields": (np.float32, (physics.field_size,)),
        "words": (np.uint32, (batch.env.state_packing.size,)),
    }


def own_rows(batch: Batch) -> BatchRows:
    """Empty rows for a batch that no bank holds."""
    shapes = batch_row_shapes(batch)
    return rows_of({name: np.zeros((batch.shard_size, *shape), dtype) for name, (dtype, shape) in shapes.items()})


def rows_of(arrays: dict[str, np.ndarray]) -> BatchRows:
    """A shard's rows from arrays named as in `batch_row_shapes`."""
    physics = PhysicsRows(arrays["state"], arrays["model"], arrays["last"], arrays["fields"])
    return BatchRows(physics, arrays["words"])
