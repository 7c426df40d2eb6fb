"""How fast the workers collect, beside the physical limit of the same run.

The limit is what remains when everything but MuJoCo is taken away: the same workers set the recorded states, apply the
very controls that the policy chose, with the same per-env models, and only the calls of `mj_step` are timed, and of
`mj_rnePostConstraint` where the task reads what that computes. The replayed states are compared with the recorded ones
bit for bit, so it is the same physics.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np

from unilab.bench.collection import Collection
from unilab.bench.measure import Tell
from unilab.bench.result import Row, make_result, make_row, model_options
from unilab.config import Config
from unilab.envs.physics.mujoco import STATE, MujocoPhysics, needs_rne_post
from unilab.envs.registry import task_source
from unilab.runtime.checkpoint import load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.job import JobRunner
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job, Report
from unilab.runtime.plan import Plan
from unilab.runtime.run import algorithm_from
from unilab.runtime.unstable import recorded

REPLAYED = ("mujoco", "mjbatch")
"""Physics back ends that step as `mj_step` does from their state rows, bit for bit."""


def bench_collect(
    tell: Tell, config: Config, run: Path | None = None, repeats: int = 5, warm_up: int = 3
) -> dict[str, Any]:
    """Measure collection against its physical limit, alternating between the two.

    Args:
        tell: shows progress.
        config: task, envs, shards and workers to measure with; at least one worker process.
        run: a run folder whose policy acts; without one, the untrained policy does.
        repeats: rollouts measured; medians are reported.
        warm_up: rollouts before that, for compilation and for the envs to spread out.

    Raises:
        ValueError: another physics than upstream MuJoCo, or no worker process.
        RuntimeError: a replayed physics step differs from the recorded one.
    """
    if config.physics not in REPLAYED:
        raise ValueError(
            f"physics is {config.physics!r}; bench collect replays upstream MuJoCo's own steps, bit for bit; "
            f"allowed: {', '.join(REPLAYED)}"
        )
    config = config.resolved()
    assert config.workers is not None
    if config.workers < 1:
        raise ValueError(f"workers is {config.workers}; bench collect measures worker processes: at least 1")
    plan = replace(Plan.of(config), runner="unilab.bench.collect:ReplayingRunner")
    state = plan.algorithm.init(jax.random.key(config.seed))
    if run is not None:
        _, trained, _ = algorithm_from(load_checkpoint(run, "best"))
        state = plan.algorithm.policy_from(state, trained)
    collect_s, limit_s = [], []
    with contextlib.closing(Collection(config.physics, plan, state)) as collection:
        for number in range(warm_up + repeats):
            seconds = collection.rollout()
            if number >= warm_up:
                collect_s.append(seconds)
                limit_s.append(_limit_seconds(collection.collector, number, plan.num_shards) / config.workers)
                tell(f"rollout {number - warm_up + 1}/{repeats}: {config.env_steps_per_iteration / seconds:,.0f}/s")
    return make_result("collect", _options(config, run, repeats), [_row(plan, collect_s, limit_s)])


def _options(config: Config, run: Path | None, repeats: int) -> dict[str, Any]:
    return {"policy": str(run) if run is not None else "untrained", "repeats": repeats, "config": config.to_json()}


def _row(plan: Plan, collect_s: list[float], limit_s: list[float]) -> Row:
    config = plan.config
    assert config.workers is not None
    env_steps = config.env_steps_per_iteration
    rates, limits = [env_steps / s for s in collect_s], [env_steps / s for s in limit_s]
    overheads = [1e6 * config.workers * (a - b) / env_steps for a, b in zip(collect_s, limit_s, strict=True)]
    return make_row(
        config.physics, task_source(type(config.task)) or type(config.task).__name__, config.num_envs, config.workers,
        rates, rates, limits, shard_size=config.shard_size, randomised=list(plan.env.randomised),
        limit_env_steps_per_s=statistics.median(limits), overhead_us_per_env_step=statistics.median(overheads),
        model=model_options(plan.model, plan.env.substeps), limits=limits,
    )  # fmt: skip


def _limit_seconds(collector: Collector, index: int, num_shards: int) -> float:
    """Seconds that all workers together spend in MuJoCo for rollout `index`."""
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
        """Seconds in MuJoCo alone. Everything else happens outside the timed loop."""
        physics, step, rne_post, seconds = self._physics, mujoco.mj_step, mujoco.mj_rnePostConstraint, 0.0
        with_rne_post = needs_rne_post(physics.field_specs)
        state = np.empty(before.shape[2])
        for t in range(len(before)):
            for env, (model, data) in enumerate(self._replicas):
                if t == 0 or not np.array_equal(model_rows[t, env], model_rows[t - 1, env]):
                    physics.write_model(model, model_rows[t, env])
                mujoco.mj_setState(model, data, before[t, env], STATE)
            start = time.perf_counter()
            for model, data in self._replicas:
                step(model, data, physics.substeps)
                if with_rne_post:
                    rne_post(model, data)
            seconds += time.perf_counter() - start
            for env, (model, data) in enumerate(self._replicas):
                mujoco.mj_getState(model, data, state, STATE)
                if not np.array_equal(state, after[t, env], equal_nan=True):
                    raise RuntimeError(
                        f"replayed physics differs from the recorded one at step {t}, env {env} of the shard"
                    )
        return seconds
