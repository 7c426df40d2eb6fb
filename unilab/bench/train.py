"""`unilab bench train`: whole trainings: time to a target, or env steps per second beside SBX."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unilab.bench.compare import DEFAULT_TASKS
from unilab.bench.learner import OURS, ROLLOUT_STEPS, learner_config, sbx_settings, sbx_skipped
from unilab.bench.measure import Tell, close_all
from unilab.bench.result import Row, make_result, make_row
from unilab.bench.sbx import Sbx
from unilab.config import Config, make_config
from unilab.cores import usable_cores
from unilab.runtime.plan import Plan
from unilab.runtime.train import train
from unilab.runtime.xla import set_learner_threads

WARM_UP_ITERATIONS = 4
"""Passes of the main loop before the first that counts: some collect random actions, one compiles the update."""
VEC_ENVS = ("dummy", "subproc")
NUM_ENVS, REPEATS = 32, 5


def bench_train(
    tell: Tell, algo: Sequence[str] = ("sac",), tasks: Sequence[str] = DEFAULT_TASKS, num_envs: Sequence[int] = (),
    workers: Sequence[int] = (), repeats: int | None = None, target: float | None = None, steps: int | None = None,
    sbx_python: str | None = None, sbx_vec_env: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Train end to end.

    Args:
        num_envs: by default 32, or with a target the task's own number.
        repeats: iterations that count, without a target; by default 5.
        target: return of an evaluation that ends the training. Without one, env steps per second are measured over
            `repeats` iterations, between which SBX trains for as many env steps: one update per env step on both sides,
            batch 256, two hidden layers of 256, the same number of envs, threads and steps between updates.
        steps: env steps after which a training to a target is given up; by default the task's own number.
        sbx_python: interpreter that has sbx-rl and gymnasium[mujoco]; without it SBX is skipped.
        sbx_vec_env: "dummy" (one process) or "subproc" (a process for each env), or both; by default the former.

    Raises:
        ValueError: an option that would have no effect beside the others.
    """
    _require_effect(target, repeats, steps, sbx_python, sbx_vec_env)
    repeats, sbx_vec_env = repeats or REPEATS, tuple(sbx_vec_env) or VEC_ENVS[:1]
    threads, rows = set_learner_threads(None), list[Row]()
    versions: dict[str, str] = {}
    for name in algo:
        for task in tasks:
            for count in tuple(num_envs) or (NUM_ENVS if target is None else None,):
                for processes in tuple(workers) or (usable_cores(),):
                    if target is not None:
                        given = {"workers": processes, "num_envs": count, "steps": steps}
                        given = {key: value for key, value in given.items() if value is not None}
                        config = make_config(task, name, **given).resolved()
                        rows.append(_to_target(config, task, target, tell))
                        continue
                    assert count is not None
                    pace = _Pace(name, task, count, processes, repeats, tell)
                    rows += pace.measure(sbx_python, sbx_vec_env, threads)
                    versions |= pace.sbx_versions
    options = {
        "algo": algo, "tasks": tasks, "num_envs": num_envs, "workers": workers, "repeats": repeats, "target": target,
        "steps": steps, "learner_threads": threads, "sbx_vec_env": sbx_vec_env, "sbx": versions,
    }  # fmt: skip
    is_beside = target is not None or sbx_python is not None
    return make_result("train", options, rows, [] if is_beside else [sbx_skipped()])


def _require_effect(
    target: float | None, repeats: int | None, steps: int | None, sbx_python: str | None, sbx_vec_env: Sequence[str]
) -> None:  # fmt: skip
    """Refuse what would be ignored."""
    if target is None and steps is not None:
        raise ValueError("--steps says when a target is given up; give --target too, or leave --steps out")
    if target is not None:
        given = {"--repeats": repeats, "--sbx-python": sbx_python, "--sbx-vec-env": sbx_vec_env}
        for flag in (flag for flag, value in given.items() if value):
            raise ValueError(f"{flag} has no effect with --target, which times one training of ours; leave one out")
    if sbx_vec_env and sbx_python is None:
        raise ValueError("--sbx-vec-env has no effect without --sbx-python, the interpreter that has sbx-rl")


