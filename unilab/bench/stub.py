"""A worker that only pretends: it sleeps for the time that physics would take, and writes what a worker writes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from unilab.bench.work import Work
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job, Report
from unilab.runtime.ring import Ring


@dataclass(frozen=True)
class StubSettings:
    """What a stub pretends.

    Attributes:
        shard_size: envs in a shard.
        step_s: seconds that an env step of a whole shard would take.
    """

    shard_size: int
    step_s: float


class StubRunner:
    """Does "begin" and "rollout" jobs: the same reads and writes of shared memory, and sleep in place of the rest.

    It sleeps until the time when each step would be over, so that what its own writes cost on a crowded machine, and
    how late it wakes up, do not add up: 64 real workers would have a core each.
    """

    def __init__(self, work: Work, memories: dict[str, Memory], number: int = 0) -> None:
        self._settings: StubSettings = work.settings
        self._bank, self._ring = memories["bank"].arrays, Ring(memories["ring"])
        self._words = memories["snapshots"].arrays["words"]
        self._progress = memories["progress"].arrays["steps"][number : number + 1]

    def run(self, job: Job) -> Report:
        start = time.perf_counter()
        if job.kind == "rollout":
            self._rollout(job, start)
        return Report(job, time.perf_counter() - start)

    def _rollout(self, job: Job, start: float) -> None:
        size, step_s = self._settings.shard_size, self._settings.step_s
        first = job.shard * size
        envs = slice(first, first + size)
        np.array(self._words[job.version % len(self._words)])
        for array in self._bank.values():
            array[(job.number + 1) % len(array), envs] = array[job.number % len(array), envs]
        columns = self._ring.columns(job.number, first, size)
        for t in range(len(next(iter(columns.values())))):
            for column in columns.values():
                column[t] = 0
            self._progress += 1
            time.sleep(max(0.0, start + (t + 1) * step_s - time.perf_counter()))
        for totals in self._ring.totals(job.number):
            totals[envs] = 0
