from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilab.algos.replay import Replay, _steps_from, add_rollout, make_replay, num_steps, sample, with_mirror_images
from unilab.envs.task import Mirror

EPISODE = 5  # env steps to the time limit
SIZES = {"actor": 2, "critic": 3}
DISCOUNT = 0.9


class History:
    """All steps of some envs in plain Python lists: the oracle. An observation holds the env's number and a counter."""

    def __init__(self, num_envs: int, seed: int, is_long: bool = True) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs = num_envs
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
        self.age = self.rng.integers(0, EPISODE, num_envs)  # first episodes begin at random ages
        self.obs = self._fresh()

    def _fresh(self) -> np.ndarray:
        return self.rng.normal(size=(self.num_envs, 3)).astype(np.float32)

    def rollout(self, steps: int) -> dict[str, np.ndarray]:
        rows: dict[str, list[Any]] = {}
        for _ in range(steps):
            following, new = self._fresh(), self._fresh()
            terminated = self.rng.random(self.num_envs) < 0.15
            weight = np.where(terminated & (self.rng.random(self.num_envs) < 0.3), 0.0, 1.0)
            truncated = (self.age + 1 >= EPISODE) & ~terminated
            reward = self.rng.normal(size=self.num_envs).astype(np.float32)
            action = self.rng.normal(size=(self.num_envs, 1)).astype(np.float32)
            row = {
                "obs/actor": self.obs[:, :2], "obs/critic": self.obs, "action": action, "reward": reward,
                "terminated": terminated, "truncated": truncated, "weight": weight,
                "final_obs/actor": following[:, :2], "final_obs/critic": following,
            }  # fmt: skip
            for name, value in row.items():
                rows.setdefault(name, []).append(np.asarray(value, np.float32))
            for env in range(self.num_envs):
                self.steps[env].append({name: value[env] for name, value in row.items()})
            ended = terminated | truncated
            self.obs = np.where(ended[:, None], new, following)
            self.age = np.where(ended, 0, self.age + 1)
        return {name: np.stack(values) for name, values in rows.items()}

    def expected(self, row: int, env: int, n_step: int) -> tuple[float, float, float, np.ndarray]:
        """(reward, discount, weight, successor) of the steps from a row on."""
        total, factor, weight = 0.0, 1.0, 1.0
        for step in self.steps[env][row : row + n_step]:
            total += factor * float(step["reward"])
            factor *= DISCOUNT
            weight *= float(step["weight"])
            if step["terminated"] or step["truncated"]:
                break
        return total, 0.0 if step["terminated"] else factor, weight, step["final_obs/critic"]


@given(
    num_envs=st.integers(1, 4), rollout_steps=st.integers(1, 4), blocks=st.integers(1, 5), rollouts=st.integers(1, 9),
    n_step=st.integers(1, 4), seed=st.integers(0, 1000),
)  # fmt: skip
def test_replay_is_a_list(
    num_envs: int, rollout_steps: int, blocks: int, rollouts: int, n_step: int, seed: int
) -> None:
    """Every step that is kept gives what a plain list of all steps gives: reward sum, discount, successor, weight."""
    history = History(num_envs, seed)
    rows = rollout_steps * blocks
    replay = make_replay(SIZES, 1, num_envs, rows, EPISODE)
    for _ in range(rollouts):
        replay = add_rollout(replay, {name: jnp.asarray(x) for name, x in history.rollout(rollout_steps).items()})
    total = rollouts * rollout_steps
    kept = range(max(0, total - rows), total)
    assert int(num_steps(replay)) == len(kept) * num_envs
    first, env = (np.array(x) for x in zip(*[(r, e) for r in kept for e in range(num_envs)], strict=True))
    batch = jax.tree.map(np.asarray, _steps_from(replay, jnp.asarray(first), jnp.asarray(env), n_step, DISCOUNT))
    for i, (r, e) in enumerate(zip(first, env, strict=True)):
        reward, discount, weight, successor = history.expected(r, e, n_step)
        step = history.steps[e][r]
        np.testing.assert_array_equal(batch.obs["critic"][i], step["obs/critic"])
        np.testing.assert_array_equal(batch.action[i], step["action"])
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
        assert float(batch.weight[i]) == weight
        if discount > 0:
            np.testing.assert_array_equal(batch.next_obs["critic"][i], successor)
            np.testing.assert_array_equal(batch.next_obs["actor"][i], successor[:2])


def test_samples_are_spread_evenly() -> None:
    """Each kept step of each env is drawn as often as any other, and none that was overwritten."""
    history, replay = History(3, 0), make_replay(SIZES, 1, 3, 8, EPISODE)
    for _ in range(5):
        replay = add_rollout(replay, {name: jnp.asarray(x) for name, x in history.rollout(4).items()})
    batch = sample(replay, jax.random.key(0), 24_000, 1, DISCOUNT)
    values, counts = np.unique(np.asarray(batch.action), return_counts=True)
    kept = np.concatenate([[step["action"][0] for step in steps[-8:]] for steps in history.steps])
    np.testing.assert_array_equal(values, np.sort(kept))
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize(("size", "episode"), [(4, 1000), (17, 1000), (105, 1000), (10, 50)])
def test_replay_takes_little_more_than_its_steps(size: int, episode: int) -> None:
    """At most 1.1 times the bytes of observations, actions, rewards and flags."""
    replay = jax.eval_shape(lambda: make_replay({"actor": size}, 2, 16, 10_000, episode))
    nbytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay))
    assert nbytes <= 1.1 * 16 * 10_000 * (4 * (size + 2 + 1) + 1)


def test_adding_in_place() -> None:
    """A donated replay is written in place: adding a rollout does not copy the ring."""
    history, replay = History(2, 0), make_replay(SIZES, 1, 2, 8, EPISODE)
    before = replay.action.unsafe_buffer_pointer()
    add: Any = jax.jit(add_rollout, donate_argnums=0)
    after: Replay = add(replay, {name: jnp.asarray(x) for name, x in history.rollout(4).items()})
    assert after.action.unsafe_buffer_pointer() == before


def test_mirror_images_follow_the_batch() -> None:
    """The second half of a batch is the mirror image of the first, with the same rewards, discounts and weights."""
    history = History(2, 0)
    replay = add_rollout(
        make_replay(SIZES, 1, 2, 8, EPISODE), {k: jnp.asarray(x) for k, x in history.rollout(8).items()}
    )
    batch = sample(replay, jax.random.key(0), 6, 1, DISCOUNT)
    mirror = {"actor": Mirror.of([1, 1], [1, 0]), "critic": Mirror.of([-1, 1, -1]), "action": Mirror.of([-1])}
    both = with_mirror_images(batch, mirror)
    for before, after in zip(jax.tree.leaves(batch), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(before, after[:6])
    np.testing.assert_array_equal(both.obs["actor"][6:], batch.obs["actor"][:, ::-1])
    np.testing.assert_array_equal(both.next_obs["critic"][6:], batch.next_obs["critic"] * np.array([-1, 1, -1]))
    np.testing.assert_array_equal(both.action[6:], -batch.action)
    for name in ("reward", "discount", "weight"):
        np.testing.assert_array_equal(getattr(both, name)[6:], getattr(batch, name))
