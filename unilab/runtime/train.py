"""The training of one run: the loop, and what it records."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unilab.config import Config
from unilab.envs.registry import stop_if_importing
from unilab.runtime.checkpoint import load_checkpoint, mark_best, save_checkpoint
from unilab.runtime.collector import Collector, require_memory
from unilab.runtime.determinism import RollingDigest, named_leaves
from unilab.runtime.display import Display, QuietDisplay
from unilab.runtime.learner import Learner
from unilab.runtime.metrics import RunLog, machine, versions, write_json
from unilab.runtime.plan import Plan
from unilab.runtime.run import create_run, default_folder, spaces_to_json
from unilab.runtime.stop import Stopped, StopRequest
from unilab.runtime.threads import set_learner_threads

Row = dict[str, Any]
Callback = Callable[[Row], bool | None]


@dataclass(frozen=True)
class Result:
    """What a training left.

    Attributes:
        run: the run folder.
        evaluation: figures of the last evaluation.
        summary: what stands in summary.json.
    """

    run: Path
    evaluation: dict[str, float]
    summary: dict[str, Any]


def train(
    config: Config, out: str | Path | None = None, callback: Callback | None = None, display: Display | None = None
) -> Result:
    """Train a policy and leave a run folder.

    Args:
        config: what to train; see `make_config`.
        out: the run folder, by default a new one under runs/.
        callback: called with each iteration's row of metrics; returning True ends the training early.
        display: what shows the progress; by default nothing.

    Raises:
        ValueError: the configuration contradicts itself or the folder is taken.
        MemoryError: the machine is too small for it.
        WorkerError: a worker failed or died; the message has its traceback.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    stop_if_importing()
    config = replace(config, learner_threads=set_learner_threads(config.learner_threads))
    config = config.resolved(on_accelerator=jax.default_backend() != "cpu")
    plan = Plan.of(config)
    require_memory(plan, config.workers or 0)  # before there is a run folder
    training = Training(plan, Path(out) if out is not None else default_folder(config), display or QuietDisplay())
    with StopRequest() as stop:
        return training.run(stop, callback or (lambda row: None))


