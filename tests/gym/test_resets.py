from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from tiny import Slider

from unilab.gym.env import UnilabEnv
from unilab.gym.vector import UnilabVectorEnv


@pytest.mark.process
def test_envs_without_a_seed_of_their_own_get_the_constructors() -> None:
    """In the first reset, an env whose seed is None begins as env i of the constructor's seed, whatever the workers."""
    with UnilabVectorEnv(Slider(), 4, seed=7) as envs:
        expected, _ = envs.reset()
    with UnilabVectorEnv(Slider(), 4, num_workers=2, seed=7) as envs:
        obs, _ = envs.reset(seed=[None, 100, None, None])
        np.testing.assert_array_equal(obs[[0, 2, 3]], expected[[0, 2, 3]])
        assert not np.array_equal(obs[1], expected[1])
        again, _ = envs.reset(seed=[None] * 4)  # now they go on with their next episodes
        assert not (again == obs).all(axis=1).any()


def test_an_ended_env_says_to_reset() -> None:
    """The error of a step after the end names a remedy that a single env has."""
    env = UnilabEnv(dataclasses.replace(Slider(), episode_s=0.04), seed=0, max_episode_steps=2)
    with pytest.raises(ResetNeeded, match=r"step\(\) before reset\(\)"):
        env.step(np.zeros(1))
    env.reset()
    env.step(np.zeros(1))
    *_, truncated, _ = env.step(np.zeros(1))
    assert truncated
    with pytest.raises(ResetNeeded, match=r"the episode has ended; call reset\(\) first"):
        env.step(np.zeros(1))
    env.close()


def test_workers_cannot_step_on_the_device() -> None:
    """Physics on JAX's device takes no workers, which only have the CPU."""
    with pytest.raises(ValueError, match="num_workers is 2; allowed: 0, since mjx steps on JAX's device"):
        UnilabVectorEnv(Slider(), 4, num_workers=2, physics="mjx")


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_process_is_told_not_to(capfd: pytest.CaptureFixture[str]) -> None:
    """Gymnasium's asynchronous vector env forks where jax runs: an error that names the remedies, not a hang."""
    with pytest.raises((EOFError, ConnectionError)):
        gymnasium.make_vec("unilab/CartpoleSwingup-v0", num_envs=2, vectorization_mode="async")
    assert "use num_workers= instead" in capfd.readouterr().err
