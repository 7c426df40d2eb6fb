"""The training of one run: the loop, and what it records."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.config import Config
from unilab.envs.registry import stop_if_importing
from unilab.names import in_shell
from unilab.runtime.checkpoint import Checkpoint, has_checkpoint, load_checkpoint, mark_best, save_checkpoint
from unilab.runtime.collector import Collector, require_memory
from unilab.runtime.digest import RollingDigest, Trace, named_leaves
from unilab.runtime.display import Display, QuietDisplay
from unilab.runtime.errors import NonFiniteError, RunError, UnstableError
from unilab.runtime.learner import make_learner
from unilab.runtime.metrics import RunLog, devices, machine, versions, write_json
from unilab.runtime.plan import Plan
from unilab.runtime.run import default_folder, new_run, spaces_to_json
from unilab.runtime.stop import Stopped, StopRequest
from unilab.runtime.unstable import FOLDER
from unilab.runtime.xla import set_deterministic, set_learner_threads

Row = dict[str, Any]
Callback = Callable[[Row], bool | None]

MAX_DUMPS = 5
"""Unstable envs that are written into a run folder."""
LOG_FILE = "log.txt"
"""Of a run folder: replaced workers, unstable envs, and other lines that must not be missed."""


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
    config: Config,
    out: str | Path | None = None,
    callback: Callback | None = None,
    display: Display | None = None,
    trace: Trace | None = None,
) -> Result:
    """Train a policy and leave a run folder.

    Args:
        config: what to train; see `make_config`.
        out: the run folder, by default a new one under runs/.
        callback: called with each iteration's row of metrics; returning True ends the training early.
        display: what shows the progress; by default nothing.
        trace: records sums of all that is computed, to compare runs with.

    Raises:
        ValueError: the configuration contradicts itself or the folder is taken.
        MemoryError: the machine is too small for it.
        RunError: it failed: a worker raised, workers died again and again, numbers broke, the disk is full, ...
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    stop_if_importing()
    plan = ready_plan(config)
    return train_plan(plan, Path(out) if out is not None else default_folder(plan.config), callback, display, trace)


def train_plan(
    plan: Plan,
    folder: Path,
    callback: Callback | None = None,
    display: Display | None = None,
    trace: Trace | None = None,
) -> Result:
    """As `train`, for a plan."""
    training = Training(plan, folder, display or QuietDisplay(), trace)  # complains before there is a run folder
    with stoppable() as stop, new_run(folder, plan.config):
        return training.run(stop, callback or (lambda row: None))


@contextlib.contextmanager
def stoppable() -> Iterator[StopRequest]:
    """While entered, Ctrl-C and SIGTERM are requests to stop; they end the process once the run has stopped."""
    with StopRequest() as stop:
        try:
            yield stop
        except Stopped as stopped:
            raise stopped.exit() from None


def ready_plan(config: Config) -> Plan:
    """The plan of a configuration, once XLA is set up for it and this machine has been found large enough."""
    if config.deterministic:
        set_deterministic()
    config = replace(config, learner_threads=set_learner_threads(config.learner_threads))
    plan = Plan.of(config.resolved(on_accelerator=jax.default_backend() != "cpu"))
    require_memory(plan, plan.config.workers or 0)
    return plan


