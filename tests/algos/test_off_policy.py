from __future__ import annotations

import dataclasses
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
from unilab.envs.task import Mirror
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
HORIZON = Horizon(9, 4, 5, 0, EPISODE)
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


C51: dict[str, Any] = {"critic_atoms": 51, "value_range": (0.0, 12.0), "critic_reduction": "mean", "layer_norm": True}


@pytest.mark.parametrize(
    ("name", "how", "n_step", "options"),
    [
        ("sac", "terminated", 1, {}), ("sac", "truncated", 3, C51), ("td3", "truncated", 1, {}),
        ("td3", "terminated", 3, C51 | {"critic_reduction": "min"}),
    ],
)  # fmt: skip
def test_values_of_an_mdp_solved_by_hand(name: str, how: str, n_step: int, options: dict[str, Any]) -> None:
    """A reward of 1 per step: where the MDP ends after five, values are what is left; a time limit changes nothing."""
    algorithm_class, config_class = ALGORITHMS[name]
    options = options | ({"init_temperature": 1e-6} if name == "sac" else {})
    config = config_class(**SMALL, n_step=n_step, updates_per_env_step=10.0, polyak=0.05, learning_rate=1e-9, **options)
    algorithm = algorithm_class(config, Spaces({"actor": 6, "critic": 6}, 1), Horizon(100, 4, 5, 0, EPISODE))
    state, update = algorithm.init(jax.random.key(0)), jax.jit(algorithm.update)
    rollout = rollout_of(how, 4)
    for k in range(15):
        state, _ = update(state, rollout, jax.random.key(k))
    obs = jnp.eye(6)[:EPISODE]
    values = np.asarray(algorithm.critics.values(state.params["critic"], obs, jnp.zeros((EPISODE, 1)))).mean(axis=0)
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
    algorithm = algorithm_class(config_class(**(SMALL | {"warm_up_steps": 20})), spaces, HORIZON)
    state = algorithm.init(jax.random.key(0))
    noise = jax.vmap(algorithm.draw_noise)(jax.random.split(jax.random.key(1), 20_000), jnp.arange(20_000) % 4)
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


MIRROR = {"actor": Mirror.of([-1, 1, 1], [0, 2, 1]), "critic": Mirror.of([1, -1]), "action": Mirror.of([1, 1], [1, 0])}
SIDED = Spaces({"actor": 3, "critic": 2}, 2, MIRROR)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_networks_respect_the_mirror(name: str) -> None:
    """With mirror=networks, mirrored observations get mirrored actions, exploring or not, and the same values."""
    algorithm_class, config_class = ALGORITHMS[name]
    algorithm = algorithm_class(config_class(**SMALL, mirror="networks"), SIDED, HORIZON)
    state = algorithm.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(state.params)
    leaves = [x + 0.5 * jax.random.normal(jax.random.key(i), x.shape) for i, x in enumerate(leaves)]
    params = jax.tree.unflatten(tree, leaves)
    obs = jax.random.normal(jax.random.key(1), (6, 3))
    normal = jax.random.normal(jax.random.key(2), (6, 2))
    std = jnp.full((6, 0 if name == "sac" else 1), 0.1)
    action = algorithm.explore(params["actor"], obs, jnp.concatenate([normal, std], axis=1))
    mirrored_noise = jnp.concatenate([MIRROR["action"](normal), std], axis=1)
    mirrored = algorithm.explore(params["actor"], MIRROR["actor"](obs), mirrored_noise)
    np.testing.assert_allclose(mirrored, MIRROR["action"](action), atol=1e-5)
    seen = jax.random.normal(jax.random.key(3), (6, 2))
    values = algorithm.critics.values(params["critic"], seen, action)
    np.testing.assert_allclose(
        algorithm.critics.values(params["critic"], MIRROR["critic"](seen), mirrored), values, rtol=1e-4, atol=1e-5
    )
    assert np.abs(values - algorithm.critics.values(params["critic"], seen, mirrored)).max() > 1e-3


def test_a_mirror_needs_a_symmetric_task() -> None:
    """A mirror is refused where the task has none, or where its bounds are not mirror images."""
    with pytest.raises(ValueError, match="allowed: off, as the task has no mirror"):
        SAC(SACConfig(**SMALL, mirror="data"), Spaces({"actor": 3, "critic": 2}, 2), HORIZON)
    lopsided = dataclasses.replace(SIDED, bounds=(np.array([-1.0, -2.0]), np.array([1.0, 1.0])))
    with pytest.raises(ValueError, match="bounds are not mirror images"):
        SAC(SACConfig(**SMALL, mirror="networks"), lopsided, HORIZON)


