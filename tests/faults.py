"""Job runners that do in a worker what workers must survive, by default in the middle of rollout 1, shard 0."""

from __future__ import annotations

import os
import signal
from typing import Any

import jax
import psutil

from unilab.runtime.job import JobRunner
from unilab.runtime.messages import Job, Report


class Faulty(JobRunner):
    """Calls `fault` in the first `times` attempts at one job."""

    times = 1

    def step(self, t: int, *args: Any) -> jax.Array:
        job = self.job
        is_due = (job.kind, job.number, job.shard) == ("rollout", 1, 0) and job.attempt < self.times
        if is_due and t == self.plan.rollout_steps // 2:
            self.fault()
        return super().step(t, *args)

    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Twice(Faulty):
    """Two workers are killed with the same job, one after the other."""

    times = 2


class Always(Faulty):
    """Every worker that gets the job is killed."""

    times = 10**9


class All(Faulty):
    """All workers are killed at once."""

    def fault(self) -> None:
        for process in psutil.Process(os.getppid()).children():
            if process.pid != os.getpid() and "unilab.runtime.worker" in " ".join(process.cmdline()):
                process.kill()
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaults(Faulty):
    """A worker dies of a bug in native code."""

    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Exits(Faulty):
    """A worker leaves without a word."""

    def fault(self) -> None:
        os._exit(3)


class Hangs(Faulty):
    """A worker stops in the middle of a rollout."""

    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Begins(JobRunner):
    """A worker is killed at the beginning of everything."""

    kind = "begin"

    def run(self, job: Job) -> Report:
        if (job.kind, job.shard, job.attempt) == (self.kind, 0, 0) and job.number <= 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(job)


class Evaluates(Begins):
    """A worker is killed while it evaluates."""

    kind = "evaluate"
