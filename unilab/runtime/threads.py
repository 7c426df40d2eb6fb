"""The number of threads of XLA's CPU pool, which decides how the learner's sums are rounded."""

from __future__ import annotations

import os

from unilab.config import usable_cores


def set_learner_threads(wanted: int | None) -> int:
    """Fix the size of the pool and return it; by default as many threads as the machine has cores.

    The size can be set until jax makes its first array. After that it is what it is: without a wish, that number is
    returned.

    Raises:
        ValueError: jax already runs with another number of threads.
    """
    from jax._src import xla_bridge  # the public API can only ask by starting the backend

    if not xla_bridge.backends_are_initialized():
        os.environ["NPROC"] = str(wanted or os.cpu_count() or 1)
    threads = int(os.environ.get("NPROC") or usable_cores())
    if wanted is not None and wanted != threads:
        raise ValueError(
            f"learner_threads is {wanted}, but jax already runs with {threads} in this process; set it before the "
            f"first jax array is made, or set NPROC={wanted} in the environment"
        )
    return threads
