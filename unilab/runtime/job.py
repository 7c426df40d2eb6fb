"""The work that workers do. The same code runs in the parent with `workers=0`: the debugger's friend and the oracle."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from unilab.algos.algorithm import Algorithm
from unilab.envs.batch import Batch, own_rows
from unilab.envs.env import EnvState
from unilab.runtime.bank import Bank
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job, Report
from unilab.runtime.plan import Plan
from unilab.runtime.ring import Ring
from unilab.runtime.snapshots import Snapshots
from unilab.runtime.unstable import UnstableEnv, describe

MAX_RECORDED = 3
"""Unstable envs that a worker describes; after them it only counts."""


class JobRunner:
    """Runs jobs against the shared memories.

    Args:
        plan: what the parent and the workers agree on.
        memories: the shared memories by the names in `Layout`.
        number: of this worker, whose progress word counts the env steps of its shards.
    """

    def __init__(self, plan: Plan, memories: dict[str, Memory], number: int = 0) -> None:
        self.plan = plan
        self.bank = Bank(memories["bank"])
        self.ring = Ring(memories["ring"])
        self.snapshots = Snapshots(memories["snapshots"], plan.snapshot_packing)
        self._evaluation = memories["evaluation"].arrays["totals"]
        self._progress = memories["progress"].arrays["steps"][number : number + 1]
        self.algorithm: Algorithm = plan.algorithm
        self.batch = Batch(plan.env, plan.shard_size, plan.config.seed, plan.config.physics)
        self._policy = jax.jit(self._act)
        self._noise = jax.jit(jax.vmap(jax.vmap(self.algorithm.draw_noise), in_axes=(0, None)))
        self._deterministic_policy = jax.jit(self._act_deterministic)
        self._recordings_left = MAX_RECORDED

    def run(self, job: Job) -> Report:
        """Do a job; everything it makes is in shared memory when this returns."""
        start = time.perf_counter()
        self.job = job
        {"begin": self._begin, "rollout": self.rollout, "evaluate": self._evaluate}[job.kind](job)
        seconds = time.perf_counter() - start
        return Report(job, seconds, self._unstable_envs(job) if job.kind == "rollout" else ())

    def _begin(self, job: Job) -> None:
        size = self.plan.shard_size
        first = job.shard * size
        snapshot = self.snapshots.read(job.version)
        self.batch.attach(self.bank.rows(0, first, size), first, snapshot["curriculum"])
        self.batch.begin(random_ages=True)
        self.batch.close_rollout()

    def rollout(self, job: Job, on_step: Callable[[int, EnvState, jax.Array], None] | None = None) -> None:
        """Collect a rollout; `on_step` is told the step, the states before it and the action."""
        size, num_steps = self.plan.shard_size, self.plan.rollout_steps
        first = job.shard * size
        snapshot = self.snapshots.read(job.version)
        self.batch.attach(self.bank.copy_forward(job.number, first, size), first, snapshot["curriculum"])
        keys = self.batch.open_rollout(job.number * num_steps, num_steps)
        noise = self._noise(keys, self.batch.env_ids)
        columns = self.ring.columns(job.number, first, size)
        for t in range(num_steps):
            state = self.batch.state
            action = self.step(t, snapshot, noise, columns)
            if on_step is not None:
                on_step(t, state, action)
        for target, totals in zip(self.ring.totals(job.number), self.batch.close_rollout(), strict=True):
            target[first : first + size] = totals

    def step(self, t: int, snapshot: Any, noise: jax.Array, columns: dict[str, np.ndarray]) -> jax.Array:
        """One env step of the shard: act, physics, advance. Row t of the columns [T, S, ...] is written; returns the
        action [S, A]."""
        obs, action, extras, controls = self._policy(snapshot["policy"], self.batch.state, noise, np.int32(t))
        outcome = self.batch.step(t, action, {name: np.asarray(value) for name, value in controls.items()})
        values = {"action": action, **extras}
        values |= {f"obs/{group}": value for group, value in obs.items()}
        values |= {f"final_obs/{group}": outcome.final_obs[group] for group in self.algorithm.final_groups}
        for name, column in columns.items():
            column[t] = values[name] if name in values else getattr(outcome, name)
        self._progress += 1
        return action

    def _unstable_envs(self, job: Job) -> tuple[UnstableEnv, ...]:
        if not self._recordings_left:
            return ()
        found = describe(self, job, self._recordings_left)
        self._recordings_left -= len(found)
        return found

    def _evaluate(self, job: Job) -> None:
        batch, size = self._evaluation_batch, self.plan.evaluation_shard_size
        first = job.shard * size
        snapshot = self.snapshots.read(job.version)
        batch.attach(self._evaluation_rows, first, snapshot["curriculum"])
        batch.begin(random_ages=False)
        batch.open_rollout(0, self.plan.evaluation_env.task.episode_steps)
        totals = np.zeros((size, self._evaluation.shape[1]), np.float32)
        is_open = np.ones(size, bool)
        for t in range(self.plan.evaluation_env.task.episode_steps):
            action, controls = self._deterministic_policy(snapshot["policy"], batch.state)
            outcome = batch.step(t, action, {name: np.asarray(value) for name, value in controls.items()})
            self._progress += 1
            has_ended = is_open & (outcome.terminated + outcome.truncated > 0)
            if has_ended.any():
                totals[has_ended] = batch.ended_totals()[has_ended]
                is_open &= ~has_ended
                if not is_open.any():
                    break
        self._evaluation[first : first + size] = totals

    @cached_property
    def _evaluation_batch(self) -> Batch:
        plan = self.plan
        return Batch(plan.evaluation_env, plan.evaluation_shard_size, plan.config.eval_seed, plan.config.physics)

    @cached_property
    def _evaluation_rows(self) -> Any:
        return own_rows(self._evaluation_batch)

    def _act(self, policy: Any, state: EnvState, noise: jax.Array, t: jax.Array) -> Any:
        action, extras = self.algorithm.act(policy, state.obs, noise[t])
        controls = jax.vmap(self.plan.env.control)(state, action)
        return state.obs, action, extras, controls

    def _act_deterministic(self, policy: Any, state: EnvState) -> Any:
        action = self.algorithm.act_deterministic(policy, state.obs)
        return action, jax.vmap(self.plan.evaluation_env.control)(state, action)
