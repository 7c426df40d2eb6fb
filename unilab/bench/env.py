"""`unilab bench env`: whole env steps under random actions, without a policy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from unilab.bench.compare import DEFAULT_NUM_ENVS, DEFAULT_TASKS, Comparison, Group, MakeLimit, bare_steps
from unilab.bench.envpool_limit import ENVPOOL_LIMIT, INSTALL, EnvpoolLimit
from unilab.bench.measure import Contender, Tell
from unilab.bench.raw import LIMIT
from unilab.bench.recording import Recording
from unilab.bench.result import make_result
from unilab.bench.vector_envs import BACKENDS, find_backend, make_stepped
from unilab.cores import usable_cores


def bench_env(
    tell: Tell, backends: Sequence[str] = tuple(BACKENDS), tasks: Sequence[str] = DEFAULT_TASKS,
    num_envs: Sequence[int] = DEFAULT_NUM_ENVS, workers: Sequence[int] = (), seconds: float = 1.0, repeats: int = 5,
    envpool_mujoco_python: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare vector envs; see `unilab.bench.stepped` for what is counted.

    Args:
        workers: processes or threads of each back end; by default one per core.
        seconds: how long each is stepped at a time.
        repeats: rounds that count; a round before them warms up.
        envpool_mujoco_python: interpreter that has EnvPool's version of MuJoCo, for EnvPool's physical limit.

    Raises:
        ValueError: a back end or task is unknown.
    """
    workers = tuple(workers) or (usable_cores(),)
    entries = {name: find_backend(name) for name in backends}
    limits: dict[str, MakeLimit] = {LIMIT: bare_steps}
    if envpool_mujoco_python is not None:
        limits[ENVPOOL_LIMIT] = functools.partial(_envpool_limit, envpool_mujoco_python)
    comparison = Comparison(entries, _make, seconds, repeats, tell, limits)
    if ENVPOOL_LIMIT not in limits and any(e.limit == ENVPOOL_LIMIT and e.is_installed for e in entries.values()):
        comparison.skip(ENVPOOL_LIMIT, f"no interpreter given; {INSTALL}", install=INSTALL)
    comparison.run(tasks, num_envs, workers)
    options = {"tasks": tasks, "num_envs": num_envs, "workers": workers, "seconds": seconds, "repeats": repeats}
    return make_result("env", options, comparison.rows, comparison.skipped)


def _envpool_limit(python: str, recording: Recording, group: Group, seconds: float) -> Contender:
    return EnvpoolLimit(python, recording, group.num_envs, group.workers, seconds)


def _make(name: str, recording: Recording, group: Group, seconds: float) -> Contender:
    return make_stepped(name, group.task, group.num_envs, group.workers, seconds)
