"""`unilab bench env`: whole env steps under random actions, without a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unilab.bench.compare import DEFAULT_NUM_ENVS, DEFAULT_TASKS, Comparison, Group
from unilab.bench.measure import Contender, Tell
from unilab.bench.recording import Recording
from unilab.bench.result import make_result
from unilab.bench.vector_envs import BACKENDS, find_backend, make_stepped
from unilab.config import usable_cores


def bench_env(
    tell: Tell, backends: Sequence[str] = tuple(BACKENDS), tasks: Sequence[str] = DEFAULT_TASKS,
    num_envs: Sequence[int] = DEFAULT_NUM_ENVS, workers: Sequence[int] = (), seconds: float = 1.0, repeats: int = 5,
) -> dict[str, Any]:  # fmt: skip
    """Compare vector envs; see `unilab.bench.stepped` for what is counted.

    Args:
        workers: processes or threads of each back end; by default one per core.
        seconds: how long each is stepped at a time.
        repeats: rounds that count; a round before them warms up.

    Raises:
        ValueError: a back end or task is unknown.
    """
    workers = tuple(workers) or (usable_cores(),)
    comparison = Comparison({name: find_backend(name) for name in backends}, _make, seconds, repeats, tell)
    comparison.run(tasks, num_envs, workers)
    options = {"tasks": tasks, "num_envs": num_envs, "workers": workers, "seconds": seconds, "repeats": repeats}
    return make_result("env", options, comparison.rows, comparison.skipped)


def _make(name: str, recording: Recording, group: Group, seconds: float) -> Contender:
    return make_stepped(name, group.task, group.num_envs, group.workers, seconds)
