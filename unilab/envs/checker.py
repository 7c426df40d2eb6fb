"""The contract of a task, as a test: ours run it over every task, and yours can over your own.

from unilab.envs.checker import check_task
from unilab.gym.env import UnilabEnv
from unilab.gym.vector import UnilabVectorEnv

def test_hover() -> None:
    check_task(Hover(), UnilabEnv, UnilabVectorEnv)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from unilab.envs.batch import Batch, own_rows
from unilab.envs.env import Env
from unilab.envs.physics.base import NOBODY
from unilab.envs.task import Task

LIMIT = 4
"""Env steps of an episode in the checks of sequences."""
STEPS = 3 * (LIMIT + 1)
NUM_ENVS = 2


class StepType(Enum):
    """Place of an observation in its episode."""

    FIRST = "first"
    MID = "mid"
    LAST = "last"


def check_task(
    task: Task,
    make_env: Callable[..., Any] | None = None,
    make_vec: Callable[..., Any] | None = None,
    num_workers: Sequence[int] = (0, 2),
) -> None:
    """Check that a task keeps its contract.

    Its functions are pure: traced again, they are the same program, and they leave the task as it was. Shapes, dtypes,
    names of rewards and fields are those that were declared. Observations and rewards are finite under random actions,
    the reward is the sum of its weighted terms, and the same seed gives the same bits. With the two classes of envs,
    `UnilabEnv` and `UnilabVectorEnv`, it also checks the sequences of every autoreset mode and number of workers.

    Args:
        task: the task.
        make_env: class of the single env.
        make_vec: class of the vector env.
        num_workers: numbers of workers to check, at most 2.

    Raises:
        AssertionError, ValueError, TypeError: the task breaks the contract; the message says where.
    """
    env = Env(task)  # names, shapes and dtypes
    _ = env.state_packing
    _check_purity(env)
    _check_spaces(env)
    _check_episodes(Env(task, model=env.model, episode_steps=LIMIT))
    if make_env is not None and make_vec is not None:
        for mode, workers in product(AutoresetMode, num_workers):
            check_sequences(task, make_env, make_vec, mode, workers)


def check_sequences(
    task: Task, make_env: Callable[..., Any], make_vec: Callable[..., Any], mode: AutoresetMode, num_workers: int
) -> None:
    """Check the vector env against Gymnasium's own over single envs, and its steps against the table of sequences.

    Positions must have the same bits; observations and rewards are compared up to float32 rounding, since XLA may sum
    in another order for another number of envs.

    Raises:
        AssertionError: they differ; the message names mode, workers and step.
    """
    ours = make_vec(task, NUM_ENVS, num_workers=num_workers, autoreset_mode=mode, max_episode_steps=LIMIT)
    make_one = partial(make_env, task, max_episode_steps=LIMIT)
    theirs: Any = SyncVectorEnv([make_one] * NUM_ENVS, autoreset_mode=mode)
    try:
        _equal(theirs.reset(seed=7), ours.reset(seed=7), f"{mode.name}, {num_workers} workers, reset")
        space = ours.single_action_space
        rng, ended, age = np.random.default_rng(0), np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS, int)
        for t in range(STEPS):
            where = f"{mode.name}, {num_workers} workers, step {t}"
            if mode is AutoresetMode.DISABLED and ended.any():
                begun, also_begun = (envs.reset(options={"reset_mask": ended.copy()}) for envs in (theirs, ours))
                _equal(begun, also_begun, where)
                age[ended], ended = 0, np.zeros(NUM_ENVS, bool)
            action = rng.uniform(space.low, space.high, (NUM_ENVS, *space.shape)).astype(np.float32)
            expected, given = theirs.step(action), ours.step(action)
            _equal(expected, given, where)
            qpos = np.stack([each.qpos() for each in theirs.envs])
            np.testing.assert_array_equal(ours.qpos(), qpos, f"positions in {where}")
            was_ended, ended = ended, given[2] | given[3]
            is_reset = ended if mode is AutoresetMode.SAME_STEP else was_ended
            age = np.where(was_ended & (mode is AutoresetMode.NEXT_STEP), 0, age + 1)
            _check_row(mode, where, given, is_reset, age)
            age[ended & (mode is AutoresetMode.SAME_STEP)] = 0
    finally:
        ours.close()
        theirs.close()


def _check_row(mode: AutoresetMode, where: str, given: Any, is_reset: np.ndarray, age: np.ndarray) -> None:
    """One row of the table: the step types that follow from who was reset, against flags, rewards and infos."""
    _, reward, terminated, truncated, infos = given
    ended = terminated | truncated
    for env in range(NUM_ENVS):
        kind = StepType.FIRST if is_reset[env] else StepType.LAST if ended[env] else StepType.MID
        assert ended[env] == (age[env] == LIMIT or terminated[env]), f"{where}: env {env} is {kind} at age {age[env]}"
        if kind is StepType.FIRST and mode is AutoresetMode.NEXT_STEP:
            assert reward[env] == 0, f"{where}: the reward of a reset is {reward[env]}"
    has_final = infos.get("_final_obs", np.zeros(NUM_ENVS, bool))
    np.testing.assert_array_equal(has_final, ended & (mode is AutoresetMode.SAME_STEP), f"_final_obs in {where}")


def _equal(expected: Any, given: Any, where: str) -> None:
    """The same tree of arrays; numbers up to float32 rounding of the largest."""
    assert type(expected) is type(given), f"{where}: {type(given)}, expected {type(expected)}"
    if isinstance(expected, dict):
        assert expected.keys() == given.keys(), f"{where}: {sorted(given)}, expected {sorted(expected)}"
        for name in expected:
            _equal(expected[name], given[name], f"{where}, {name}")
    elif isinstance(expected, tuple):
        for number, pair in enumerate(zip(expected, given, strict=True)):
            _equal(*pair, f"{where}, part {number}")
    elif isinstance(expected, np.ndarray) and expected.dtype.hasobject:
        for pair in zip(expected, given, strict=True):
            _equal(*pair, where)
    elif expected is not None:
        assert expected.dtype == given.dtype, f"{where}: {given.dtype}, expected {expected.dtype}"
        exact = expected.dtype == bool
        scale = 0.0 if exact else 2e-6 * max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(given, expected, rtol=0.0 if exact else 1e-5, atol=scale, err_msg=where)


def _check_purity(env: Env) -> None:
    task, name = env.task, type(env.task).__name__
    before = copy.deepcopy(task)
    programs = [_programs(Env(task, model=env.model)) for _ in range(2)]
    assert programs[0] == programs[1], f"{name}: traced twice, its functions differ; let them depend on nothing else"
    assert task == before, f"{name}: its functions changed the task itself; they must be pure"


def _programs(env: Env) -> list[str]:
    """The functions of one env as JAX sees them, with their constants."""
    key, number = jax.random.key(0), np.int32(0)
    curriculum = env.task.curriculum()
    fields, action = np.zeros(env.field_size, np.float32), np.zeros(env.action_size, np.float32)
    begin = jax.make_jaxpr(env.begin)(key, number, number, curriculum)
    task_state = jax.eval_shape(env.begin, key, number, number, curriculum)[3]
    first = jax.make_jaxpr(env.first_state)(key, number, number, task_state, fields)
    state = jax.eval_shape(env.first_state, key, number, number, task_state, fields)
    control = jax.make_jaxpr(env.control)(state, action)
    advance = jax.make_jaxpr(env.advance)(state, fields, np.bool_(False), action, key, key, curriculum)
    programs = (begin, first, control, advance)
    return [f"{program} {[np.asarray(x).tolist() for x in program.consts]}" for program in programs]


def _check_spaces(env: Env) -> None:
    name, bounds = type(env.task).__name__, env.task.action_bounds(env.model)
    if bounds is not None:
        low, high = (np.asarray(bound) for bound in bounds)
        assert low.shape == high.shape == (env.action_size,), (
            f"{name}.action_bounds() have shapes {low.shape}, {high.shape}"
        )
        assert (low < high).all(), f"{name}.action_bounds(): {low} is not below {high}"
    for group, mirror in (env.task.mirror() or {}).items():
        size = {**env.obs_sizes, "action": env.action_size}.get(group)
        assert len(mirror.perm) == size, f"{name}.mirror() of {group!r} has {len(mirror.perm)} entries, expected {size}"


def _check_episodes(env: Env) -> None:
    """Two batches with the same seed and actions: the same bits, finite numbers, rewards that are sums of terms."""
    name, columns = type(env.task).__name__, env.columns
    first, again = Player(env), Player(env)
    rng, age = np.random.default_rng(0), np.zeros(NUM_ENVS, int)
    for t in range(STEPS):
        action = rng.uniform(first.low, first.high, (NUM_ENVS, env.action_size)).astype(np.float32)
        made, same = first.step(action), again.step(action)
        for (path, leaf), other in zip(
            jax.tree_util.tree_flatten_with_path(made)[0], jax.tree.leaves(same), strict=True
        ):
            where = f"{name}, step {t}, {jax.tree_util.keystr(path)}"
            assert leaf.tobytes() == other.tobytes(), f"{where}: not the same bits for the same seed and actions"
            assert np.isfinite(leaf).all(), f"{where}: not finite under random actions"
        outcome, totals = made
        terms = sum(totals[:, columns.names.index(f"reward:{term}")] for term in columns.terms)
        np.testing.assert_allclose(outcome.reward, terms, rtol=1e-5, atol=1e-5, err_msg=f"{name}, step {t}: reward")
        age += 1
        at_limit = (age == LIMIT) & (outcome.terminated == 0)
        np.testing.assert_array_equal(outcome.truncated, at_limit, f"{name}, step {t}: truncated at age {age}")
        age[outcome.terminated + outcome.truncated > 0] = 0


class Player:
    """A batch of `NUM_ENVS` envs that restart in the step in which they end."""

    def __init__(self, env: Env) -> None:
        self._batch = Batch(env, NUM_ENVS, seed=0)
        self._batch.attach(own_rows(self._batch), 0, env.task.curriculum())
        self._batch.restart(np.arange(NUM_ENVS))
        self._control = jax.jit(jax.vmap(env.control))
        bounds = env.task.action_bounds(env.model)
        self.low: np.ndarray = -np.ones(env.action_size) if bounds is None else bounds[0]
        self.high: np.ndarray = np.ones(env.action_size) if bounds is None else bounds[1]

    def step(self, action: np.ndarray) -> Any:
        """One env step under actions [N, A]: its outcome, and the totals of the step [N, columns]."""
        batch = self._batch
        controls = {name: np.asarray(value) for name, value in self._control(batch.state, action).items()}
        outcome = batch.step_alone(action, controls, NOBODY)
        batch.restart(np.flatnonzero(outcome.terminated + outcome.truncated))
        return outcome, np.asarray(batch.state.step_totals)
