"""A third party's learners train on our vector env, unchanged. Skipped where they are not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import sb3_vec_env

NAME = "unilab/InvertedPendulum-v5"  # random actions keep it up for some 6 steps


def returns(learner: Any, envs: Any) -> float:
    from stable_baselines3.common.evaluation import evaluate_policy

    return float(np.mean(evaluate_policy(learner, envs, 16)[0]))


@pytest.mark.learning
@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("package", ["stable_baselines3", "sbx"])
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_it_learns(package: str, name: str) -> None:
    """PPO and SAC of Stable-Baselines3 and SBX keep the pole up much longer after a short training."""
    algorithms = pytest.importorskip(package)
    pytest.importorskip("torch").set_num_threads(1)  # more of them wait for each other on a busy machine
    envs = sb3_vec_env.make(NAME, num_envs=16, num_workers=2, max_episode_steps=100)
    if name == "PPO":
        learner = algorithms.PPO("MlpPolicy", envs, n_steps=64, batch_size=256, learning_rate=1e-3, seed=0)
        env_steps = 12_000
    else:
        settings = {"gradient_steps": 4, "learning_starts": 500, "learning_rate": 1e-3, "batch_size": 128}
        learner = algorithms.SAC("MlpPolicy", envs, train_freq=1, seed=0, **settings)
        env_steps = 6_000
    try:
        before = returns(learner, envs)
        learner.learn(env_steps)
        after = returns(learner, envs)
    finally:
        envs.close()
    assert after > max(50, before + 20), f"{before} before, {after} after"


def test_the_adapter_needs_same_step() -> None:
    """An env that restarts in the next step is refused, not misread."""
    import gymnasium

    envs = gymnasium.make_vec(NAME, 2)
    with pytest.raises(ValueError, match="autoreset_mode is NEXT_STEP; allowed: SAME_STEP"):
        sb3_vec_env.SB3VecEnv(envs)
    envs.close()