class Training:
    """One run from its first rollout to its summary."""

    def __init__(self, plan: Plan, folder: Path, display: Display) -> None:
        self.plan, self.config, self.folder, self.display = plan, plan.config, folder, display
        self.learner = Learner(plan.algorithm, self.config.seed)
        if self.config.init_from is not None:
            other = load_checkpoint(Path(self.config.init_from), "best").tree("algorithm", self.learner.state)
            self.learner.state = plan.algorithm.policy_from(self.learner.state, other)
        self.curriculum = plan.initial_curriculum()
        self.digest = RollingDigest() if self.config.digest else None
        self.iteration = 0
        self.evaluation: dict[str, float] = {}
        self._best = -math.inf
        self._time: Counter[str] = Counter()
        self._last_checkpoint = time.perf_counter()

    def run(self, stop: StopRequest, callback: Callback) -> Result:
        """Train to the end, to the callback's wish, or to a signal."""
        is_new = not self.folder.exists()
        create_run(self.folder, self.config)
        self._start = time.perf_counter()
        self._log = RunLog(self.folder, warn=self.display.message)
        self.display.start(f"{type(self.config.task).__name__} · {self.config.algo_name}", self.config.steps)
        self.display.message(f"run folder: {self.folder}")
        try:
            with Collector(self.plan, stop.check) as collector:
                self._publish(collector)
                collector.schedule.begin()
                self._loop(collector, stop, callback)
            return self._finish("finished")
        except Stopped as stopped:
            self._finish(str(stopped))
            self.display.message(f"{stopped}; checkpoint saved in {self.folder}")
            raise (KeyboardInterrupt if stopped.exit_code == 130 else SystemExit(stopped.exit_code)) from None
        except BaseException:
            self._log.close()
            if self.iteration == 0 and is_new:
                shutil.rmtree(self.folder)  # it holds nothing yet, and would be in the way of the next try
            raise
        finally:
            self.display.stop()
            self._log.close()

    def _loop(self, collector: Collector, stop: StopRequest, callback: Callback) -> None:
        config, schedule = self.config, collector.schedule
        while self.iteration < config.iterations:
            k, start = self.iteration, time.perf_counter()
            schedule.start_rollout(k)
            collect_s = schedule.finish_rollout(k)
            collected = time.perf_counter()
            if config.lag == 1 and k + 1 < config.iterations:
                schedule.start_rollout(k + 1)
            learn_start = time.perf_counter()
            row = self.learner.learn(k, collector.ring.rollout(k))
            learn_s = time.perf_counter() - learn_start
            row |= self._rollout_row(collector)
            self.iteration = k + 1
            self.curriculum = config.task.next_curriculum(self.curriculum, row)
            self._publish(collector)
            self._add_digest(collector, row)
            row |= self._evaluation_row(collector)
            total_s = time.perf_counter() - start
            wait_s = total_s - (collected - start) - learn_s - row.get("time/evaluate_s", 0.0)
            row |= {"time/collect_s": collect_s, "time/learn_s": learn_s, "time/wait_s": wait_s}
            row["env_steps_per_s"] = config.env_steps_per_iteration / total_s
            if callback(self._record(row)):
                return
            stop.check()

    def _publish(self, collector: Collector) -> None:
        collector.publish(self.iteration, self.learner.snapshot(), self.curriculum)

    def _rollout_row(self, collector: Collector) -> Row:
        """Metrics of the rollout that has just been learned from."""
        columns = self.plan.env.columns
        step_totals, ended_totals = (x.sum(axis=0, dtype=np.float64) for x in collector.ring.totals(self.iteration))
        episodes = ended_totals[columns.names.index("episodes")]
        means = columns.episode_means(ended_totals)
        row: Row = {f"episode/{name}": value for name, value in means.items()} | {"episode/count": int(episodes)}
        row["rollout/unstable_envs"] = int(step_totals[columns.names.index("unstable")])
        return row | columns.step_means(step_totals)

    def _add_digest(self, collector: Collector, row: Row) -> None:
        if self.digest is not None:
            self.digest.add(collector.ring.rollout(self.iteration - 1))
            self.digest.add(named_leaves(self.learner.state))
            row["digest"] = self.digest.hexdigest()

    def _evaluation_row(self, collector: Collector) -> Row:
        """Figures of an evaluation, if one is due."""
        config, per_iteration = self.config, self.config.env_steps_per_iteration
        assert config.eval_every is not None
        steps = self.iteration * per_iteration
        is_due = steps // config.eval_every > (steps - per_iteration) // config.eval_every
        if not is_due and self.iteration < config.iterations:
            return {}
        start = time.perf_counter()
        self.evaluation = collector.evaluate(self.iteration)
        if self.evaluation["return_mean"] > self._best:
            self._best = self.evaluation["return_mean"]
            self._save()
            mark_best(self.folder, self.iteration)
        row = {f"eval/{name}": value for name, value in self.evaluation.items()}
        return row | {"time/evaluate_s": time.perf_counter() - start}

    def _record(self, row: Row) -> Row:
        """Write and show a row; returns it with its place in the run."""
        head = {
            "iteration": self.iteration,
            "env_steps": self.iteration * self.config.env_steps_per_iteration,
            "wall_s": time.perf_counter() - self._start,
        }
        row = head | row
        self._time.update({name: value for name, value in row.items() if name.startswith("time/")})
        self._log.write(row)
        self.display.update(row)
        if time.perf_counter() - self._last_checkpoint > self.config.checkpoint_every_s:
            self._save()
        return row

    def _save(self) -> None:
        facts = {
            "algo": self.config.to_json()["algo"], "task": self.config.to_json()["task"],
            "spaces": spaces_to_json(self.plan.spaces), "versions": versions(),
        }  # fmt: skip
        parts = {"algorithm": self.learner.state, "curriculum": self.curriculum}
        save_checkpoint(self.folder, self.iteration, parts, facts)
        self._last_checkpoint = time.perf_counter()

    def _finish(self, outcome: str) -> Result:
        """Save the last checkpoint, the summary and the curve."""
        from unilab.runtime.curve import plot_curves

        self._save()
        wall_s = time.perf_counter() - self._start
        env_steps = self.iteration * self.config.env_steps_per_iteration
        summary: dict[str, Any] = {
            "outcome": outcome, "task": type(self.config.task).__name__, "algo": self.config.algo_name,
            "seed": self.config.seed, "env_steps": env_steps, "iterations": self.iteration, "wall_s": wall_s,
            "env_steps_per_s": env_steps / wall_s, "time": {name[5:]: value for name, value in self._time.items()},
            "evaluation": self.evaluation,
            "machine": machine(), "versions": versions(),
        }  # fmt: skip
        if self.digest is not None:
            summary["digest"] = self.digest.hexdigest()
        write_json(self.folder / "summary.json", summary)
        plot_curves([self.folder], self.folder / "curve.png")
        return Result(self.folder, self.evaluation, summary)
