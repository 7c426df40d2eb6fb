"""How fast the workers collect, beside the physical limit of the same run.

The limit is what remains when everything but `mj_step` is taken away: the same workers set the recorded states, apply
the very controls that the policy chose, with the same per-env models, and only the calls of `mj_step` are timed. The
replayed states are compared with the recorded ones bit for bit, so it is the same physics.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np

from unilab.config import Config
from unilab.envs.physics.mujoco import STATE, MujocoPhysics
from unilab.envs.physics.registry import physics_class
from unilab.runtime.checkpoint import load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.job import Job, JobRunner, Report
from unilab.runtime.memory import Memory
from unilab.runtime.metrics import machine, versions
from unilab.runtime.plan import Plan
from unilab.runtime.run import algorithm_from
from unilab.runtime.unstable import recorded


def bench_collect(config: Config, run: Path | None = None, repeats: int = 5, warm_up: int = 3) -> dict[str, Any]:
    """Measure collection against its physical limit, alternating between the two.

    Args:
        config: task, envs, shards and workers to measure with; at least one worker process.
        run: a run folder whose policy acts; without one, the untrained policy does.
        repeats: rollouts measured; medians are reported.
        warm_up: rollouts before that, for compilation and for the envs to spread out.

    Raises:
        RuntimeError: a replayed physics step differs from the recorded one.
    """
    config = config.resolved()
    assert config.workers is not None
    if not issubclass(physics_class(config.physics), MujocoPhysics):
        raise ValueError(f"physics is {config.physics!r}; bench collect replays MuJoCo's own steps: mujoco or mjbatch")
    if config.workers < 1:
        raise ValueError(f"workers is {config.workers}; bench collect measures worker processes: at least 1")
    plan = replace(Plan.of(config), runner="unilab.bench.collect:ReplayingRunner")
    state = plan.algorithm.init(jax.random.key(config.seed))
    if run is not None:
        _, trained, _ = algorithm_from(load_checkpoint(run, "best"))
        state = plan.algorithm.policy_from(state, trained)
    env_steps = config.env_steps_per_iteration
    collect_s, limit_s = [], []
    with Collector(plan) as collector:
        for version in range(warm_up + repeats + 1):
            collector.publish(version, plan.algorithm.snapshot(state), plan.initial_curriculum())
            if version == 0:
                collector.schedule.begin()
                continue
            k = version - 1
            collector.publish(k, plan.algorithm.snapshot(state), plan.initial_curriculum())
            collector.schedule.start_rollout(k)
            seconds = collector.schedule.finish_rollout(k)
            if k >= warm_up:
                collect_s.append(seconds)
                limit_s.append(_limit_seconds(collector, k, plan.num_shards) / config.workers)
    collect, limit = statistics.median(collect_s), statistics.median(limit_s)
    return {
        "task": type(config.task).__name__,
        "num_envs": config.num_envs,
        "shard_size": config.shard_size,
        "workers": config.workers,
        "substeps": plan.env.substeps,
        "physics_dt": plan.model.opt.timestep,
        "policy": str(run) if run is not None else "untrained",
        "randomised": list(plan.env.randomised),
        "env_steps_per_s": env_steps / collect,
        "limit_env_steps_per_s": env_steps / limit,
        "ratio": statistics.median(b / a for a, b in zip(collect_s, limit_s, strict=True)),
        "overhead_us_per_env_step": statistics.median(
            1e6 * config.workers * (a - b) / env_steps for a, b in zip(collect_s, limit_s, strict=True)
        ),
        "collect_s": collect_s,
        "limit_s": limit_s,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
    }


def _limit_seconds(collector: Collector, index: int, num_shards: int) -> float:
    """Seconds that all workers together spend in `mj_step` for rollout `index`."""
    for shard in range(num_shards):
        collector.pool.submit(Job("replay", index, shard, index))
    reports = [collector.pool.wait() for _ in range(num_shards)]
    return sum(report.seconds for report in reports)


class ReplayingRunner(JobRunner):
    """A worker's job runner that also does "replay": a rollout again, recorded, then its physics alone, timed."""

    def __init__(self, plan: Plan, memories: dict[str, Memory], number: int = 0) -> None:
        super().__init__(plan, memories, number)
        model = self._physics.model
        self._replicas = [(copy.copy(model), mujoco.MjData(model)) for _ in range(plan.shard_size)]

    @property
    def _physics(self) -> MujocoPhysics:
        assert isinstance(self.batch.physics, MujocoPhysics)
        return self.batch.physics

    def run(self, job: Job) -> Report:
        if job.kind != "replay":
            return super().run(job)
        before, after, model_rows = self._record(job)
        return Report(job, self._replay(before, after, model_rows))

    def _record(self, job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Run the rollout of `job` again; states [T, S, n] around each physics call, and model rows [T, S, m]."""
        physics = self._physics
        before, after, model_rows = [], [], []

        def record(states: np.ndarray, unstable: np.ndarray) -> None:
            before.append(states)
            after.append(physics.rows.state.copy())
            model_rows.append(physics.rows.model.copy())

        with recorded(physics, record):
            super().run(job._replace(kind="rollout"))
        return np.array(before), np.array(after), np.array(model_rows)

    def _replay(self, before: np.ndarray, after: np.ndarray, model_rows: np.ndarray) -> float:
        """Seconds in `mj_step` alone. Everything else happens outside the timed loop."""
        physics, step, seconds = self._physics, mujoco.mj_step, 0.0
        state = np.empty(before.shape[2])
        for t in range(len(before)):
            for env, (model, data) in enumerate(self._replicas):
                if t == 0 or not np.array_equal(model_rows[t, env], model_rows[t - 1, env]):
                    physics.write_model(model, model_rows[t, env])
                mujoco.mj_setState(model, data, before[t, env], STATE)
            start = time.perf_counter()
            for model, data in self._replicas:
                step(model, data, physics.substeps)
            seconds += time.perf_counter() - start
            for env, (model, data) in enumerate(self._replicas):
                mujoco.mj_getState(model, data, state, STATE)
                if not np.array_equal(state, after[t, env], equal_nan=True):
                    raise RuntimeError(
                        f"replayed physics differs from the recorded one at step {t}, env {env} of the shard"
                    )
        return seconds
