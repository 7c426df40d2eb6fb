"""`unilab bench scaling`: collecting with 1, 2, ... workers; and with more than there are cores, by stubs that sleep.

A stub worker writes what a worker writes and sleeps for the time of the physics, so what a rollout takes beyond that
sleep is the runtime's own: publishing the policy, handing out jobs, waking up, and the messages that they are done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unilab.bench.collection import Collection
from unilab.bench.compare import DEFAULT_TASKS
from unilab.bench.light import LightPlan
from unilab.bench.measure import Contender, Tell, close_all, interleaved, median_ratio
from unilab.bench.raw import LIMIT, RawStepping
from unilab.bench.recording import record
from unilab.bench.result import Row, make_result, make_row, model_options
from unilab.bench.stub import StubSettings
from unilab.config import make_config
from unilab.cores import usable_cores
from unilab.runtime.plan import Plan

SHARD_SIZE = 128
"""Envs of a stub worker: one shard each."""
ROLLOUT_STEPS = 32


def bench_scaling(
    tell: Tell, tasks: Sequence[str] = DEFAULT_TASKS, num_envs: Sequence[int] = (1024,), workers: Sequence[int] = (),
    stub_workers: Sequence[int] = (16, 64), physics_us: float | None = None, seconds: float = 1.0, repeats: int = 5,
) -> dict[str, Any]:  # fmt: skip
    """Measure collection over the number of workers.

    Args:
        num_envs: envs of the real workers together; each number is measured.
        workers: real workers; by default 1, 2, 4, ... up to the cores.
        stub_workers: stub workers, `SHARD_SIZE` envs each.
        physics_us: microseconds of physics in an env step that stubs sleep; by default what the limit measured.
        seconds: how long the physical limit is stepped at a time.
        repeats: rounds that count; a round before them warms up.
    """
    workers = tuple(workers) or _up_to(usable_cores())
    rows: list[Row] = []
    for task in tasks:
        for count in num_envs:
            rows += _Scaling(task, count, workers, stub_workers, physics_us, seconds, repeats, tell).rows()
    options = {
        "tasks": tasks, "num_envs": num_envs, "workers": workers, "stub_workers": stub_workers,
        "physics_us": physics_us, "seconds": seconds, "repeats": repeats, "rollout_steps": ROLLOUT_STEPS,
        "stub_shard_size": SHARD_SIZE,
    }  # fmt: skip
    return make_result("scaling", options, rows)


@dataclass(frozen=True)
class _Scaling:
    """The measurement of one task at one number of envs."""

    task: str
    num_envs: int
    workers: tuple[int, ...]
    stub_workers: Sequence[int]
    physics_us: float | None
    seconds: float
    repeats: int
    tell: Tell

    def rows(self) -> list[Row]:
        real, limits = self._real()
        base = real[self.workers[0]]
        options = model_options(record(self.task).env.model, record(self.task).env.substeps)
        rows = [
            make_row(
                "mujoco", self.task, self.num_envs, count, real[count], real[count], limits[count],
                speedup=median_ratio(real[count], base), model=options,
            )
            for count in self.workers
        ]  # fmt: skip
        measured_us = 1e6 * self.workers[0] / statistics.median(limits[self.workers[0]])
        step_s = 1e-6 * SHARD_SIZE * (self.physics_us or measured_us)
        return rows + [self._stub_row(count, step_s, rows[0]["ratio_to_limit"]) for count in self.stub_workers]

    def _real(self) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Rates by the number of workers: collected, and of the physical limit."""
        contenders: list[Contender] = []
        try:
            for count in self.workers:
                self.tell(f"{self.task}, {self.num_envs} envs, {count} workers: starting")
                config = make_config(self.task, num_envs=self.num_envs, workers=count, lag=0, **_rollout()).resolved()
                contenders.append(Collection(f"{count} workers", Plan.of(config)))
                limit = RawStepping(record(self.task), self.num_envs, count, self.seconds)
                limit.name = f"{LIMIT} of {count}"
                contenders.append(limit)
            rates = interleaved(contenders, self.repeats, self.tell, self.task)
        finally:
            close_all(contenders)
        collected = {count: rates[f"{count} workers"] for count in self.workers}
        return collected, {count: rates[f"{LIMIT} of {count}"] for count in self.workers}

    def _stub_row(self, count: int, step_s: float, in_worker: float) -> Row:
        """Stubs with a shard each: a rollout would ideally take `ROLLOUT_STEPS` steps of `step_s` seconds."""
        self.tell(f"{self.task}: {count} stub workers: starting")
        config = make_config(
            self.task, num_envs=count * SHARD_SIZE, workers=count, lag=0, **(_rollout() | {"shard_size": SHARD_SIZE})
        ).resolved()
        plan = LightPlan.light(config, "unilab.bench.stub:StubRunner", StubSettings(SHARD_SIZE, step_s))
        stubs = Collection(f"{count} stubs", plan)
        try:
            rates = interleaved([stubs], self.repeats, self.tell, self.task)[stubs.name]
        finally:
            stubs.close()
        ideal_s = ROLLOUT_STEPS * step_s
        ideal = [config.env_steps_per_iteration / ideal_s] * len(rates)
        efficiency = median_ratio(rates, ideal)
        assert efficiency is not None
        overhead_s = statistics.median(config.env_steps_per_iteration / rate - ideal_s for rate in rates)
        return make_row(
            "stub", self.task, config.num_envs, count, rates, None, ideal, efficiency=efficiency,
            overhead_ms_per_rollout=1e3 * overhead_s,
            rollout_ms=1e3 * ideal_s, projected_efficiency=efficiency * in_worker,
        )  # fmt: skip


def _rollout() -> dict[str, Any]:
    """Settings of PPO that decide what a rollout holds; nothing is learned."""
    return {"algo.rollout_steps": ROLLOUT_STEPS, "algo.minibatches": 4, "shard_size": None}


def _up_to(cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of cores."""
    return tuple(sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores}))
