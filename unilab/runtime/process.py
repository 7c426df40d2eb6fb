"""One worker process: started with a pipe and inherited memory, and ended without leaving anything."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from unilab.runtime.errors import WorkerError
from unilab.runtime.worker import ENVIRONMENT

REAP_S = 10.0
"""Time that a killed process gets to go."""
MESSAGE_S = 60
"""Time that a message through a pipe may take, once it has begun."""


class WorkerProcess:
    """One process with its pipe, and the job that it works on.

    Args:
        number: its number.
        blob: what it reads first, see `pickled`.
        fds: descriptors that it inherits.
        failed_starts: workers of this number before it that ended one after the other before they were ready.
        variables: of its environment, beside those of this process.

    Attributes:
        job: what it works on, or None.
        is_ready: whether it has said that it takes jobs.
        known_kinds: kinds of jobs that it has done before.
    """

    def __init__(
        self, number: int, blob: bytes, fds: tuple[int, ...], failed_starts: int = 0,
        variables: Mapping[str, str] = ENVIRONMENT,
    ) -> None:  # fmt: skip
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), lifeline_read, *fds)
        environment = os.environ | dict(variables) | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "unilab.runtime.worker", str(number), str(theirs.fileno()), str(lifeline_read)]
        try:
            self.process = subprocess.Popen(command, pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL)
        except OSError as error:
            ours.close()
            os.close(self._lifeline)
            raise WorkerError(f"worker {number} cannot be started ({error.strerror or error})") from error
        finally:
            theirs.close()
            os.close(lifeline_read)
        self.number = number
        self.failed_starts = failed_starts
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # half a message must not block the parent
            ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", MESSAGE_S, 0))
        self.connection = Connection(ours.detach())
        self.job: Any = None
        self.is_ready = False
        self.known_kinds: set[str] = set()
        # If it has ended already, whoever waits for it finds out and says how.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(blob)

    def reap(self, kill: bool = False) -> str:
        """Wait for the end of a process whose pipe is closed, or `kill` it first; returns how it ended, in words.

        Raises:
            WorkerError: it does not go away. Its job must not be handed out again, since it could still write.
        """
        if not kill:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return _ending(self.process.wait(REAP_S))
        self.process.kill()
        try:
            return _ending(self.process.wait(REAP_S))
        except subprocess.TimeoutExpired:
            raise WorkerError(
                f"worker {self.number} (pid {self.process.pid}) cannot be ended, not even by SIGKILL; the run stops, "
                "since the process could still write into its shard. Its last checkpoint is whole: `unilab resume`"
            ) from None

    def close(self) -> None:
        self.connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def end_all(workers: Sequence[WorkerProcess]) -> None:
    """End worker processes, whatever they do. Safe to call twice."""
    for worker in workers:
        worker.close()  # end of file on the pipe ends an idle worker, the lifeline a busy one
    for worker in workers:
        try:
            worker.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # nothing more can be done about it
                worker.process.wait(REAP_S)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def pickled(content: Any, task_class: type) -> bytes:
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
