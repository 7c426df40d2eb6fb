"""What must be said to XLA before jax makes its first array."""

from __future__ import annotations

import os

from unilab.cores import usable_cores

DETERMINISTIC_FLAGS = "--xla_gpu_deterministic_ops=true"


def set_learner_threads(wanted: int | None) -> int:
    """Fix the size of XLA's CPU pool, which decides how the learner's sums are rounded, and return it.

    By default it is as many threads as the machine has cores. The size can be set until jax makes its first array.
    After that it is what it is: without a wish, that number is returned.

    Raises:
        ValueError: jax already runs with another number of threads.
    """
    if not _has_started():
        os.environ["NPROC"] = str(wanted or os.cpu_count() or 1)
    threads = learner_threads()
    if wanted is not None and wanted != threads:
        raise ValueError(
            f"learner_threads is {wanted}, but jax already runs with {threads} in this process; set it before the "
            f"first jax array is made, or set NPROC={wanted} in the environment"
        )
    return threads


def learner_threads() -> int:
    """Size of XLA's CPU pool in this process."""
    return int(os.environ.get("NPROC") or usable_cores())


def set_deterministic() -> None:
    """Let XLA use only operations on a GPU whose results never vary. Has no effect on a CPU, where they never do.

    Raises:
        ValueError: jax has started without that.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if DETERMINISTIC_FLAGS in flags:
        return
    if _has_started():
        raise ValueError(
            "deterministic is True, but jax has already started without that in this process; set it before the first "
            f"jax array is made, or set XLA_FLAGS={DETERMINISTIC_FLAGS} in the environment"
        )
    os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC_FLAGS}".strip()


def _has_started() -> bool:
    from jax._src import xla_bridge  # the public API can only ask by starting the backend

    return xla_bridge.backends_are_initialized()
