"""Who does the jobs: worker processes, or this process itself. The schedule knows only the interface."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import cloudpickle

from unilab.runtime.job import Job, JobRunner, Report
from unilab.runtime.memory import Memory
from unilab.runtime.plan import Plan
from unilab.runtime.worker import DONE, ENVIRONMENT, FAILED


class Pool(Protocol):
    """Hands out jobs and reports their end, in whatever order they finish."""

    def submit(self, job: Job) -> None:
        """Queue a job; it may start at once."""

    def wait(self) -> Report:
        """The next finished job. Raises WorkerError if one failed or a worker died."""

    def close(self) -> None:
        """End all workers. Safe to call twice."""


class WorkerError(RuntimeError):
    """A job failed, or its worker died."""


class InlinePool:
    """Runs each job in this process, when its report is asked for."""

    def __init__(self, runner: JobRunner, shuffled: bool = False, check: Callable[[], None] = lambda: None) -> None:
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


class _Worker:
    """One process with its pipe, and the job that it works on."""

    def __init__(self, number: int, plan: bytes, fds: tuple[int, ...]) -> None:
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), lifeline_read, *fds)
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "unilab.runtime.worker", str(theirs.fileno()), str(lifeline_read)]
        self.process = subprocess.Popen(command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL)
        self.number = number
        theirs.close()
        os.close(lifeline_read)
        self.connection = Connection(ours.detach())
        self.job: Job | None = None
        self.is_ready = False
        # If it has ended already, whoever waits for it finds out and says how.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(plan)

    def ended(self) -> str:
        """How the process ended, in words."""
        code = self.process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        self.connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class ProcessPool:
    """Worker processes on this machine; a job goes to whichever worker is free.

    Args:
        plan: what the workers need to know.
        memories: the shared memories, passed on by descriptor.
        num_workers: number of processes.
        shuffled: hand out queued jobs in random order instead of first come, first served.
        check: called while waiting, a few times a second; may raise to stop.
    """

    def __init__(
        self, plan: Plan, memories: dict[str, Memory], num_workers: int, shuffled: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        fds = {name: memory.fd for name, memory in memories.items()}
        blob = _pickled((plan, fds), type(plan.config.task))
        self._plan, self._check = plan, check
        self._jobs: deque[Job] = deque()
        self._random = random.Random(0) if shuffled else None
        self._workers: list[_Worker] = []
        try:
            for number in range(num_workers):
                self._workers.append(_Worker(number, blob, tuple(fds.values())))
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
            for connection in wait(list(by_connection), timeout=0.2):
                report = self._receive(by_connection[connection])  # type: ignore[index]
                self._hand_out()
                if report is not None:
                    return report

    def _receive(self, worker: _Worker) -> Report | None:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError(self._death(worker)) from None
        if kind == FAILED:
            job, text = content
            raise WorkerError(f"worker {worker.number} failed in {self._where(job)}\n{text}")
        worker.is_ready = True
        if kind != DONE:
            return None
        worker.job = None
        return content

    def _death(self, worker: _Worker) -> str:
        what = self._where(worker.job) if worker.job else "waiting" if worker.is_ready else "starting"
        return f"worker {worker.number} (pid {worker.process.pid}) {worker.ended()} while {what}"

    def _where(self, job: Job | None) -> str:
        if job is None:
            return "starting"
        first = job.shard * self._plan.shard_size
        return f"{job} (envs {first} to {first + self._plan.shard_size - 1})"

    def _hand_out(self) -> None:
        for worker in self._workers:
            if self._jobs and worker.is_ready and worker.job is None:
                if self._random:
                    self._jobs.rotate(self._random.randrange(len(self._jobs)))
                worker.job = self._jobs.popleft()
                try:
                    worker.connection.send(worker.job)
                except (BrokenPipeError, ConnectionResetError):
                    raise WorkerError(self._death(worker)) from None

    def close(self) -> None:
        for worker in self._workers:
            worker.close()  # end of file on the pipe ends an idle worker, the lifeline a busy one
        for worker in self._workers:
            try:
                worker.process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []


def _pickled(content: Any, task_class: type) -> bytes:
    """Pickle by value what a worker cannot import: a task from a script, a notebook or a file of one's own."""
    module = sys.modules.get(task_class.__module__)
    is_ours = task_class.__module__.startswith("unilab.")
    if module is None or is_ours or task_class.__module__ == "__main__":
        return cloudpickle.dumps(content)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(content)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