def _to_target(config: Config, task: str, target: float, tell: Tell) -> Row:
    """Train with the task's own settings until an evaluation reaches the target."""
    start = time.perf_counter()
    reached: dict[str, Any] = {}
    rates = []

    def callback(row: dict[str, Any]) -> bool:
        rates.append(row["env_steps_per_s"])
        value = row.get("eval/return_mean", -math.inf)
        if "eval/return_mean" in row:
            seconds = time.perf_counter() - start
            tell(f"{task}: return {value:.4g} after {row['env_steps']:,} env steps, {seconds:.0f} s")
        if value >= target:
            reached.update(seconds_to_target=time.perf_counter() - start, env_steps_to_target=row["env_steps"])
        return bool(reached)

    _train_in_passing(config, callback)
    missed: dict[str, Any] = {"seconds_to_target": None, "env_steps_to_target": None}
    assert config.workers is not None
    return make_row(
        OURS, task, config.num_envs, config.workers, rates, rates, algo=config.algo_name, target=target,
        **(missed | reached),
    )  # fmt: skip


class _Pace:
    """Env steps per second of one training beside SBX's, an iteration of each in turn."""

    def __init__(self, algo: str, task: str, num_envs: int, workers: int, repeats: int, tell: Tell) -> None:
        size = num_envs * ROLLOUT_STEPS[algo]
        warm_up = {} if algo == "ppo" else {"algo.warm_up_steps": size}
        self.config = learner_config(
            algo, task, num_envs, workers=workers, eval_episodes=1,
            steps=size * (WARM_UP_ITERATIONS + repeats + 1),
            eval_every=10**9, **warm_up,
        )  # fmt: skip
        self.task, self._tell, self._repeats, self.sbx_versions = task, tell, repeats, dict[str, str]()

    def measure(self, sbx_python: str | None, vec_envs: Sequence[str], threads: int) -> list[Row]:
        """Rows of ours and of each of SBX's vector envs."""
        others: list[Sbx] = []
        self._tell(f"{self.task}, {self.config.algo_name}, {self.config.num_envs} envs: starting")
        try:
            for vec_env in vec_envs if sbx_python is not None else ():
                settings = sbx_settings(self.config, Plan.of(self.config)) | {
                    "mode": "train", "task": self.task, "vec_env": vec_env,
                    "env_steps": self.config.env_steps_per_iteration,
                }  # fmt: skip
                assert sbx_python is not None
                others.append(Sbx(f"sbx-{vec_env}", sbx_python, settings, threads))
                self.sbx_versions |= others[-1].versions
            rates = self._train(others)
        finally:
            close_all(others)
        workers = {OURS: self.config.workers or 0, "sbx-dummy": 0, "sbx-subproc": self.config.num_envs}
        return [
            make_row(
                name, self.task, self.config.num_envs, workers[name], values, rates[OURS], algo=self.config.algo_name
            )
            for name, values in rates.items()
        ]  # fmt: skip

    def _train(self, others: Sequence[Sbx]) -> dict[str, list[float]]:
        """Train, and let the others train between two iterations; the time of an iteration is that between two calls
        of the callback, all bookkeeping included. The last iteration does not count, since it evaluates."""
        rates: dict[str, list[float]] = {OURS: [], **{other.name: [] for other in others}}
        size, iteration, last = self.config.env_steps_per_iteration, 0, time.perf_counter()

        def callback(row: dict[str, Any]) -> None:
            nonlocal iteration, last
            iteration += 1
            rate = size / (time.perf_counter() - last)
            if WARM_UP_ITERATIONS < iteration <= WARM_UP_ITERATIONS + self._repeats:
                rates[OURS].append(rate)
                for other in others:
                    rates[other.name].append(other.run())
                self._tell(", ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items()))
            last = time.perf_counter()

        _train_in_passing(self.config, callback)
        return rates


def _train_in_passing(config: Config, callback: Callable[[dict[str, Any]], bool | None]) -> None:
    """Train into a folder that is not kept."""
    with tempfile.TemporaryDirectory(prefix="unilab-bench-") as folder:
        train(config, Path(folder) / "run", callback)
