from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate
from tiny import Messages, Slider

from unilab.algos.algorithm import Horizon, Spaces
from unilab.algos.sac import SAC, SACConfig, tanh_gaussian_log_prob
from unilab.algos.td3 import TD3, TD3Config
from unilab.config import make_config
from unilab.runtime.metrics import read_metrics
from unilab.runtime.resume import resume
from unilab.runtime.run import load_policy
from unilab.runtime.train import train

EPISODE = 5  # env steps
DISCOUNT = 0.9
ALGORITHMS: dict[str, Any] = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config)}
SMALL: dict[str, Any] = {
    "rollout_steps": 5, "warm_up_steps": 0, "actor_hidden": (16,), "critic_hidden": (32, 32), "batch_size": 64,
    "discount": DISCOUNT,
}  # fmt: skip
TINY: dict[str, Any] = {
    "steps": 6 * 64, "num_envs": 8, "shard_size": 4, "workers": 0, "lag": 0, "learner_threads": 2, "eval_every": 10**9,
    "eval_episodes": 2, "digest": True, "algo.rollout_steps": 8, "algo.warm_up_steps": 128, "algo.batch_size": 16,
    "algo.replay_steps": 512, "algo.updates_per_env_step": 0.25, "algo.actor_hidden": (8,), "algo.critic_hidden": (8,),
}  # fmt: skip


def rollout_of(how: str, num_envs: int) -> dict[str, jax.Array]:
    """One episode of five steps in each env, with reward 1 each; the observation is the age, one-hot."""
    age = jnp.eye(EPISODE + 1)
    obs = jnp.repeat(age[:EPISODE, None], num_envs, axis=1)
    following = jnp.repeat(age[1:, None], num_envs, axis=1)
    if how == "truncated":  # the time limit cuts a chain that would go on for ever in the state of age 0
        following = following.at[-1].set(age[0])
    end = jnp.zeros((EPISODE, num_envs)).at[-1].set(1.0)
    zero, one = jnp.zeros_like(end), jnp.ones_like(end)
    return {
        "obs/actor": obs, "obs/critic": obs, "final_obs/actor": following, "final_obs/critic": following,
        "action": jax.random.uniform(jax.random.key(0), (EPISODE, num_envs, 1), minval=-1.0), "reward": one,
        "terminated": end if how == "terminated" else zero, "truncated": end if how == "truncated" else zero,
        "weight": one,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how", "n_step"),
    [("sac", "terminated", 1), ("sac", "truncated", 3), ("td3", "truncated", 1), ("td3", "terminated", 3)],
)
def test_values_of_an_mdp_solved_by_hand(name: str, how: str, n_step: int) -> None:
    """A reward of 1 per step: where the MDP ends after five, values are what is left; a time limit changes nothing."""
    algorithm_class, config_class = ALGORITHMS[name]
    extra = {"init_temperature": 1e-6, "learning_rate": 1e-9} if name == "sac" else {"learning_rate": 1e-9}
    config = config_class(**SMALL, n_step=n_step, updates_per_env_step=10.0, polyak=0.05, **extra)
    algorithm = algorithm_class(config, Spaces({"actor": 6, "critic": 6}, 1), Horizon(100, 4, 5, 0, EPISODE))
    state, update = algorithm.init(jax.random.key(0)), jax.jit(algorithm.update)
    rollout = rollout_of(how, 4)
    for k in range(15):
        state, _ = update(state, rollout, jax.random.key(k))
    obs = jnp.eye(6)[:EPISODE]
    values = np.asarray(algorithm.values(state.params["critic"], obs, jnp.zeros((EPISODE, 1)))).mean(axis=0)
    left = np.arange(EPISODE, 0, -1)
    ends = (1.0 - DISCOUNT**left) / (1.0 - DISCOUNT)
    expected = ends if how == "terminated" else np.full(EPISODE, 1.0 / (1.0 - DISCOUNT))
    np.testing.assert_allclose(values, expected, rtol=0.06)


