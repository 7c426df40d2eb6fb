"""Replay: the last env steps of all envs, as a pytree on the learner's device.

Observations are stored once: the successor of a step is the observation of the next row. Only where a time limit ended
an episode is the true successor another one; it lies aside, in `late_obs`. A terminated step needs none, since nothing
follows it. Episodes of one env reach their time limit at least `episode_steps` apart, so the place aside suffices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from unilab.algos.networks import Involution

TERMINATED, TRUNCATED, VALID = 1, 2, 4


class Replay(NamedTuple):
    """A ring of L rows of N envs.

    Attributes:
        obs: observations by group [L, N, n].
        action: actions [L, N, A].
        reward: rewards [L, N].
        flags: TERMINATED, TRUNCATED and VALID (the step counts) as bits [L, N], uint8.
        late_obs: true successors of the truncated steps, by group [K, N, n].
        late_row: number of the row that each of them belongs to [K, N], int32; -1 while unused.
        late_count: truncated steps of each env so far [N], int32.
        head_obs: successors of the newest row, by group [N, n].
        num_rows: rows written so far, int32; row r lies at r % L.
    """

    obs: dict[str, jax.Array]
    action: jax.Array
    reward: jax.Array
    flags: jax.Array
    late_obs: dict[str, jax.Array]
    late_row: jax.Array
    late_count: jax.Array
    head_obs: dict[str, jax.Array]
    num_rows: jax.Array


class Batch(NamedTuple):
    """Sampled steps, over `n_step` of them each.

    Attributes:
        obs, next_obs: observations by group [B, n]: of the first step, and what followed the last.
        action: action of the first step [B, A].
        reward: discounted sum of the rewards [B].
        discount: weight of the value of `next_obs` [B]; 0 where the MDP ended.
        weight: 1, or 0 where a step does not count [B].
    """

    obs: dict[str, jax.Array]
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_obs: dict[str, jax.Array]
    weight: jax.Array


def make_replay(
    obs_sizes: Mapping[str, int], action_size: int, num_envs: int, num_rows: int, episode_steps: int
) -> Replay:
    """An empty replay of `num_rows` rows of `num_envs` envs, whose time limit is `episode_steps`."""
    num_late = math.ceil(num_rows / episode_steps) + 1

    def zeros(*leading: int) -> dict[str, jax.Array]:
        return {group: jnp.zeros((*leading, size)) for group, size in obs_sizes.items()}

    return Replay(
        obs=zeros(num_rows, num_envs),
        action=jnp.zeros((num_rows, num_envs, action_size)),
        reward=jnp.zeros((num_rows, num_envs)),
        flags=jnp.zeros((num_rows, num_envs), jnp.uint8),
        late_obs=zeros(num_late, num_envs),
        late_row=jnp.full((num_late, num_envs), -1, jnp.int32),
        late_count=jnp.zeros(num_envs, jnp.int32),
        head_obs=zeros(num_envs),
        num_rows=jnp.int32(0),
    )


def add_rollout(replay: Replay, rollout: Mapping[str, jax.Array]) -> Replay:
    """Append the T rows of a rollout of fields [T, N, ...]; L must be a multiple of T."""
    rows, steps = replay.reward.shape[0], rollout["reward"].shape[0]
    assert rows % steps == 0, f"{rows} rows of replay are no multiple of {steps} rows of a rollout"
    start = replay.num_rows % rows
    truncated = rollout["truncated"] > 0
    flags = (
        TERMINATED * (rollout["terminated"] > 0).astype(jnp.uint8)
        + TRUNCATED * truncated.astype(jnp.uint8)
        + VALID * (rollout["weight"] > 0).astype(jnp.uint8)
    )
    late_obs, late_row, late_count = replay.late_obs, replay.late_row, replay.late_count
    envs = jnp.arange(late_count.shape[0])
    for t in range(steps):
        place = jnp.where(truncated[t], late_count % late_row.shape[0], late_row.shape[0])  # out of bounds: dropped
        final = {group: rollout[f"final_obs/{group}"][t] for group in late_obs}
        late_obs = {group: late_obs[group].at[place, envs].set(final[group], mode="drop") for group in late_obs}
        late_row = late_row.at[place, envs].set(replay.num_rows + t, mode="drop")
        late_count = late_count + truncated[t]

    def write(ring: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(ring, new, start, axis=0)

    return Replay(
        obs={group: write(ring, rollout[f"obs/{group}"]) for group, ring in replay.obs.items()},
        action=write(replay.action, rollout["action"]),
        reward=write(replay.reward, rollout["reward"]),
        flags=write(replay.flags, flags),
        late_obs=late_obs,
        late_row=late_row,
        late_count=late_count,
        head_obs={group: rollout[f"final_obs/{group}"][-1] for group in replay.head_obs},
        num_rows=replay.num_rows + steps,
    )


def num_steps(replay: Replay) -> jax.Array:
    """Env steps that can be sampled, int32."""
    rows, num_envs = replay.reward.shape
    return jnp.minimum(replay.num_rows, rows) * num_envs


def sample(replay: Replay, key: jax.Array, batch_size: int, n_step: int, discount: float) -> Batch:
    """Steps drawn evenly from all that are kept. Sums of rewards stop at an episode's end and at the newest row."""
    rows, num_envs = replay.reward.shape
    row_key, env_key = jax.random.split(key)
    age = jax.random.randint(row_key, (batch_size,), 0, jnp.minimum(replay.num_rows, rows))
    env = jax.random.randint(env_key, (batch_size,), 0, num_envs)
    return _steps_from(replay, replay.num_rows - 1 - age, env, n_step, discount)


