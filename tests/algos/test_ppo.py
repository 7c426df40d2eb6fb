from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from unilab.algos.algorithm import Horizon, Spaces
from unilab.algos.ppo import PPO, PPOConfig, PPOState
from unilab.envs.task import Mirror

T, N, OBS, ACT = 4, 4, 5, 2
MIRROR = {
    "actor": Mirror.of([-1, 1, 1, 1, -1], [0, 1, 3, 2, 4]),
    "critic": Mirror.of([-1, 1, 1, 1, -1], [0, 1, 3, 2, 4]),
    "action": Mirror.of([-1, -1], [1, 0]),
}
SMALL: dict[str, Any] = {
    "rollout_steps": T, "epochs": 2, "minibatches": 2, "actor_hidden": (4,), "critic_hidden": (4,),
}  # fmt: skip
ONE_STEP = {"epochs": 1, "minibatches": 1}
KEY = jax.random.key(7)


def make_ppo(iterations: int = 10, lag: int = 0, mirror: Any = None, obs: int = OBS, **changes: Any) -> PPO:
    config = PPOConfig(**(SMALL | changes))
    return PPO(config, Spaces({"actor": obs, "critic": obs}, ACT, mirror), Horizon(iterations, N, T, lag, 100))


def random_rollout(seed: int = 0) -> dict[str, jax.Array]:
    """A rollout whose actions and log-probabilities come from no policy in particular."""
    rng = np.random.default_rng(seed)
    terminated, truncated = (rng.random((T, N)) < 0.2 for _ in range(2))
    fields = {
        "obs/actor": rng.normal(1, 2, (T, N, OBS)), "obs/critic": rng.normal(1, 2, (T, N, OBS)),
        "final_obs/critic": rng.normal(1, 2, (T, N, OBS)), "action": rng.normal(0, 0.5, (T, N, ACT)),
        "reward": rng.normal(1, 1, (T, N)), "terminated": terminated, "truncated": truncated & ~terminated,
        "weight": np.ones((T, N)), "log_prob": rng.normal(-1.5, 0.1, (T, N)),
    }  # fmt: skip
    return {name: jnp.asarray(value, jnp.float32) for name, value in fields.items()}


def own_rollout(ppo: PPO, state: PPOState, seed: int = 0) -> dict[str, jax.Array]:
    """A rollout whose actions this state's policy draws, as a worker would."""
    rollout = random_rollout(seed)
    noise = jax.random.normal(jax.random.key(seed), (T, N, ACT))
    action, extras = ppo.act(ppo.snapshot(state), {"actor": rollout["obs/actor"]}, noise)
    return rollout | {"action": action, **extras}


def update_eagerly(
    ppo: PPO, state: PPOState, rollout: Mapping[str, jax.Array]
) -> tuple[PPOState, dict[str, jax.Array]]:
    """One update, op by op, so that another configuration needs no compilation."""
    with jax.disable_jit():
        return ppo.update(state, rollout, KEY)


def same(one: Any, other: Any) -> bool:
    """Whether two pytrees agree bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# --- one update -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ppo() -> PPO:
    return make_ppo()


@pytest.fixture(scope="module")
def update(ppo: PPO) -> Any:
    return jax.jit(ppo.update)


@pytest.mark.parametrize("mirror", [None, MIRROR], ids=["plain", "mirror"])
def test_first_ratio_is_exactly_one(mirror: Any) -> None:
    """At lag 0 the first minibatch's probability ratio is 1 to the last bit, also once observations are normalised."""
    ppo = make_ppo(mirror=mirror)
    update, state = jax.jit(ppo.update), ppo.init(KEY)
    for iteration in range(3):
        rollout = own_rollout(ppo, state, iteration)
        state, metrics = update(state, rollout, jax.random.fold_in(KEY, iteration))
        assert float(metrics["first_ratio_error"]) == 0.0
        assert float(metrics["kl"]) > 0.0
        assert not same(state.obs_norm["actor"], ppo.init(KEY).obs_norm["actor"])


def test_the_workers_log_prob_is_the_learners(ppo: PPO, update: Any) -> None:
    """What a worker notes as log-probability is what the learner would find: at lag 1 the ratio starts near 1."""
    state, _ = update(ppo.init(KEY), own_rollout(ppo, ppo.init(KEY)), KEY)
    late = make_ppo(lag=1)
    _, metrics = jax.jit(late.update)(state, own_rollout(ppo, state, 1), KEY)
    assert float(metrics["first_ratio_error"]) < 1e-5


