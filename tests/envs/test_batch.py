from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import mujoco
import numpy as np
import pytest
from tiny import FREE, Rollouts, Slider

SIZES = {"num_envs": 4, "shard_size": 4, "algo.rollout_steps": 30, "steps": 1000}
EXACT = ("weight", "terminated", "truncated")


@dataclass(frozen=True)
class Nominal(Slider):
    """A slider whose mass is the nominal one, so that upstream MuJoCo can follow it from its observations."""

    def randomise(self, key: jax.Array, nominal: Any) -> dict[str, jax.Array]:
        return {}


@pytest.fixture(scope="module")
def rollout() -> dict[str, np.ndarray]:
    return Rollouts(Nominal(episode_s=0.16, limit=0.45), **SIZES).collect()[0]


def test_n_envs_equal_n_single_envs() -> None:
    """A shard of 4 envs and 4 shards of one give the same rollouts, up to the rounding of other batch sizes."""
    task = Slider(episode_s=0.2, limit=0.45)
    together, alone = (Rollouts(task, **SIZES | {"shard_size": size}) for size in (4, 1))
    for _ in range(2):
        (one, *totals), (other, *other_totals) = together.collect(), alone.collect()
        assert one["terminated"].any()
        assert one["truncated"].any()
        for name in one:
            tolerance = 0.0 if name in EXACT else 1e-5
            np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)
        for mine, theirs in zip(totals, other_totals, strict=True):
            np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=1e-4, atol=1e-4)


def test_every_step_is_upstreams_and_final_obs_is_its_true_successor(rollout: dict[str, np.ndarray]) -> None:
    """final_obs is what mj_step makes of observation, wind and action, where the episode ended and where it did not."""
    model = Nominal().model().compile()
    data = mujoco.MjData(model)
    ended = rollout["terminated"] + rollout["truncated"] > 0
    assert ended.any()
    for t, env in np.ndindex(*ended.shape):
        x, v, wind = rollout["obs/critic"][t, env]
        mujoco.mj_resetData(model, data)
        data.qpos[0], data.qvel[0], data.ctrl[0], data.xfrc_applied[1, 0] = x, v, rollout["action"][t, env, 0], wind
        mujoco.mj_step(model, data, 2)
        expected = [data.qpos[0], data.qvel[0]]
        np.testing.assert_allclose(rollout["final_obs/critic"][t, env, :2], expected, rtol=1e-5, atol=1e-6)
        assert rollout["terminated"][t, env] == (abs(np.float32(data.qpos[0])) > np.float32(0.45))


def test_restart_happens_in_the_same_step(rollout: dict[str, np.ndarray]) -> None:
    """The row after an ended step starts from the reset; every other row starts where the last one led."""
    ended = (rollout["terminated"] + rollout["truncated"] > 0)[:-1]
    following, successor = rollout["obs/critic"][1:], rollout["final_obs/critic"][:-1]
    np.testing.assert_array_equal(following[~ended], successor[~ended])
    assert (following[ended] != successor[ended]).any(axis=-1).all()
    assert (np.abs(following[ended, :2]) <= 0.5).all()
    assert not following[ended, 2].any()  # the wind of a reset


def test_first_episodes_begin_at_random_ages() -> None:
    """The time limits of first episodes spread over a whole episode; later ones last exactly the limit."""
    rollouts = Rollouts(Slider(episode_s=0.6, **FREE), **SIZES | {"num_envs": 64, "shard_size": 32})
    first, second = (rollouts.collect()[0]["truncated"] for _ in range(2))
    assert (first.sum(axis=0) == 1).all()
    np.testing.assert_array_equal(first, second)
    counts = first.sum(axis=1)
    assert np.count_nonzero(counts) > 20  # 64 uniform draws of 30 leave fewer than 10 out
    assert counts.max() < 10


def test_an_episodes_numbers_depend_on_seed_env_and_episode_alone() -> None:
    """The k-th episode of an env begins the same whenever it begins, and unlike those of other envs and seeds."""

    def starts(episode_s: float, seed: int = 0) -> list[list[tuple[float, ...]]]:
        rollout, *_ = Rollouts(Slider(episode_s=episode_s, **FREE), seed=seed, **SIZES).collect()
        ended = rollout["truncated"][:-1] > 0
        return [[tuple(row) for row in rollout["obs/critic"][1:, env][ended[:, env]]] for env in range(4)]

    often, seldom, other = starts(0.1), starts(0.2), starts(0.2, seed=1)
    for fast, slow, strange in zip(often, seldom, other, strict=True):
        assert len(fast) > len(slow) >= 2
        assert fast[: len(slow)] == slow
        assert not set(strange) & set(fast)
    every = [start for env in often for start in env]
    assert len(set(every)) == len(every)
