from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy import stats

from unilab.envs.batch import Batch
from unilab.envs.env import Env
from unilab.envs.physics.base import PhysicsRows
from unilab.envs.registry import TASKS, find_task, task_source

SUITE = [name for name in TASKS if name.endswith("-v5")]
STEPS = 2000
FAR = 1000.0  # m
# Gymnasium's name of each reward term in `info`; it has none for the constant.
TERMS = {
    "forward": "reward_forward", "ctrl": "reward_ctrl", "survive": "reward_survive", "contact": "reward_contact",
    "dist": "reward_dist", "near": "reward_near", "distance": "distance_penalty", "velocity": "velocity_penalty",
    "height": "reward_linup", "impact": "reward_impact",
}  # fmt: skip

FIXED = {"Reacher-v5", "Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"}  # they cannot go away


class Single:
    """One env of ours, stepped with actions from outside, that can be put into any state."""

    def __init__(self, name: str) -> None:
        self.env = Env(find_task(name)())
        self.task = self.env.task
        self.batch = Batch(self.env, 1, 0)
        physics = self.batch.physics
        arrays = [np.zeros((1, n)) for n in (physics.state_size, physics.model_size, physics.last_size)]
        rows = PhysicsRows(*arrays, np.zeros((1, physics.field_size), np.float32))
        physics.attach(rows)
        self.physics, self.rows = physics, rows
        self._advance = jax.jit(self.task.advance)
        self._observe = jax.jit(self.task.observe)
        self._key = jax.random.key(0)

    def reset(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        self.physics.reset(np.array([0]), qpos[None], qvel[None], {})
        self.state = self.task.first_state()
        return np.asarray(self._observe(self.state, self._view(), self._key)["actor"])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, dict[str, float], bool]:
        control = {name: np.asarray(x)[None] for name, x in self.task.control(self.state, jnp.asarray(action)).items()}
        assert not self.physics.step(control).any()
        self.state, terms, terminated, _ = self._advance(self.state, self._view(), action, self._key, {})
        obs = np.asarray(self._observe(self.state, self._view(), self._key)["actor"])
        return obs, {name: float(self.task.rewards[name] * value) for name, value in terms.items()}, bool(terminated)

    def part(self, name: str) -> np.ndarray:
        return self.rows.state[0, self.physics.columns(name)]

    def _view(self) -> Any:
        return self.env.physics(jnp.asarray(self.rows.fields[0]))


def close(ours: Any, theirs: Any, scale: float = 1.0) -> None:
    """Equal to float32 rounding of the largest number that went into it."""
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("name", SUITE)
def test_gymnasium_parity(name: str, far: bool) -> None:
    """2,000 random actions through resets: the same bits of qpos and qvel as Gymnasium's own env, and the same
    observations, rewards, terms and terminations to float32 rounding, also a kilometre from the origin."""
    theirs = gymnasium.make(name).unwrapped
    ours = Single(name)
    rng = np.random.default_rng(0)
    limit = ours.task.episode_steps
    episodes, age = 0, limit
    for _ in range(STEPS):
        if age == limit:
            episodes, age = episodes + 1, 0
            theirs.reset(seed=episodes)
            qpos, qvel = theirs.data.qpos.copy(), theirs.data.qvel.copy()
            if far and name not in FIXED:
                qpos[0] += FAR
            mujoco.mj_resetData(theirs.model, theirs.data)
            theirs.set_state(qpos, qvel)
            close(ours.reset(qpos, qvel), theirs._get_obs(), np.abs(theirs._get_obs()).max())
        action = rng.uniform(theirs.action_space.low, theirs.action_space.high).astype(np.float32)
        their_obs, reward, their_end, _, info = theirs.step(action)
        obs, terms, end = ours.step(action)
        age += 1
        assert ours.part("qpos").tobytes() == theirs.data.qpos.tobytes()
        assert ours.part("qvel").tobytes() == theirs.data.qvel.tobytes()
        assert end == their_end
        close(obs, their_obs, max(1.0, np.abs(their_obs).max()))
        scale = max(1.0, *map(abs, terms.values()))
        close(sum(terms.values()), reward, scale)
        for term, value in terms.items():
            if term in TERMS and TERMS[term] in info:
                close(value, info[TERMS[term]], scale)
        if end:
            age = limit
    assert episodes > 1


@pytest.mark.parametrize("name", SUITE)
def test_gymnasium_parity_of_spaces_and_limits(name: str) -> None:
    """Sizes of observation and action, bounds of actions, time step and time limit are Gymnasium's."""
    theirs, task = gymnasium.make(name), find_task(name)()
    env = Env(task)
    assert env.obs_sizes["actor"] == theirs.observation_space.shape[0]
    low, high = task.action_bounds(env.model)
    np.testing.assert_array_equal(low, theirs.action_space.low)
    np.testing.assert_array_equal(high, theirs.action_space.high)
    assert task.control_dt == pytest.approx(theirs.unwrapped.dt)
    assert task.episode_steps == theirs.spec.max_episode_steps
    assert task_source(type(task)) == name


@pytest.mark.parametrize("name", SUITE)
def test_gymnasium_parity_of_first_states(name: str) -> None:
    """First states are drawn anew for every episode, from the same distribution as Gymnasium's, entry by entry."""
    theirs, task = gymnasium.make(name).unwrapped, find_task(name)()
    count = 400
    keys = jax.random.split(jax.random.key(1), count)
    qpos, qvel, _ = jax.vmap(task.reset, in_axes=(0, None, None))(keys, {}, {})
    ours = np.concatenate([qpos, qvel], axis=1)
    their = []
    for seed in range(count):
        theirs.reset(seed=seed)
        their.append(theirs.state_vector())
    their_states = np.array(their)
    assert len(np.unique(ours, axis=0)) == count
    for entry in range(ours.shape[1]):
        a, b = ours[:, entry], their_states[:, entry]
        if np.ptp(b) < 1e-9:
            np.testing.assert_allclose(a, b, atol=1e-6)
        else:
            assert stats.ks_2samp(a, b).pvalue > 1e-4, f"entry {entry}"
