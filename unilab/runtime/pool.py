"""Who does the jobs: worker processes, or this process itself. The schedule knows only the interface."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Protocol

from unilab.runtime.errors import WorkerError
from unilab.runtime.memory import Memory, oom_kills
from unilab.runtime.messages import Job, Report
from unilab.runtime.plan import Plan
from unilab.runtime.process import WorkerProcess, end_all, pickled
from unilab.runtime.runner import Runner
from unilab.runtime.watch import POLL_S, Watch
from unilab.runtime.worker import DONE, FAILED

MAX_LOSSES = 3
"""Workers that may be lost with one job, or one after the other before they are ready."""


class Pool(Protocol):
    """Hands out jobs and reports their end, in whatever order they finish."""

    replaced: int
    """Workers that were lost and replaced so far."""

    def submit(self, job: Job) -> None:
        """Queue a job; it may start at once."""

    def wait(self) -> Report:
        """The next finished job. Raises WorkerError if one failed, or its workers died again and again."""

    def close(self) -> None:
        """End all workers. Safe to call twice."""


class InlinePool:
    """Runs each job in this process, when its report is asked for."""

    replaced = 0

    def __init__(self, runner: Runner, shuffled: bool = False, check: Callable[[], None] = lambda: None) -> None:
        self._runner, self._check = runner, check
        self._jobs: list[Job] = []
        self._random = random.Random(0) if shuffled else None

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def wait(self) -> Report:
        if not self._jobs:
            raise RuntimeError("wait() without a submitted job")
        self._check()
        position = self._random.randrange(len(self._jobs)) if self._random else 0
        return self._runner.run(self._jobs.pop(position))

    def close(self) -> None:
        self._jobs.clear()


class ProcessPool:
    """Worker processes on this machine; a job goes to whichever worker is free.

    A worker that dies or hangs is replaced, and its job is run again from the bank, with the same result. Where the
    physics gives no exact state, the envs of a shard live in the worker that began them: it does all jobs of that
    shard, and it cannot be replaced.

    Args:
        plan: what the workers need to know.
        memories: the shared memories, passed on by descriptor.
        num_workers: number of processes.
        shuffled: hand out queued jobs in random order instead of first come, first served.
        check: called while waiting, a few times a second; may raise to stop.
        report: told of each replacement in one line.
    """

    def __init__(
        self, plan: Plan, memories: dict[str, Memory], num_workers: int, shuffled: bool = False,
        check: Callable[[], None] = lambda: None, report: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        fds = {name: memory.fd for name, memory in memories.items()}
        self._blob, self._fds = pickled((plan, fds), type(plan.config.task)), tuple(fds.values())
        self._plan, self._check, self._report = plan, check, report
        self._jobs: deque[Job] = deque()
        self._random = random.Random(0) if shuffled else None
        self._watch = Watch(memories["progress"].arrays["steps"], plan.config.hang_after_s)
        self._oom_kills = oom_kills()
        self.replaced = 0
        self._workers: list[WorkerProcess] = []
        try:
            for number in range(num_workers):
                self._workers.append(WorkerProcess(number, self._blob, self._fds))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._hand_out()

    def wait(self) -> Report:
        if not self._jobs and not any(worker.job for worker in self._workers):
            raise RuntimeError("wait() without a submitted job")
        while True:
            self._check()
            by_connection = {worker.connection: worker for worker in self._workers}
            for connection in wait(list(by_connection), timeout=POLL_S):
                report = self._receive(by_connection[connection])  # type: ignore[index]
                self._hand_out()
                if report is not None:
                    return report
            self._replace_hung()

    def _receive(self, worker: WorkerProcess) -> Report | None:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):  # the pipe is closed, perhaps in the middle of a message
            self._replace(worker, worker.reap())
            return None
        if kind == FAILED:
            job, text = content
            raise WorkerError(f"worker {worker.number} failed in {self._where(job)}\n{text}")
        worker.is_ready = True
        if kind != DONE:
            return None
        assert worker.job is not None
        worker.known_kinds.add(worker.job.kind)
        worker.job = None
        return content

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.is_ready and worker.job is None and (job := self._job_for(worker)) is not None:
                # To a worker that has just died the message is lost; `wait` learns of the death from the pipe.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    worker.connection.send(job)
                    worker.job = job
                    self._jobs.remove(job)

    def _job_for(self, worker: WorkerProcess) -> Job | None:
        """The queued job that a free worker does next."""
        if self._jobs and self._random:
            self._jobs.rotate(self._random.randrange(len(self._jobs)))
        is_pinned, count = not self._plan.exact_state, len(self._workers)
        return next((job for job in self._jobs if not is_pinned or job.shard % count == worker.number), None)

    def _replace_hung(self) -> None:
        busy = [(w.number, w.job, w.job.kind not in w.known_kinds) for w in self._workers if w.job]
        for number in self._watch.suspects(busy):
            worker = self._workers[number]
            worker.reap(kill=True)
            self._replace(worker, f"made no progress for {self._plan.config.hang_after_s:g} s or more, was killed")
            self._hand_out()

    def _replace(self, worker: WorkerProcess, how: str) -> None:
        """Start another worker in place of one that is gone, and queue its job again.

        Raises:
            WorkerError: it must not be replaced, or has been too often.
        """
        what = self._where(worker.job) if worker.job else "waiting" if worker.is_ready else "starting"
        death = f"worker {worker.number} (pid {worker.process.pid}) {how} while {what}"
        before, self._oom_kills = self._oom_kills, oom_kills()
        if "SIGKILL" in how and self._oom_kills > before:
            death += "; probably out of memory, since the kernel has just killed a process for that"
        if not self._plan.exact_state:
            raise WorkerError(f"{death}; it cannot be replaced: this physics back end does not give its full state")
        failed_starts = 0 if worker.is_ready else worker.failed_starts + 1
        if failed_starts == MAX_LOSSES or (worker.job and worker.job.attempt + 1 == MAX_LOSSES):
            raise WorkerError(f"{death}; it was the last of {MAX_LOSSES} workers that ended there")
        worker.close()
        if worker.job:
            self._jobs.appendleft(worker.job._replace(attempt=worker.job.attempt + 1))
        self._workers[worker.number] = WorkerProcess(worker.number, self._blob, self._fds, failed_starts)
        self.replaced += 1
        self._report(f"{death}; it is replaced, and results do not change")

    def _where(self, job: Job | None) -> str:
        if job is None:
            return "starting"
        first = job.shard * self._plan.shard_size
        return f"{job} (envs {first} to {first + self._plan.shard_size - 1})"

    def close(self) -> None:
        end_all(self._workers)
        self._workers = []