def test_void_steps_count_in_nothing(ppo: PPO, update: Any) -> None:
    """What a step with weight 0 holds changes neither weights nor normalisers nor metrics."""
    rollout = own_rollout(ppo, ppo.init(KEY))
    void = np.zeros((T, N), bool)
    void[1, 0] = void[3, 2] = void[2, 3] = True
    results = []
    for garbage in (0.0, 50.0):
        other = {name: np.array(value) for name, value in rollout.items()}
        other["weight"][void] = 0.0
        other["terminated"][void], other["truncated"][void] = 1.0, 0.0
        for name in ("obs/actor", "final_obs/critic", "action", "reward", "log_prob"):
            other[name][void] += garbage
        results.append(update(ppo.init(KEY), other, KEY))
    assert same(*results)
    assert not same(results[0], update(ppo.init(KEY), rollout, KEY))


def test_rescaling_the_value_normaliser_keeps_the_values() -> None:
    """When the targets' statistics change a hundredfold, the values in the units of rewards stay what they were."""
    still = make_ppo(learning_rate=1e-12, schedule="constant", normalize_obs=False, **ONE_STEP)
    state = still.init(KEY)
    values = []
    for scale in (1.0, 100.0, 0.01):
        rollout = random_rollout(1) | {"reward": scale * random_rollout(1)["reward"]}
        state, metrics = update_eagerly(still, state, rollout)
        values.append(float(metrics["value_mean"]))  # before this rollout's statistics are taken in
    assert float(state.value_norm.std[0]) > 10.0
    np.testing.assert_allclose(values, values[0], rtol=1e-4, atol=1e-5)


