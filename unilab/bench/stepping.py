"""In a benchmark's worker: physics alone. No policy, no rewards, no jax for MuJoCo itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from unilab.bench.work import Work
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job, Report

STATE = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass(frozen=True)
class StepSettings:
    """What a worker steps.

    Attributes:
        model: with autoreset disabled.
        substeps: physics steps in an env step.
        num_envs: envs of this worker.
        needs_rne_post: an env step ends with `mj_rnePostConstraint`.
        engine: name of the back end, or "" for bare `mj_step`.
        demands: what a back end must do, a `Demands`.
    """

    model: mujoco.MjModel
    substeps: int
    num_envs: int
    needs_rne_post: bool
    engine: str = ""
    demands: Any = None


class Stepper:
    """Runs "replay" jobs: `job.number` passes over the recording; the report's seconds are those of the steps alone."""

    def __init__(self, work: Work, memories: dict[str, Memory], number: int = 0) -> None:
        settings: StepSettings = work.settings
        states = memories["recording"].arrays["states"]  # [T, S, n]
        envs = np.resize(np.arange(states.shape[1]), settings.num_envs)
        self._pass = _engine_pass(settings, states[:, envs]) if settings.engine else _bare_pass(settings, states, envs)
        self._progress = memories["progress"].arrays["steps"][number : number + 1]

    def run(self, job: Job) -> Report:
        seconds = 0.0
        for _ in range(job.number):
            seconds += self._pass()
            self._progress += 1
        return Report(job, seconds)


def _bare_pass(settings: StepSettings, states: np.ndarray, envs: np.ndarray) -> Callable[[], float]:
    """The physical limit: each recorded state is set, then `mj_step` alone is timed."""
    model, data, clock = settings.model, mujoco.MjData(settings.model), time.perf_counter
    rows = [states[t, env] for t in range(len(states)) for env in envs]
    set_state, step, rne_post = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_rnePostConstraint

    def run() -> float:
        seconds = 0.0
        for row in rows:
            set_state(model, data, row, STATE)
            start = clock()
            step(model, data, settings.substeps)
            if settings.needs_rne_post:
                rne_post(model, data)
            seconds += clock() - start
        return seconds

    return run


def _engine_pass(settings: StepSettings, states: np.ndarray) -> Callable[[], float]:
    """A back end: reset to the first recorded states, then its `step` is timed under the recorded controls."""
    from unilab.bench.engines import make_engine
    from unilab.envs.physics.mujoco import state_slices

    engine, rows = make_engine(settings.engine, settings.demands, settings.num_envs)
    columns = state_slices(settings.model)
    qpos, qvel = states[0, :, columns["qpos"]], states[0, :, columns["qvel"]]
    controls = [np.ascontiguousarray(row[:, columns["ctrl"]], np.float32) for row in states]
    index = np.arange(settings.num_envs)

    def run() -> float:
        engine.attach(rows)
        engine.reset(index, qpos, qvel, {})
        start = time.perf_counter()
        for ctrl in controls:
            engine.step({"ctrl": ctrl})
        return time.perf_counter() - start

    return run
