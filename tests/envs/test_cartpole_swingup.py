from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from unilab.envs.task import ModelNames, Physics
from unilab.envs.tasks.cartpole_swingup import CartpoleSwingup

TASK = CartpoleSwingup()
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return TASK.model().compile()


@pytest.fixture(scope="module")
def reward(model: mujoco.MjModel) -> Any:
    """Rewards [B] of qpos [B, 2], qvel [B, 2], action [B, 1], as the framework adds them up."""
    names = ModelNames.of(model)

    def one(qpos: jax.Array, qvel: jax.Array, action: jax.Array) -> jax.Array:
        _, terms, terminated, _ = TASK.advance({}, Physics({"qpos": qpos, "qvel": qvel}, names), action, KEY, {})
        return sum(TASK.rewards[name] * value for name, value in terms.items()) - 1e9 * terminated

    return jax.jit(jax.vmap(one))


def dm_control_reward(qpos: np.ndarray, qvel: np.ndarray, control: np.ndarray) -> np.ndarray:
    """dm_control's suite/cartpole.py, `_get_reward(sparse=False)`, with `rewards.tolerance` written out."""
    scale = np.sqrt(-2 * np.log(0.1))  # Gaussian sigmoid with value_at_margin=0.1
    upright = (np.cos(qpos[:, 1]) + 1) / 2
    centered = (1 + np.exp(-0.5 * (qpos[:, 0] / 2 * scale) ** 2)) / 2
    quadratic = np.where(np.abs(control) < 1, 1 - control**2, 0.0)  # value_at_margin=0
    small_control = (4 + quadratic) / 5
    small_velocity = (1 + np.exp(-0.5 * (qvel[:, 1] / 5 * scale) ** 2)) / 2
    return upright * small_control * small_velocity * centered


def test_reward_is_dm_controls(reward: Any) -> None:
    """On random states and clipped controls the reward is dm_control's, which comes every 10 ms."""
    rng = np.random.default_rng(0)
    qpos = rng.uniform([-2, -7], [2, 7], (500, 2))
    qvel = rng.normal(0, 5, (500, 2))
    action = rng.uniform(-1.5, 1.5, (500, 1))
    found = reward(*(jnp.asarray(x, jnp.float32) for x in (qpos, qvel, action)))
    expected = dm_control_reward(qpos, qvel, np.clip(action[:, 0], -1, 1)) * (TASK.control_dt / 0.01)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_an_upright_episode_returns_a_thousand(model: mujoco.MjModel, reward: Any) -> None:
    """A pole that stands upright without control for a whole episode returns 1000; a hanging one next to nothing."""
    data, totals = mujoco.MjData(model), []
    for angle in (0.0, np.pi):
        mujoco.mj_resetData(model, data)
        data.qpos[1] = angle
        states = []
        for _ in range(TASK.episode_steps):
            mujoco.mj_step(model, data, round(TASK.control_dt / model.opt.timestep))
            states.append(np.concatenate([data.qpos, data.qvel]))
        x = jnp.asarray(states, jnp.float32)
        totals.append(float(reward(x[:, :2], x[:, 2:], jnp.zeros((len(x), 1))).sum()))
    assert totals[0] == pytest.approx(1000.0, abs=0.1)
    assert totals[1] == pytest.approx(0.0, abs=0.1)


def test_mirrored_states_and_actions_give_mirrored_ones(model: mujoco.MjModel, reward: Any) -> None:
    """The mirror commutes with physics and observation and leaves the reward alone."""
    mirror, names, rng = TASK.mirror(), ModelNames.of(model), np.random.default_rng(1)

    def step(qpos: np.ndarray, qvel: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = qpos, qvel
        data.ctrl[:] = TASK.control({}, jnp.asarray(action, jnp.float32))["ctrl"]
        mujoco.mj_step(model, data)
        return data.qpos.copy(), data.qvel.copy()

    def observe(qpos: np.ndarray, qvel: np.ndarray) -> jax.Array:
        fields = {"qpos": jnp.asarray(qpos, jnp.float32), "qvel": jnp.asarray(qvel, jnp.float32)}
        return TASK.observe({}, Physics(fields, names), KEY)["actor"]

    for _ in range(5):
        qpos, qvel, action = rng.uniform(-1.5, 1.5, 2), rng.uniform(-3, 3, 2), rng.uniform(-1, 1, 1)
        state, image = step(qpos, qvel, action), step(-qpos, -qvel, np.asarray(mirror["action"](action)))
        np.testing.assert_allclose(observe(*image), mirror["actor"](observe(*state)), rtol=1e-5, atol=1e-6)
        rewards = [
            reward(*(jnp.asarray(x, jnp.float32)[None] for x in (*s, sign * action)))
            for s, sign in ((state, 1), (image, -1))
        ]
        np.testing.assert_allclose(*rewards, rtol=1e-5)


def test_episodes_start_hanging_near_the_middle() -> None:
    """A reset hangs the pole down within a few hundredths, and differs from key to key."""
    qpos, qvel, _ = jax.vmap(lambda key: TASK.reset(key, {}, {}))(jax.random.split(KEY, 200))
    assert np.abs(qpos - np.array([0.0, np.pi])).max() < 0.06
    assert np.abs(qvel).max() < 0.06
    assert len(np.unique(qpos[:, 1])) > 190


def test_physics_has_dm_controls_figures(model: mujoco.MjModel) -> None:
    """Masses, damping, gear and rail are dm_control's: 1 kg and 0.1 kg, 5e-4 and 2e-6, 10, +-1.8 m."""
    assert model.body("cart").mass == pytest.approx(1.0)
    assert model.body("pole").mass == pytest.approx(0.1)
    assert model.dof_damping.tolist() == [5e-4, 2e-6]
    assert model.actuator_gear[0, 0] == 10.0
    assert model.jnt_range[0].tolist() == [-1.8, 1.8]
    assert TASK.model(fine=True).compile().opt.timestep < model.opt.timestep
