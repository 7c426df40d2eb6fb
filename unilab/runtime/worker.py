"""A worker process: takes jobs from a pipe, works in shared memory, says done.

Started as `python -m unilab.runtime.worker NUMBER CONNECTION_FD LIFELINE_FD`, with one thread for everything numerical.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from unilab.cores import usable_cores

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "NPROC": "1",  # XLA's CPU pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "",
    # Read jax's compilation cache, if there is one, but never write it: a killed worker would leave half a file.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
}
"""Variables that a worker is started with: one thread, and none of the learner's XLA settings."""

SPIN_S = 1e-3
"""How long a worker looks for its next job before it sleeps [s], since being woken takes time too. Workers that
outnumber the cores sleep at once."""

READY, DONE, FAILED = "ready", "done", "failed"


def serve(connection: Connection, number: int) -> None:
    """Do jobs until the pipe closes. A failure is reported with its traceback, and ends the worker."""
    import cloudpickle

    from unilab.runtime.memory import Memory
    from unilab.runtime.runner import make_runner

    job = None
    try:
        plan, fds = cloudpickle.loads(connection.recv_bytes())
        shapes = dict(plan.layout.items())
        runner = make_runner(plan, {name: Memory(shapes[name], fd) for name, fd in fds.items()}, number)
        connection.send((READY, None))
        spin_s = SPIN_S if number < usable_cores() else 0.0
        while (job := _next_job(connection, spin_s)) is not None:
            connection.send((DONE, runner.run(job)))
    except BaseException:
        connection.send((FAILED, (job, traceback.format_exc())))


def _next_job(connection: Connection, spin_s: float) -> Any:
    """The next job, or None when the parent has closed the pipe."""
    end = time.perf_counter() + spin_s
    try:
        while not connection.poll() and time.perf_counter() < end:
            os.sched_yield()  # the parent may want this core
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None


def _die_with_parent(lifeline: int) -> None:
    """End this process as soon as the other end of the lifeline is gone, however the parent ended."""
    os.read(lifeline, 1)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what it means
    number, connection_fd, lifeline_fd = map(int, sys.argv[1:4])
    threading.Thread(target=_die_with_parent, args=(lifeline_fd,), daemon=True).start()
    connection = Connection(connection_fd)
    try:
        serve(connection, number)
    except (BrokenPipeError, ConnectionResetError, pickle.UnpicklingError):
        os._exit(1)


if __name__ == "__main__":
    main()