def test_td3_explores_more_in_some_envs_than_in_others() -> None:
    """The standard deviation of the noise goes evenly from the first to the last env."""
    td3 = TD3(TD3Config(**SMALL, exploration_std=(0.1, 0.4)), Spaces({"actor": 3, "critic": 3}, 2), HORIZON)
    noise = jax.vmap(td3.draw_noise)(jax.random.split(jax.random.key(0), 4), jnp.arange(4))
    np.testing.assert_allclose(noise[:, -1], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    actor = td3.init(jax.random.key(0)).params["actor"]
    obs = jnp.zeros((4, 3))
    moved = td3.explore(actor, obs, noise) - td3.best(actor, obs)
    np.testing.assert_allclose(moved, noise[:, -1:] * noise[:, :-1], atol=1e-5)


def test_step_sizes_go_down_linearly() -> None:
    """Half way through the run a step is the mean of the first and the last step size; Adam's first step shows it."""
    config = TD3Config(**SMALL, last_learning_rate=0.2)
    td3 = TD3(config, Spaces({"actor": 3, "critic": 3}, 2), Horizon(10, 4, 5, 0, EPISODE))
    state = td3.init(jax.random.key(0))
    grads = jax.tree.map(jnp.ones_like, state.params["actor"])
    for updates, share in ((0, 1.0), (100, 0.6), (200, 0.2), (300, 0.2)):
        moved = td3.stepped(state._replace(updates=jnp.int32(updates)), "actor", grads)
        for old, new in zip(jax.tree.leaves(state.params), jax.tree.leaves(moved.params), strict=True):
            change = np.abs(np.asarray(new) - np.asarray(old)).max()
            assert change == 0.0 or change == pytest.approx(share * config.learning_rate, rel=1e-2)


def test_sac_begins_with_the_wanted_spread() -> None:
    """`init_std` is the standard deviation of an untrained actor's actions before tanh."""
    sac = SAC(SACConfig(**SMALL, init_std=0.05), Spaces({"actor": 3, "critic": 3}, 2), HORIZON)
    actor, obs = sac.init(jax.random.key(0)).params["actor"], jax.random.normal(jax.random.key(1), (50, 3))
    moved = jnp.arctanh(sac.explore(actor, obs, jnp.ones((50, 2)))) - jnp.arctanh(sac.best(actor, obs))
    np.testing.assert_allclose(moved, 0.05, rtol=0.1)


OTHER: dict[str, Any] = {
    "rollout_steps": 10, "replay_steps": 100, "warm_up_steps": 20, "updates_per_env_step": 2.0, "batch_size": 32,
    "learning_rate": 1e-2, "critic_learning_rate": 1e-2, "last_learning_rate": 0.1, "discount": 0.5,
    "n_step": 2, "polyak": 0.5, "policy_delay": 3,
    "critics": 3, "critic_reduction": "mean", "critic_atoms": 5, "value_range": (-1.0, 1.0), "actor_hidden": (8,),
    "critic_hidden": (8,), "activation": "silu", "layer_norm": True, "mirror": "data", "normalize_obs": True,
    "reward_scale": 2.0, "init_temperature": 0.1, "target_entropy_scale": 0.5, "init_std": 0.1,
    "exploration_std": (0.1, 0.2), "target_noise": 0.1, "target_noise_clip": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_matters(name: str) -> None:
    """A change of any setting changes what is computed, as its trace shows."""
    algorithm_class, config_class = ALGORITHMS[name]
    base = config_class(**SMALL)

    def trace(config: Any) -> str:
        algorithm = algorithm_class(config, SIDED, Horizon(9, 4, config.rollout_steps, 0, EPISODE))
        rollout = {
            key: jnp.zeros((config.rollout_steps, 4, *shape))
            for key, shape in {
                "obs/actor": (3,), "obs/critic": (2,), "final_obs/actor": (3,), "final_obs/critic": (2,),
                "action": (2,), "reward": (), "terminated": (), "truncated": (), "weight": (),
            }.items()
        }  # fmt: skip

        def everything(key: jax.Array) -> Any:
            state = algorithm.init(key)
            noise = algorithm.draw_noise(key, jnp.int32(1))[None]
            action = algorithm.act(algorithm.snapshot(state), {"actor": jnp.zeros((1, 3))}, noise)
            return action, algorithm.update(state, rollout, key)

        traced = jax.make_jaxpr(everything)(jax.random.key(0))
        return str(traced) + str([np.asarray(const).tolist() for const in traced.consts])

    same = trace(base)
    assert trace(config_class(**SMALL)) == same
    for field in dataclasses.fields(config_class):
        if field.name == "replay_on":  # the same computation, elsewhere; see test_host_memory
            continue
        first = base if field.name != "value_range" else dataclasses.replace(base, critic_atoms=5)
        before = same if first is base else trace(first)
        assert trace(dataclasses.replace(first, **{field.name: OTHER[field.name]})) != before, field.name


def test_observations_that_the_critic_shares_are_kept_once() -> None:
    """Where critic and actor see the same, the replay takes at most 1.1 times the bytes of what it has to hold."""
    rows, envs, size, actions = 1000, 8, 17, 6
    spaces = Spaces({"actor": size, "critic": size}, actions, shared_obs=True)
    sac = SAC(SACConfig(replay_steps=rows * envs, warm_up_steps=0), spaces, Horizon(9, envs, 8, 0, 1000))
    memory = jax.eval_shape(sac.init, jax.random.key(0)).memory
    nbytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(memory))
    assert nbytes <= 1.1 * rows * envs * (4 * size + 4 * actions + 4 + 1)


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
    settings = TINY | {"lag": 0, "save_replay": True}
    if algo == "sac":
        settings |= {"lag": 1, "algo.replay_on": "host"}
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
        ({"algo.value_range": (2.0, 1.0)}, "algo.value_range is .* a smaller and a larger number"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, algo: str, changes: dict[str, Any], message: str) -> None:
    """Settings that do not fit together are refused before anything is collected."""
    with pytest.raises(ValueError, match=message):
        train(make_config(Slider(), algo, **(TINY | changes)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
