"""The states that a task meets under random actions, so that every engine's raw speed is taken on the same physics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from unilab.bench.engines import engine_demands, make_engine
from unilab.envs.batch import Batch, own_rows
from unilab.envs.env import Env
from unilab.envs.physics.mujoco import MujocoPhysics, needs_rne_post, state_slices
from unilab.envs.physics.registry import DEFAULT
from unilab.envs.registry import find_task
from unilab.runtime.unstable import recorded

SETTLE_STEPS = 64
"""Env steps before the recording, for the envs to spread out."""


@dataclass(frozen=True)
class Recording:
    """Physics of some envs over some env steps.

    Attributes:
        env: the task with its model.
        states: `mjSTATE_INTEGRATION` before each env step, controls applied [T, S, n].
    """

    env: Env
    states: np.ndarray

    def part(self, name: str) -> np.ndarray:
        """A part of the states, such as "qpos" or "ctrl" [T, S, m]."""
        return self.states[..., state_slices(self.env.model)[name]]

    @property
    def needs_rne_post(self) -> bool:
        """Whether an env step includes `mj_rnePostConstraint`, since the task reads what it computes."""
        return needs_rne_post(self.env.field_specs)


@cache
def record(task_name: str, num_envs: int = 64, num_steps: int = 32, seed: int = 0) -> Recording:
    """Let a registered task run under actions that are drawn evenly from its bounds."""
    env = Env(find_task(task_name)())
    batch, rng, states = Batch(env, num_envs, seed), np.random.default_rng(seed), []
    batch.attach(own_rows(batch), 0, jax.tree.map(np.asarray, env.task.curriculum()))
    batch.begin(random_ages=True)
    batch.open_rollout(0, SETTLE_STEPS + num_steps)
    control = jax.jit(jax.vmap(env.control))
    low, high = env.task.action_bounds(env.model) or (-1.0, 1.0)
    assert isinstance(batch.physics, MujocoPhysics)
    with recorded(batch.physics, lambda before, unstable: states.append(before)):
        for t in range(SETTLE_STEPS + num_steps):
            action = rng.uniform(low, high, (num_envs, env.action_size)).astype(np.float32)
            controls: dict[str, Any] = control(batch.state, action)
            batch.step(t, action, {name: np.asarray(value) for name, value in controls.items()})
    return Recording(env, np.array(states[SETTLE_STEPS:]))


@cache
def record_physics(task_name: str) -> Recording:
    """The states that follow from the first ones of `record(task_name)` and its controls where nothing restarts."""
    recording = record(task_name)
    env, states = recording.env, []
    engine, _ = make_engine(DEFAULT, engine_demands(env), recording.states.shape[1])
    assert isinstance(engine, MujocoPhysics)
    qpos, qvel, ctrl = map(recording.part, ("qpos", "qvel", "ctrl"))
    engine.reset(np.arange(len(qpos[0])), qpos[0], qvel[0], {})
    with recorded(engine, lambda before, unstable: states.append(before)):
        for controls in ctrl:
            engine.step({"ctrl": controls.astype(np.float32)})
    return Recording(env, np.array(states))
