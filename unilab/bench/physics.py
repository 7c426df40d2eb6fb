"""`unilab bench physics`: raw stepping of the physics back ends, without rewards, observations or resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unilab.bench.compare import DEFAULT_NUM_ENVS, DEFAULT_TASKS, Comparison, Group, bare_steps
from unilab.bench.engines import engine_demands, worker_processes
from unilab.bench.measure import Contender, Tell
from unilab.bench.raw import LIMIT, RawStepping
from unilab.bench.recording import Recording, record_physics
from unilab.bench.result import make_result
from unilab.cores import usable_cores
from unilab.envs.physics.base import UnsupportedError
from unilab.envs.physics.registry import PHYSICS, make_physics, physics_entry


class Engine:
    """A physics back end as an entry of a comparison.

    Raises:
        ValueError: there is none of this name.
    """

    def __init__(self, name: str) -> None:
        entry = physics_entry(name)
        self.is_installed, self.install_command = entry.is_installed, entry.install_command
        self.limit = LIMIT if entry.is_upstream else None


def bench_physics(
    tell: Tell, backends: Sequence[str] = tuple(PHYSICS), tasks: Sequence[str] = DEFAULT_TASKS,
    num_envs: Sequence[int] = DEFAULT_NUM_ENVS, workers: Sequence[int] = (), seconds: float = 1.0, repeats: int = 5,
) -> dict[str, Any]:  # fmt: skip
    """Compare the `step` of physics back ends, from the same first states and under the same controls.

    Args:
        workers: processes that step, each a share of the envs; by default one per core.
        seconds: how long each steps at a time.
        repeats: rounds that count; a round before them warms up.

    Raises:
        ValueError: a back end or task is unknown.
    """
    workers = tuple(workers) or (usable_cores(),)
    engines = {name: Engine(name) for name in backends}
    comparison = Comparison(engines, _make, seconds, repeats, tell, {LIMIT: bare_steps}, record_physics)
    comparison.run(tasks, num_envs, workers)
    options = {"tasks": tasks, "num_envs": num_envs, "workers": workers, "seconds": seconds, "repeats": repeats}
    return make_result("physics", options, comparison.rows, comparison.skipped)


def _make(name: str, recording: Recording, group: Group, seconds: float) -> Contender:
    try:
        make_physics(name, engine_demands(recording.env), 1)  # one env shows what it cannot do
    except UnsupportedError as error:
        raise LookupError(" ".join(str(error).split())) from None
    return RawStepping(recording, group.num_envs, worker_processes(name, group.workers), seconds, name)