def test_tanh_gaussian_is_a_density() -> None:
    """The log-probability integrates to 1 over (-1, 1) and is finite where tanh is 1 in float32."""
    mean, log_std = jnp.array([0.4]), jnp.array([-0.3])

    def density(y: float) -> float:
        return float(jnp.exp(tanh_gaussian_log_prob(jnp.arctanh(jnp.array([y])), mean, log_std)))

    total, _ = integrate.quad(density, -0.9999, 0.9999, limit=80, epsabs=1e-3)
    assert total == pytest.approx(1.0, abs=5e-3)
    assert jnp.isfinite(tanh_gaussian_log_prob(jnp.array([30.0]), jnp.array([30.0]), log_std))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_stay_in_bounds_and_begin_at_random(name: str) -> None:
    """Warm-up actions are uniform between the bounds; later ones, and the best ones, stay between them."""
    algorithm_class, config_class = ALGORITHMS[name]
    low, high = np.array([-1.0, 2.0], np.float32), np.array([3.0, 2.5], np.float32)
    spaces = Spaces({"actor": 3, "critic": 3}, 2, None, (low, high))
    algorithm = algorithm_class(config_class(**(SMALL | {"warm_up_steps": 20})), spaces, Horizon(9, 4, 5, 0, EPISODE))
    state = algorithm.init(jax.random.key(0))
    noise = jax.vmap(algorithm.draw_noise)(jax.random.split(jax.random.key(1), 20_000))
    obs = {"actor": 5.0 * jax.random.normal(jax.random.key(2), (20_000, 3))}
    early, _ = algorithm.act(algorithm.snapshot(state), obs, noise)
    np.testing.assert_allclose(early.mean(axis=0), (low + high) / 2, atol=0.03)
    np.testing.assert_allclose(early.std(axis=0), (high - low) / 12**0.5, rtol=0.02)
    later, _ = algorithm.act(algorithm.snapshot(state._replace(env_steps=jnp.int32(20))), obs, noise)
    best = algorithm.act_deterministic(algorithm.snapshot(state), obs)
    for actions in (early, later, best):
        assert (np.asarray(actions) >= low - 1e-6).all()
        assert (np.asarray(actions) <= high + 1e-6).all()
    assert np.abs(np.asarray(later) - np.asarray(early)).max() > 0.1


@pytest.fixture(scope="module", params=ALGORITHMS)
def algo(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_updates_are_what_is_asked_for(tmp_path: Path, algo: str) -> None:
    """No update before the warm-up is in the replay, then so many per env step, as the metrics say."""
    result = train(make_config(Slider(), algo, **TINY), tmp_path / "run")
    rows = read_metrics(result.run)
    assert [row["train/updates_per_env_step"] for row in rows] == [0.0, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert [row["train/replay_steps"] for row in rows] == [64.0, 128.0, 192.0, 256.0, 320.0, 384.0]
    policy = load_policy(result.run)
    assert policy(np.zeros((5, 2))).shape == (5, 1)


def test_with_its_replay_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, algo: str) -> None:
    """With `save_replay` every bit is the same after a resume; without, the run says that it will not be."""
    settings = TINY | {"lag": 1 if algo == "sac" else 0, "save_replay": True}
    whole = train(make_config(Slider(), algo, **settings), tmp_path / "whole")
    run = tmp_path / "run"
    train(make_config(Slider(), algo, **settings), run, callback=lambda row: row["iteration"] == 3)
    assert resume(run).summary["digest"] == whole.summary["digest"]
    light = tmp_path / "light"
    settings["save_replay"] = False
    train(make_config(Slider(), algo, **settings), light, callback=lambda row: row["iteration"] == 3)
    display = Messages()
    resume(light, display=display)
    assert any("has no replay" in text for text in display.texts)
    assert [row["train/replay_steps"] for row in read_metrics(light)][3:] == [64.0, 128.0, 192.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo.updates_per_env_step": 0.003}, "algo.updates_per_env_step is 0.003; allowed: whole numbers of updates"),
        ({"algo.replay_steps": 63}, r"algo.replay_steps is 63; allowed: at least num_envs \* rollout_steps = 64"),
        ({"algo.warm_up_steps": 600}, "algo.warm_up_steps is 600; allowed: at most the 512 that are kept"),
        ({"algo.polyak": 2.0}, "algo.polyak is 2.0; allowed: between 0 and 1"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, algo: str, changes: dict[str, Any], message: str) -> None:
    """Settings that do not fit together are refused before anything is collected."""
    with pytest.raises(ValueError, match=message):
        train(make_config(Slider(), algo, **(TINY | changes)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