def with_mirror_images(batch: Batch, mirror: Mapping[str, Involution]) -> Batch:
    """A batch [B], then its mirror image [B]."""

    def both(x: jax.Array, name: str) -> jax.Array:
        return jnp.concatenate([x, mirror[name].sign * x[:, mirror[name].perm]])

    def twice(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, x])

    return Batch(
        obs={group: both(x, group) for group, x in batch.obs.items()},
        action=both(batch.action, "action"),
        reward=twice(batch.reward),
        discount=twice(batch.discount),
        next_obs={group: both(x, group) for group, x in batch.next_obs.items()},
        weight=twice(batch.weight),
    )


def _steps_from(replay: Replay, first: jax.Array, env: jax.Array, n_step: int, discount: float) -> Batch:
    """The batch that begins at rows `first` [B] of envs `env` [B]."""
    rows = replay.reward.shape[0]
    is_going = jnp.ones(first.shape, bool)
    weight, reward, factor, last = jnp.ones(first.shape), jnp.zeros(first.shape), jnp.ones(first.shape), first
    for i in range(n_step):
        row = first + i
        is_going &= row < replay.num_rows
        flags = replay.flags[row % rows, env]
        reward += jnp.where(is_going, factor * replay.reward[row % rows, env], 0.0)
        weight *= jnp.where(is_going, (flags & VALID) > 0, 1.0)
        factor = jnp.where(is_going, factor * discount, factor)
        last = jnp.where(is_going, row, last)
        is_going &= (flags & (TERMINATED | TRUNCATED)) == 0
    last_flags = replay.flags[last % rows, env]
    late = jnp.argmax(replay.late_row[:, env] == last, axis=0)
    is_late, is_newest = (last_flags & TRUNCATED) > 0, last == replay.num_rows - 1

    def successor(group: str) -> jax.Array:
        following = replay.obs[group][(last + 1) % rows, env]
        following = jnp.where(is_newest[:, None], replay.head_obs[group][env], following)
        return jnp.where(is_late[:, None], replay.late_obs[group][late, env], following)

    return Batch(
        obs={group: ring[first % rows, env] for group, ring in replay.obs.items()},
        action=replay.action[first % rows, env],
        reward=reward,
        discount=jnp.where((last_flags & TERMINATED) > 0, 0.0, factor),
        next_obs={group: successor(group) for group in replay.obs},
        weight=weight,
    )
