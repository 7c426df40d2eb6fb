from __future__ import annotations

import jax
import numpy as np

from unilab.algos.algorithm import Horizon, Spaces
from unilab.algos.td3 import TD3, TD3Config
from unilab.runtime.learner import HostMemoryLearner, Learner, make_learner


def test_a_replay_in_host_memory_learns_the_same() -> None:
    """A learner whose replay is apart takes the same gradient steps from the same batches, after the same warm-up."""
    rng, spaces, horizon = np.random.default_rng(0), Spaces({"actor": 3, "critic": 3}, 1, shared_obs=True), 4
    states = {}
    rollouts = [
        {name: rng.normal(size=(4, 2, *shape)).astype(np.float32) for name, shape in {
            "obs/actor": (3,), "final_obs/actor": (3,), "action": (1,), "reward": ()}.items()}
        | {name: np.full((4, 2), value, np.float32) for name, value in {
            "terminated": 0.0, "truncated": 0.0, "weight": 1.0}.items()}
        for _ in range(3)
    ]  # fmt: skip
    for where in ("device", "host"):
        config = TD3Config(
            rollout_steps=4, replay_steps=64, warm_up_steps=16, actor_hidden=(8,), critic_hidden=(8,), batch_size=8,
            normalize_obs=True, replay_on=where,
        )  # fmt: skip
        learner = make_learner(TD3(config, spaces, Horizon(9, 2, 4, 0, horizon)), seed=0)
        assert type(learner) is (HostMemoryLearner if where == "host" else Learner)
        first = jax.tree.map(np.array, learner.learned.params)
        rows = [learner.learn(i, rollout) for i, rollout in enumerate(rollouts)]
        assert [row["train/updates_per_env_step"] for row in rows] == [0.0, 1.0, 1.0]
        states[where] = learner.state, rows[-1]
        pairs = zip(jax.tree.leaves(first), jax.tree.leaves(learner.learned.params), strict=True)
        assert min(np.abs(a - b).max() for a, b in pairs) > 1e-5
    for a, b in zip(jax.tree.leaves(states["device"]), jax.tree.leaves(states["host"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
