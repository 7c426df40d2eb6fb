"""The proof of exactness: one training under every condition that must not matter, and how far simulations drift."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.config import Config
from unilab.envs.batch import Batch, own_rows
from unilab.envs.env import Env
from unilab.envs.physics.registry import physics_class, physics_entry
from unilab.envs.task import Task
from unilab.runtime.digest import Difference, Trace
from unilab.runtime.job import JobRunner
from unilab.runtime.plan import Plan
from unilab.runtime.resume import resume
from unilab.runtime.train import ready_plan, train_plan

DIES_IN_ROLLOUT = 1


@dataclass(frozen=True)
class Row:
    """One condition of the matrix.

    Attributes:
        name: the condition.
        digest: of all rollouts and weights.
        difference: the first one to the reference, or None.
        reference: name of the row that it is compared with; its own for a reference.
    """

    name: str
    digest: str
    difference: Difference | None
    reference: str

    @property
    def is_equal(self) -> bool:
        return self.difference is None


class DyingRunner(JobRunner):
    """A worker's job runner that kills its process, once, in the middle of a rollout."""

    def step(self, t: int, *args: Any) -> jax.Array:
        job = self.job
        is_due = (job.kind, job.number, job.shard, job.attempt) == ("rollout", DIES_IN_ROLLOUT, 0, 0)
        if is_due and t == self.plan.rollout_steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(t, *args)


def determinism(config: Config, iterations: int = 5, show: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """Train for a few iterations under each condition and compare everything that was computed.

    Args:
        config: what to train; its `steps`, `workers`, `lag` and `job_order` are set here.
        iterations: passes of the main loop, at least 3.
        show: told of each row as soon as it is there.
    """
    if iterations < 3:
        raise ValueError(f"iterations is {iterations}; allowed: at least 3, so that there is something to interrupt")
    warm_up, collected = getattr(config.algo, "warm_up_steps", 0), iterations // 2 * config.env_steps_per_iteration
    if warm_up > collected:
        raise ValueError(
            f"algo.warm_up_steps is {warm_up}, but half of {iterations} iterations collects {collected} env steps: too "
            f"little would be learned to prove anything; use --algo.warm-up-steps {collected}, or more --iterations"
        )
    if physics_entry(config.physics).on_device or not physics_class(config.physics).exact_state:
        raise ValueError(
            f"physics is {config.physics!r}, which has no workers to compare or no state to go on from; allowed: "
            "mujoco, mjbatch, mujoco-uni"
        )
    config = replace(
        config,
        steps=iterations * config.env_steps_per_iteration,
        eval_every=2**62,
        eval_episodes=1,
        digest=True,
        lag=0,
        save_replay=True,
    )
    matrix = _Matrix(config, show)
    reference = "one worker"
    matrix.add(reference, reference, workers=1)
    matrix.add("the same seed again", reference, workers=1)
    for workers in (0, 2, 3):
        matrix.add(f"{workers} workers", reference, workers=workers)
    matrix.add("shuffled completion", reference, workers=2, job_order="shuffled")
    if hasattr(os, "sched_setaffinity"):
        with _one_core():
            matrix.add("one core only", reference, workers=2)
    matrix.add("a worker killed", reference, workers=2, runner="unilab.runtime.determinism:DyingRunner")
    matrix.add("stopped and resumed", reference, workers=2, stop_after=iterations // 2)
    overlapped = "lag 1"
    matrix.add(overlapped, overlapped, workers=1, lag=1)
    matrix.add("lag 1 again", overlapped, workers=3, lag=1, job_order="shuffled")
    matrix.add("lag 1, a worker killed", overlapped, workers=2, lag=1, runner="unilab.runtime.determinism:DyingRunner")
    matrix.add("lag 1, stopped and resumed", overlapped, workers=2, lag=1, stop_after=iterations // 2)
    return matrix.rows


class _Matrix:
    """Runs the conditions one after the other and keeps the traces of the references."""

    def __init__(self, config: Config, show: Callable[[Row], None]) -> None:
        self._config, self._show = config, show
        self._traces: dict[str, Trace] = {}
        self.rows: list[Row] = []

    def add(
        self, name: str, reference: str, runner: str | None = None, stop_after: int | None = None, **changes: Any
    ) -> None:
        plan = ready_plan(replace(self._config, **changes))
        if runner is not None:
            plan = replace(plan, runner=runner)
        trace = Trace()
        with tempfile.TemporaryDirectory(prefix="unilab-") as folder:
            summary = _train(plan, Path(folder) / "run", trace, stop_after)
        if summary["replaced_workers"] != (runner is not None):
            raise RuntimeError(f"{name}: {summary['replaced_workers']} workers were replaced; this proves nothing")
        difference = trace.difference(self._traces.setdefault(reference, trace))
        self.rows.append(Row(name, summary["digest"], difference, reference))
        self._show(self.rows[-1])


def _train(plan: Plan, run: Path, trace: Trace, stop_after: int | None) -> dict[str, Any]:
    """Train, and return the summary; if wanted, stop after so many iterations and resume with other workers."""
    if stop_after is None:
        return train_plan(plan, run, trace=trace).summary
    train_plan(plan, run, callback=lambda row: row["iteration"] == stop_after, trace=trace)
    return resume(run, workers=3, trace=trace, task_class=type(plan.config.task)).summary


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Let this process, all its threads and the processes that it starts run on one core only."""
    cores = os.sched_getaffinity(0)
    threads = [int(thread) for thread in os.listdir("/proc/self/task")]
    try:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, {min(cores)})
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


def variability(
    task: Task, num_envs: int = 16, warm_up: int = 100, steps: int = 1000, seed: int = 0
) -> dict[str, float]:
    """How far equal simulations drift apart, by the two figures of GPUSimBench (arXiv 2607.13059).

    Args:
        num_envs: identical envs in the batch.
        warm_up: env steps before anything is compared.
        steps: env steps over which distances are taken.

    Returns:
        `between_runs`, `between_envs`: the largest distance of any entry of qpos and qvel, of the same env in two runs
        and of two envs in one batch.
    """
    first, second = (_trajectory(task, num_envs, warm_up + steps, seed)[warm_up:] for _ in range(2))
    return {"between_runs": _distance(first, second), "between_envs": _distance(first, first[:, :1])}


def _trajectory(task: Task, num_envs: int, steps: int, seed: int) -> np.ndarray:
    """qpos and qvel [steps, num_envs, nq + nv] of envs that start alike and get the same random actions."""
    env = Env(task)
    key, first = jax.random.key(seed), jnp.int32(0)
    curriculum = jax.tree.map(np.asarray, task.curriculum())
    qpos, qvel, randomised, state = env.begin(key, first, first, curriculum)
    batch = Batch(env, num_envs, seed)
    physics = batch.physics
    physics.attach(own_rows(batch).physics)

    def copies(x: Any) -> np.ndarray:
        return np.repeat(np.asarray(x)[None], num_envs, axis=0)

    physics.reset(np.arange(num_envs), copies(qpos), copies(qvel), jax.tree.map(copies, randomised))
    actions = jax.random.normal(key, (steps, env.action_size))
    controls = jax.tree.map(np.asarray, jax.jit(jax.vmap(task.control, in_axes=(None, 0)))(state, actions))
    path = []
    for t in range(steps):
        physics.step({name: copies(value[t]) for name, value in controls.items()})
        path.append(np.concatenate([physics.qpos, physics.qvel], axis=1))
    return np.array(path)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, np.abs(a - b)), initial=0.0))
