"""Who does a job for all envs: worker processes side by side, or this process."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from unilab.runtime.errors import WorkerError
from unilab.runtime.process import WorkerProcess, end_all
from unilab.runtime.watch import POLL_S, Watch
from unilab.runtime.worker import DONE, ENVIRONMENT, FAILED

HANG_AFTER_S = 60.0
"""Seconds that a job may take; ten times as long when it is the first of its kind and has to be compiled."""


class Team(Protocol):
    """Does the same job for every share of the envs, and returns when all is done."""

    @property
    def pids(self) -> Sequence[int]:
        """Process numbers of its workers."""

    def do(self, job: str) -> None:
        """Do a job. Raises WorkerError if a worker failed, died or hangs; the team is closed then."""

    def close(self) -> None:
        """End all workers. Safe to call twice."""


class Inline:
    """This process does it."""

    pids: Sequence[int] = ()

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def do(self, job: str) -> None:
        self._runner.run(job)

    def close(self) -> None:
        self._runner = None


class Workers:
    """Worker processes: one message to each, one from each, whatever they do meanwhile.

    Args:
        blob: what each reads first, see `process.pickled`.
        fds: descriptors that they inherit.
        num_workers: number of processes.
        progress: a word per worker that grows while it gets on.
        variables: of their environment.
        remedy: what to do when one is lost, for the error.
    """

    def __init__(
        self, blob: bytes, fds: tuple[int, ...], num_workers: int, progress: np.ndarray,
        variables: Mapping[str, str] = ENVIRONMENT, remedy: str = "the env is closed, make another",
    ) -> None:  # fmt: skip
        self._workers: list[WorkerProcess] = []
        self._remedy = remedy
        self._watch = Watch(progress, HANG_AFTER_S)
        try:
            for number in range(num_workers):
                self._workers.append(WorkerProcess(number, blob, fds, variables=variables))
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        for worker in self._workers:
            self._poll.register(worker.connection.fileno(), select.POLLIN)

    @property
    def pids(self) -> Sequence[int]:
        return [worker.process.pid for worker in self._workers]

    def do(self, job: str) -> None:
        if not self._workers:
            raise WorkerError(f"no worker is left for {job!r}; {self._remedy}")
        try:
            self._do(job)
        except BaseException:  # also Ctrl-C: what is half done cannot be gone on with
            self.close()
            raise

    def _do(self, job: str) -> None:
        for worker in self._workers:
            worker.job = job
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its pipe says below that it is gone
                worker.connection.send(job)
        workers = {worker.connection.fileno(): worker for worker in self._workers}
        busy = dict(workers)
        while busy:
            for fd, _ in self._poll.poll(1000 * POLL_S):  # who has done its job may die before the others have
                if self._is_done(workers[fd]):
                    busy.pop(fd, None)
            waiting = [(w.number, job, job not in w.known_kinds) for w in busy.values()]
            for number in self._watch.suspects(waiting):
                self._workers[number].reap(kill=True)
                raise WorkerError(f"worker {number} made no progress in {job!r} for {HANG_AFTER_S:g} s or more")

    def _is_done(self, worker: WorkerProcess) -> bool:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):  # the pipe is closed, perhaps in the middle of a message
            how = f"worker {worker.number} (pid {worker.process.pid}) {worker.reap()} in {worker.job!r}"
            raise WorkerError(f"{how}; {self._remedy}") from None
        if kind == FAILED:
            raise WorkerError(f"worker {worker.number} failed in {worker.job!r}\n{content[1]}")
        if kind != DONE:  # it is ready for its first job
            return False
        worker.known_kinds.add(worker.job)
        return True

    def close(self) -> None:
        end_all(self._workers)
        self._workers = []