def test_advantages_do_not_depend_on_the_rewards_scale() -> None:
    """Rewards a thousand times as large move the actor alike: advantages are standardised."""
    ppo = make_ppo(schedule="constant", **ONE_STEP)
    state, results = ppo.init(KEY), []
    silent = jax.tree.map(jnp.zeros_like, state.params["critic"])
    state = state._replace(params=state.params | {"critic": silent})
    for scale in (1.0, 1000.0):
        rollout = random_rollout()
        results.append(update_eagerly(ppo, state, rollout | {"reward": scale * rollout["reward"]})[0])
    for one, other in zip(*(jax.tree.leaves(r.params["actor"]) for r in results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_mirrored_rollout_gives_the_same_policy() -> None:
    """With a mirror, learning from the mirror image of a rollout gives the same actor and critic, up to rounding."""
    ppo = make_ppo(mirror=MIRROR, **ONE_STEP)
    state = ppo.init(KEY)
    rollout = own_rollout(ppo, state)
    image = dict(rollout)
    for name, group in (
        ("obs/actor", "actor"),
        ("obs/critic", "critic"),
        ("final_obs/critic", "critic"),
        ("action", "action"),
    ):
        image[name] = MIRROR[group](rollout[name])
    (one, metrics), (other, image_metrics) = (update_eagerly(ppo, state, each) for each in (rollout, image))
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(metrics["loss_critic"], image_metrics["loss_critic"], rtol=1e-3)
    obs = random_rollout(3)["obs/actor"][0]
    actions = ppo.act_deterministic(ppo.snapshot(one), {"actor": obs})
    mirrored = ppo.act_deterministic(ppo.snapshot(one), {"actor": MIRROR["actor"](obs)})
    np.testing.assert_allclose(mirrored, MIRROR["action"](actions), rtol=1e-4, atol=1e-5)


def test_exploration_has_the_stated_spread(ppo: PPO) -> None:
    """Before the first update actions scatter with `init_std`, and log_prob is the logarithm of their density."""
    snapshot = ppo.snapshot(ppo.init(KEY))
    obs = {"actor": jnp.zeros((4000, OBS))}
    noise = jax.vmap(ppo.draw_noise)(jax.random.split(KEY, 4000), jnp.arange(4000))
    action, extras = ppo.act(snapshot, obs, noise)
    mean = ppo.act_deterministic(snapshot, obs)
    np.testing.assert_allclose((action - mean).std(axis=0), ppo.config.init_std, rtol=0.05)
    density = -0.5 * jnp.sum(noise**2 + jnp.log(2 * jnp.pi), axis=-1) - ACT * jnp.log(ppo.config.init_std)
    np.testing.assert_allclose(extras["log_prob"], density, rtol=1e-4, atol=1e-4)


def test_policy_from_takes_over_what_acts_and_judges(ppo: PPO, update: Any) -> None:
    """Starting from another state takes its networks and normalisers, and none of its optimiser and counters."""
    fresh = ppo.init(jax.random.key(1))
    trained, _ = update(ppo.init(KEY), random_rollout(), KEY)
    started = ppo.policy_from(fresh, trained)
    assert same(ppo.snapshot(started), ppo.snapshot(trained))
    assert same((started.params, started.value_norm), (trained.params, trained.value_norm))
    assert same(
        (started.opt_state, started.iteration, started.learning_rate),
        (fresh.opt_state, fresh.iteration, fresh.learning_rate),
    )


# --- values, on an MDP solved by hand -------------------------------------------------------------------------------

GAMMA = 0.8
STATES = ("A", "B", "C", "D", "E")
VALUES = {"A": 1.0 + GAMMA * 2.0, "B": 2.0, "C": 1.0, "D": 0.5 + GAMMA * 2.0, "E": 3.0 + GAMMA * 2.0}


def mdp_rollout() -> dict[str, jax.Array]:
    """Two steps of four envs; every successor is B unless nothing follows.

    A (reward 1) is truncated           V(A) = 1 + gamma V(B)
    B (reward 2) terminates             V(B) = 2
    C (reward 1) terminates             V(C) = 1, although its successor B is worth 2
    D (reward 0.5) goes on in the rollout     V(D) = 0.5 + gamma V(B)
    E (reward 3) goes on, but the rollout ends    V(E) = 3 + gamma V(B)
    """
    path = [["A", "C", "D", "C"], ["B", "B", "B", "E"]]
    reward = {"A": 1.0, "B": 2.0, "C": 1.0, "D": 0.5, "E": 3.0}
    one_hot = {name: np.eye(len(STATES), dtype=np.float32)[i] for i, name in enumerate(STATES)}
    obs = np.array([[one_hot[name] for name in row] for row in path])

    def flag(names: str) -> np.ndarray:
        return np.array([[float(name in names) for name in row] for row in path], np.float32)

    return {
        "obs/actor": obs, "obs/critic": obs, "final_obs/critic": np.broadcast_to(one_hot["B"], obs.shape),
        "action": np.zeros((2, N, ACT), np.float32), "log_prob": np.zeros((2, N), np.float32),
        "reward": np.array([[reward[name] for name in row] for row in path], np.float32),
        "terminated": flag("BC"), "truncated": flag("A"), "weight": np.ones((2, N), np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("lag", [0, 1])
def test_critic_finds_the_values_solved_by_hand(lag: int) -> None:
    """Truncated steps bootstrap from their true successor, terminated ones do not: values become exact."""
    config = PPOConfig(
        rollout_steps=2, epochs=20, minibatches=1, learning_rate=1e-2, schedule="constant", discount=GAMMA, trace=0.5,
        entropy_weight=0.0, actor_hidden=(4,), critic_hidden=(16,), normalize_obs=False,
    )  # fmt: skip
    ppo = PPO(config, Spaces({"actor": 5, "critic": 5}, ACT), Horizon(100, N, 2, lag, 100))
    update, state, rollout = jax.jit(ppo.update), ppo.init(KEY), mdp_rollout()
    for iteration in range(150):
        state, _ = update(state, rollout, jax.random.fold_in(KEY, iteration))
    for i, name in enumerate(STATES):
        probe = rollout | {"weight": (rollout["obs/critic"][..., i] == 1).astype(np.float32)}
        _, metrics = update(state, probe, KEY)
        assert float(metrics["value_mean"]) == pytest.approx(VALUES[name], abs=0.05), name


# --- configuration --------------------------------------------------------------------------------------------------

CONSTANT = {"schedule": "constant"}
FIELDS: dict[str, tuple[dict[str, Any], Any]] = {  # field: (what else is set, another value)
    "epochs": ({}, 3),
    "minibatches": ({}, 2),
    "learning_rate": (CONSTANT, 2e-3),
    "schedule": ({}, "linear"),
    "kl_target": ({"learning_rate": 3e-2, "max_learning_rate": 1.0}, 10.0),
    "max_learning_rate": ({"kl_target": 10.0}, 1e-3),
    "discount": (CONSTANT, 0.5),
    "trace": (CONSTANT, 0.5),
    "clip": ({"learning_rate": 3e-2} | CONSTANT, 0.01),
    "value_clip": ({"learning_rate": 3e-2} | CONSTANT, 0.0),
    "value_weight": (CONSTANT | {"max_grad_norm": 1e3}, 0.1),
    "entropy_weight": (CONSTANT, 0.1),
    "max_grad_norm": (CONSTANT, 0.01),
    "init_std": (CONSTANT, 0.7),
    "actor_hidden": (CONSTANT, (6,)),
    "critic_hidden": (CONSTANT, (6,)),
    "activation": (CONSTANT, "tanh"),
    "mirror": (CONSTANT, False),
    "normalize_obs": (CONSTANT, False),
}


@cache
def outcome(changes: tuple[tuple[str, Any], ...]) -> list[bytes]:
    """The bits of the state after an update."""
    spaces = Spaces({"actor": OBS, "critic": OBS}, ACT, MIRROR)
    config = PPOConfig(**(SMALL | {"minibatches": 1} | dict(changes)))
    ppo = PPO(config, spaces, Horizon(10, N, T, 0, 100))
    state, _ = update_eagerly(ppo, ppo.init(KEY), random_rollout())
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def test_every_field_is_tested() -> None:
    """The list of fields that matter is complete; `rollout_steps` is tested with the shapes."""
    assert set(FIELDS) | {"rollout_steps"} == {f.name for f in dataclasses.fields(PPOConfig)}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_matters(name: str) -> None:
    """Changing a field of the configuration changes what an update makes."""
    base, value = FIELDS[name]
    assert getattr(PPOConfig(**(SMALL | {"minibatches": 1} | base)), name) != value
    assert outcome(tuple(base.items())) != outcome(tuple((base | {name: value}).items()))


BAD = {
    "rollout_steps": 0, "epochs": 0, "minibatches": -1, "learning_rate": 0.0, "schedule": "cosine", "kl_target": 0.0,
    "max_learning_rate": -1.0, "discount": 1.1, "trace": -0.1, "clip": 0.0, "value_clip": -0.1, "value_weight": -1.0,
    "entropy_weight": -1.0, "max_grad_norm": 0.0, "init_std": 0.0, "actor_hidden": (8, 0), "critic_hidden": (0,),
    "activation": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_named(name: str) -> None:
    """A value that is not allowed is refused with the field, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"algo\.{name} is .*; allowed: \w+") as caught:
        PPOConfig(**{name: BAD[name]})
    assert repr(BAD[name]) in str(caught.value)


@pytest.mark.parametrize("name", [n for n, v in BAD.items() if isinstance(v, float)])
def test_what_is_no_number_is_refused(name: str) -> None:
    """NaN is allowed nowhere."""
    with pytest.raises(ValueError, match=rf"algo\.{name} is nan"):
        PPOConfig(**{name: float("nan")})


def test_minibatches_must_divide_the_rollout() -> None:
    """Minibatches that do not divide a rollout's samples are refused, with both numbers."""
    with pytest.raises(ValueError, match=r"algo\.minibatches is 3; .*num_envs \* .*rollout_steps = 16"):
        make_ppo(minibatches=3)
    make_ppo(minibatches=3, rollout_steps=3)


def learning_rates(iterations: int, **changes: Any) -> list[float]:
    """Learning rates that successive updates report."""
    ppo = make_ppo(iterations, **ONE_STEP | changes)
    state, rates = ppo.init(KEY), []
    for iteration in range(iterations):
        state, metrics = update_eagerly(ppo, state, own_rollout(ppo, state, iteration))
        rates.append(float(metrics["learning_rate"]))
    return rates


def test_schedules() -> None:
    """A constant rate stays, a linear one falls to 0 over the run, an adaptive one follows the KL within its bounds."""
    np.testing.assert_allclose(learning_rates(4, schedule="constant", learning_rate=2e-3), [2e-3] * 4, rtol=1e-6)
    np.testing.assert_allclose(
        learning_rates(4, schedule="linear", learning_rate=2e-3), [2e-3, 1.5e-3, 1e-3, 5e-4], rtol=1e-5
    )
    rising = learning_rates(3, kl_target=10.0, learning_rate=1e-3, max_learning_rate=1.2e-3, epochs=2)
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(1.2e-3)
    falling = learning_rates(3, kl_target=1e-9, learning_rate=1e-3, epochs=2)
    assert falling == sorted(falling, reverse=True)
    assert 0.0 < falling[-1] < 1e-3


def test_gradient_norms_are_bounded_for_actor_and_critic_apart() -> None:
    """A critic's huge gradient does not shrink the actor's step: one update moves the actor alike."""
    moves = []
    for value_weight in (1.0, 1e6):
        ppo = make_ppo(schedule="constant", value_weight=value_weight, **ONE_STEP)
        new, _ = update_eagerly(ppo, ppo.init(KEY), random_rollout())
        moves.append(new.params["actor"])
    for one, other in zip(*(jax.tree.leaves(m) for m in moves), strict=True):
        np.testing.assert_array_equal(one, other)


def test_state_is_a_pytree_of_32_bit_arrays(ppo: PPO) -> None:
    """All that an update changes are 32-bit arrays, so that it can be saved and sent; an update keeps every shape."""
    state = ppo.init(KEY)
    shapes = jax.eval_shape(ppo.update, state, random_rollout(), KEY)[0]
    for leaf, after in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (after.shape, after.dtype)
        assert np.dtype(leaf.dtype).itemsize == 4
    assert isinstance(state.params, Mapping)
    assert isinstance(state.params["actor"], nnx.State)
