"""Raw stepping as a contender: worker processes that do physics and nothing else."""

from __future__ import annotations

import statistics

import numpy as np

from unilab.bench.engines import engine_demands
from unilab.bench.light import LightPlan
from unilab.bench.recording import Recording
from unilab.bench.stepping import StepSettings
from unilab.config import make_config
from unilab.envs.physics.mujoco import without_autoreset
from unilab.runtime.memory import FieldShapes, Memory
from unilab.runtime.messages import Job
from unilab.runtime.pool import InlinePool, Pool, ProcessPool
from unilab.runtime.runner import make_runner

LIMIT = "limit"
"""Name of the contender that calls bare `mj_step`."""


class RawStepping:
    """Workers that step a recording's physics, each a share of the envs.

    Args:
        recording: states and controls.
        num_envs: envs of all workers together.
        workers: processes; 0 steps in this one.
        seconds: about how long one `run` takes.
        engine: name of a physics back end; "" calls bare `mj_step`, the physical limit.
    """

    def __init__(self, recording: Recording, num_envs: int, workers: int, seconds: float, engine: str = "") -> None:
        self.name = engine or LIMIT
        env, states = recording.env, recording.states
        self._processes = max(workers, 1)
        share = -(-num_envs // self._processes)
        settings = StepSettings(
            without_autoreset(env.model), env.substeps, share, recording.needs_rne_post, engine,
            engine_demands(env) if engine else None,
        )  # fmt: skip
        shapes: dict[str, FieldShapes] = {
            "recording": {"states": (np.float64, states.shape)},
            "progress": {"steps": (np.uint64, (self._processes,))},
        }
        config = make_config(env.task, num_envs=share * self._processes, shard_size=share, workers=workers).resolved()
        plan = LightPlan.light(config, "unilab.bench.stepping:Stepper", settings, shapes)
        self._memories = {name: Memory(shape) for name, shape in shapes.items()}
        self._memories["recording"].arrays["states"][:] = states
        self.num_envs, self.workers, self.settings = share * self._processes, workers, {"envs_per_worker": share}
        self._steps_per_pass, self._seconds, self._passes = share * len(states), seconds, 1
        try:
            self._pool: Pool = (
                ProcessPool(plan, self._memories, workers) if workers else InlinePool(make_runner(plan, self._memories))
            )
        except BaseException:
            self._close_memories()
            raise

    def run(self) -> float:
        for worker in range(self._processes):
            self._pool.submit(Job("replay", self._passes, worker, 0))
        seconds = [self._pool.wait().seconds for _ in range(self._processes)]
        rate = sum(self._passes * self._steps_per_pass / each for each in seconds)
        self._passes = max(1, round(self._passes * self._seconds / statistics.fmean(seconds)))
        return rate

    def close(self) -> None:
        try:
            self._pool.close()
        finally:
            self._close_memories()

    def _close_memories(self) -> None:
        for memory in self._memories.values():
            memory.close()