class Training:
    """One run, or the rest of one.

    Args:
        checkpoint: where to go on, or None to begin.
    """

    def __init__(
        self, plan: Plan, folder: Path, display: Display, trace: Trace | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.config, self.folder, self.display, self.trace = plan, plan.config, folder, display, trace
        self.learner = make_learner(plan.algorithm, self.config.seed)
        if self.config.init_from is not None and checkpoint is None:
            other = load_checkpoint(Path(self.config.init_from), "best").tree("algorithm", self.learner.learned)
            self.learner.state = plan.algorithm.policy_from(self.learner.state, other)
        self.curriculum = plan.initial_curriculum()
        self.digest = RollingDigest() if self.config.digest else None
        self.iteration = 0
        self.evaluation: dict[str, float] = {}
        self._best: dict[str, Any] = {"iteration": None, "return_mean": -math.inf}
        self._time: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()  # "replaced_workers", "unstable_envs"
        self._episodes: Row = {}
        self._dumps = sorted((folder / FOLDER).glob("*.npz"))
        self._checkpoint = checkpoint
        if checkpoint is not None:
            self._take_over(checkpoint)
        self._start = time.perf_counter() - self._time["wall_s"]
        self._last_checkpoint = time.perf_counter()
        self._saved_iteration = self.iteration if checkpoint is not None else None

    def run(self, stop: StopRequest, callback: Callback) -> Result:
        """Train to the end, to the callback's wish, or to a signal."""
        self._stop = stop
        stopped: Stopped | None = None
        with self._shown(), Collector(self.plan, stop.check, self._note_replacement) as collector:
            self._begin(collector)
            try:
                self._loop(collector, callback)
            except Stopped as error:
                stopped = error
            self._save(collector)
        result = self._finish("finished" if stopped is None else str(stopped))
        if stopped is not None:
            self.display.message(f"{stopped}; go on with `unilab resume {in_shell(self.folder)}`")
            raise stopped
        return result

    def _begin(self, collector: Collector) -> None:
        """Start the first episodes, or go on where a checkpoint was made."""
        if self._checkpoint is None:
            self._publish(collector)
            collector.schedule.begin()
            self._save(collector)
        else:
            state = collector.state(self.iteration)
            collector.restore(self.iteration, {part: self._checkpoint.arrays(part, state[part]) for part in state})

    def _loop(self, collector: Collector, callback: Callback) -> None:
        config, schedule = self.config, collector.schedule
        while self.iteration < config.iterations:
            k, start = self.iteration, time.perf_counter()
            schedule.start_rollout(k)
            collect_s = schedule.finish_rollout(k)
            collected = time.perf_counter()
            if config.lag == 1 and k + 1 < config.iterations:
                schedule.start_rollout(k + 1)
            learn_start = time.perf_counter()
            row = self._learn(collector)
            learn_s = time.perf_counter() - learn_start
            row |= self._rollout_row(collector)
            self.iteration = k + 1
            self.curriculum = self._next_curriculum(row)
            self._publish(collector)
            self._add_digest(collector, row)
            row |= self._evaluation_row(collector)
            total_s = time.perf_counter() - start
            wait_s = total_s - (collected - start) - learn_s - row.get("time/evaluate_s", 0.0)
            row |= {"time/collect_s": collect_s, "time/learn_s": learn_s, "time/wait_s": wait_s}
            row["env_steps_per_s"] = config.env_steps_per_iteration / total_s
            wants_stop = callback(self._record(row))
            if self._best["iteration"] == self.iteration:
                self._save(collector)
                mark_best(self.folder, self.iteration)
            elif time.perf_counter() - self._last_checkpoint > config.checkpoint_every_s:
                self._save(collector)
            if wants_stop:
                return
            self._stop.check()

    def _learn(self, collector: Collector) -> Row:
        rollout = collector.ring.rollout(self.iteration)
        try:
            return self.learner.learn(self.iteration, rollout)
        except NonFiniteError as error:
            path = self.folder / f"nonfinite-iteration{self.iteration}.npz"
            with self._tolerant(f"the rollout {path}"):
                np.savez_compressed(path, **rollout)  # type: ignore[arg-type]
            raise NonFiniteError(f"{error}; the rollout is in {path}, and the last checkpoint from before it") from None

    def _next_curriculum(self, row: Row) -> Any:
        """What the task makes of its curriculum, in the dtypes that the workers read.

        Raises:
            TypeError: it has other keys or shapes than before.
        """
        old, new = self.curriculum, self.config.task.next_curriculum(self.curriculum, row)
        shapes = [jax.tree.map(np.shape, tree) for tree in (old, new)]
        if shapes[0] != shapes[1]:
            name = type(self.config.task).__name__
            raise TypeError(f"{name}.next_curriculum() returned shapes {shapes[1]}; expected those before, {shapes[0]}")
        return jax.tree.map(lambda before, value: jnp.asarray(value, before.dtype), old, new)

    def _publish(self, collector: Collector) -> None:
        collector.publish(self.iteration, self.learner.snapshot(), self.curriculum)

    def _rollout_row(self, collector: Collector) -> Row:
        """Metrics of the rollout that has just been learned from."""
        columns = self.plan.env.columns
        per_env = collector.ring.totals(self.iteration)
        step_totals, ended_totals = (x.sum(axis=0, dtype=np.float64) for x in per_env)
        episodes = ended_totals[columns.names.index("episodes")]
        means = columns.episode_means(ended_totals)
        row: Row = {f"episode/{name}": value for name, value in means.items()} | {"episode/count": int(episodes)}
        row["rollout/unstable_envs"] = int((per_env[0][:, columns.names.index("unstable")] > 0).sum())
        self._note_unstable(collector, row["rollout/unstable_envs"])
        return row | columns.step_means(step_totals)

    def _note_unstable(self, collector: Collector, count: int) -> None:
        """Count the envs that broke in a rollout, and keep the first few.

        Raises:
            UnstableError: they are too many.
        """
        self._counts["unstable_envs"] += count
        described, collector.schedule.unstable = collector.schedule.unstable, []
        for env in described[: max(MAX_DUMPS - len(self._dumps), 0)]:
            with self._tolerant("the description of an unstable env"):
                self._dumps.append(env.save(self.folder))
                self._warn(f"an env became unstable: see `unilab replay {in_shell(self._dumps[-1])}`")
        if count > self.config.max_unstable_share * self.config.num_envs:
            see = f"`unilab replay {in_shell(self._dumps[0])}`" if self._dumps else "the rewards and observations"
            raise UnstableError(
                f"{count} of {self.config.num_envs} envs became unstable in rollout {self.iteration}; allowed is a "
                f"share of {self.config.max_unstable_share:g} (max_unstable_share). Look at one: {see}"
            )

    def _note_replacement(self, text: str) -> None:
        self._counts["replaced_workers"] += 1
        self._warn(text)

    def _add_digest(self, collector: Collector, row: Row) -> None:
        if self.digest is None and self.trace is None:
            return
        start = time.perf_counter()
        rollout, weights = collector.ring.rollout(self.iteration - 1), named_leaves(self.learner.learned)
        if self.digest is not None:
            self.digest.add(rollout)
            self.digest.add(weights)
            row["digest"] = self.digest.hexdigest()
        if self.trace is not None:
            self.trace.add(self.iteration - 1, rollout, weights)
        row["time/digest_s"] = time.perf_counter() - start

    def _evaluation_row(self, collector: Collector) -> Row:
        """Figures of an evaluation, if one is due."""
        config, per_iteration = self.config, self.config.env_steps_per_iteration
        assert config.eval_every is not None
        steps = self.iteration * per_iteration
        is_due = steps // config.eval_every > (steps - per_iteration) // config.eval_every
        if not is_due and self.iteration < config.iterations:
            return {}
        start = time.perf_counter()
        with self._stop.deferred():  # an iteration is whole with its evaluation
            self.evaluation = collector.evaluate(self.iteration)
        evaluate_s = time.perf_counter() - start
        if self.evaluation["return_mean"] > self._best["return_mean"]:
            self._best = {"iteration": self.iteration, "return_mean": self.evaluation["return_mean"]}
        return {f"eval/{name}": value for name, value in self.evaluation.items()} | {"time/evaluate_s": evaluate_s}

    def _record(self, row: Row) -> Row:
        """Write and show a row; returns it with its place in the run."""
        head = {
            "iteration": self.iteration,
            "env_steps": self.iteration * self.config.env_steps_per_iteration,
            "wall_s": time.perf_counter() - self._start,
        }
        row = head | row
        for name, value in row.items():
            if name.startswith("time/"):
                self._time[name[5:]] += value
        self._log.write(row)
        # Where no episode has ended, those that ended last are shown.
        self._episodes |= {n: x for n, x in row.items() if n.startswith("episode/") and math.isfinite(x)}
        self.display.update(row | self._episodes)
        return row

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, collector: Collector) -> None:
        """Write all that the run goes on from, unless that is done."""
        if self._saved_iteration == self.iteration:
            return
        start = time.perf_counter()
        self._time["wall_s"] = start - self._start
        facts = {
            "config": self.config.to_json(), "episode_steps": self.config.task.episode_steps,
            "spaces": spaces_to_json(self.plan.spaces), "versions": versions(), "devices": devices(),
            "digest": self.digest and self.digest.state, "evaluation": self.evaluation, "best": self._best,
            "time": self._time, "counts": self._counts,
        }  # fmt: skip
        learned, memory = self.plan.algorithm.split(self.learner.state)
        parts = {"algorithm": learned, "curriculum": self.curriculum, **collector.state(self.iteration)}
        if self.config.save_replay:
            parts["memory"] = memory
        save_checkpoint(self.folder, self.iteration, parts, facts)
        self._saved_iteration = self.iteration
        self._last_checkpoint = time.perf_counter()
        self._time["checkpoint_s"] += self._last_checkpoint - start

    def _take_over(self, checkpoint: Checkpoint) -> None:
        """Set everything but the envs and snapshots to what it was when a checkpoint was made."""
        manifest = checkpoint.manifest
        self.iteration, self.evaluation = manifest["iteration"], manifest["evaluation"]
        learned, memory = self.plan.algorithm.split(self.learner.state)
        if "memory" in checkpoint.parts:
            memory = checkpoint.tree("memory", memory)
        elif jax.tree.leaves(memory):
            self._warn(
                "the checkpoint has no replay (--save-replay keeps it): it is filled again before learning goes on, "
                "and the results are not those of an undisturbed run"
            )
        state = self.plan.algorithm.joined(checkpoint.tree("algorithm", learned), memory)
        self.learner.state = self.learner.placed(state)
        self.curriculum = checkpoint.tree("curriculum", self.curriculum)
        if self.digest is not None:
            self.digest = RollingDigest(manifest["digest"] or "")
        if manifest["best"]["iteration"] is not None:
            self._best = manifest["best"]
        self._time, self._counts = defaultdict(float, manifest["time"]), Counter(manifest["counts"])

    # --- the frame ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Logs and display, from the first iteration to the last; tells of an error in the summary."""
        self._log = RunLog(self.folder, warn=self._warn)
        self.display.start(f"{type(self.config.task).__name__} · {self.config.algo_name}", self.config.steps)
        self.display.message(f"run folder: {self.folder}")
        if nbytes := self.plan.replay_bytes:
            where = "in the host's memory" if self.plan.algorithm.has_host_memory else "on the learner's device"
            self.display.message(f"replay: {nbytes / 2**20:,.0f} MiB {where}")
        if self.config.deterministic:
            is_gpu = jax.default_backend() != "cpu"
            cost = "time: compare time/learn_s with a run without it" if is_gpu else "nothing on a CPU"
            self.display.message(f"--deterministic costs {cost}")
        try:
            yield
        except RunError as error:
            self._write_summary(f"failed: {str(error).splitlines()[0]}")
            if error.can_resume and has_checkpoint(self.folder):
                self.display.message(f"go on from the last checkpoint: `unilab resume {in_shell(self.folder)}`")
            raise
        finally:
            self.display.stop()
            self._log.close()

    def _warn(self, text: str) -> None:
        """Show and keep a line that must not be missed."""
        self.display.warn(text)
        with contextlib.suppress(OSError), open(self.folder / LOG_FILE, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} iteration {self.iteration}: {text}\n")

    @contextlib.contextmanager
    def _tolerant(self, what: str) -> Iterator[None]:
        """What is written while this is entered helps to understand a run, which must not fail for it."""
        try:
            yield
        except OSError as error:
            self._warn(f"cannot write {what} ({error.strerror or error})")

    def _finish(self, outcome: str) -> Result:
        """Write the summary and the curve."""
        from unilab.runtime.curve import plot_curves

        summary = self._write_summary(outcome)
        with self._tolerant("curve.png"):
            plot_curves([self.folder], self.folder / "curve.png")
        return Result(self.folder, self.evaluation, summary)

    def _write_summary(self, outcome: str) -> dict[str, Any]:
        wall_s = time.perf_counter() - self._start
        env_steps = self.iteration * self.config.env_steps_per_iteration
        summary: dict[str, Any] = {
            "outcome": outcome, "task": type(self.config.task).__name__, "algo": self.config.algo_name,
            "seed": self.config.seed, "env_steps": env_steps, "iterations": self.iteration, "wall_s": wall_s,
            "env_steps_per_s": env_steps / wall_s,
            "time": {name: value for name, value in self._time.items() if name != "wall_s"},
            "evaluation": self.evaluation, "replaced_workers": self._counts["replaced_workers"],
            "unstable_envs": self._counts["unstable_envs"],
            "machine": machine(), "versions": versions(),
        }  # fmt: skip
        if self.digest is not None:
            summary["digest"] = self.digest.hexdigest()
        with self._tolerant("summary.json"):
            write_json(self.folder / "summary.json", summary)
        return summary
