from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import Rollouts, Slider, tiny_config

pytest.importorskip("mujoco.mjx")

from unilab.envs.physics.registry import PHYSICS
from unilab.runtime.resume import resume
from unilab.runtime.train import train

SIZES = {"num_envs": 4, "shard_size": 4, "algo.rollout_steps": 30, "steps": 1000}


def test_a_rollout_on_the_device_is_that_of_a_worker_up_to_rounding() -> None:
    """The same task, seed and policy: the same random numbers, episodes and totals, and nearly the same numbers."""
    task = Slider(episode_s=0.2, limit=0.45)
    device, host = Rollouts(task, physics="mjx", **SIZES), Rollouts(task, **SIZES)
    for _ in range(2):
        (there, *totals), (here, *host_totals) = device.collect(), host.collect()
        assert here["terminated"].any()
        assert here["truncated"].any()
        for name in here:
            exact = name in ("weight", "terminated", "truncated")
            np.testing.assert_allclose(there[name], here[name], *(0, 0) if exact else (1e-3, 1e-4), err_msg=name)
        for mine, theirs in zip(totals, host_totals, strict=True):
            np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_training_on_the_device_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Stopped after one iteration and resumed, it has the digest of one that never stopped; no worker takes part."""
    config = tiny_config(physics="mjx", workers=None, shard_size=None, digest=True)
    whole = train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped", callback=lambda row: row["iteration"] == 1)
    assert resume(tmp_path / "stopped").summary["digest"] == whole.summary["digest"]
    assert whole.evaluation["episodes"] == config.eval_episodes


def test_there_are_no_workers_and_one_shard_on_the_device() -> None:
    """What is left open resolves to no workers, lag 0 and one shard; asking for workers is an error."""
    config = tiny_config(physics="mjx", workers=None, shard_size=None, lag=None).resolved(on_accelerator=True)
    assert (config.workers, config.lag, config.shard_size) == (0, 0, config.num_envs)
    with pytest.raises(ValueError, match="workers is 2; allowed: 0, since mjx steps on JAX's device"):
        tiny_config(physics="mjx", workers=2)
    assert PHYSICS["mjx"].on_device
