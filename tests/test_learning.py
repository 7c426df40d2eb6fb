from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Slider, tiny_config

from unilab.runtime.metrics import read_metrics
from unilab.runtime.train import train


@pytest.mark.learning
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nothing_left")
def test_ppo_learns_to_hold_a_block_in_the_middle(tmp_path: Path) -> None:
    """Within 60,000 env steps PPO keeps a block near the middle of its rail, where an untrained policy drifts away."""
    task = Slider(episode_s=2.0, wind=0.1)
    sizes = {"num_envs": 64, "shard_size": 16, "algo.rollout_steps": 32, "algo.epochs": 5, "algo.minibatches": 4}
    config = tiny_config(
        task, workers=2, steps=60_000, eval_every=1_000_000, eval_episodes=32, **sizes,
        **{"algo.actor_hidden": (32,), "algo.critic_hidden": (32,), "algo.learning_rate": 3e-3},
    )  # fmt: skip
    result = train(config, tmp_path / "run")
    first = read_metrics(result.run)[1]["episode/return_mean"]
    assert result.evaluation["return_mean"] > 70.0
    assert result.evaluation["termination_rate"] < 0.1
    assert first < 50.0
