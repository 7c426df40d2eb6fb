"""The envs behind a Gymnasium env: their shared memory, and the team that works on it."""

from __future__ import annotations

import weakref

import numpy as np

from unilab.gym.plan import GymPlan
from unilab.gym.runner import StepRunner
from unilab.gym.team import Inline, Team, Workers
from unilab.runtime.memory import Memory, available_bytes, total_bytes
from unilab.runtime.process import pickled


class Stepper:
    """Owns memory and workers; both go when it is closed or forgotten.

    Attributes:
        arrays: what goes in and out [N, ...], by the names in the plan's layout.
        pids: process numbers of the workers.
    """

    def __init__(self, plan: GymPlan) -> None:
        _require_memory(plan)
        memories = {name: Memory(shapes) for name, shapes in plan.layout.items()}
        try:
            self._team = _make_team(plan, memories)
        except BaseException:
            _close(None, memories)
            raise
        self.arrays: dict[str, np.ndarray] = memories["exchange"].arrays
        self.pids = self._team.pids
        self._close = weakref.finalize(self, _close, self._team, memories)

    def do(self, job: str) -> None:
        """Do a job for all envs. Raises WorkerError if a worker is lost; everything is closed then."""
        try:
            self._team.do(job)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._close.alive

    def close(self) -> None:
        """End the workers and give the memory back. Safe to call twice."""
        self.arrays = {}
        self._close()


def _make_team(plan: GymPlan, memories: dict[str, Memory]) -> Team:
    if plan.num_workers == 0:
        return Inline(StepRunner(plan, memories))
    fds = {name: memory.fd for name, memory in memories.items()}
    blob = pickled((plan, fds), type(plan.task))
    return Workers(blob, tuple(fds.values()), plan.num_workers, memories["progress"].arrays["steps"])


def _close(team: Team | None, memories: dict[str, Memory]) -> None:
    try:
        if team is not None:
            team.close()
    finally:
        for memory in memories.values():
            memory.close()


def _require_memory(plan: GymPlan) -> None:
    needed, there = sum(total_bytes(shapes) for shapes in plan.layout.values()), available_bytes()
    if needed > there:
        gib = 2**30
        raise MemoryError(
            f"{plan.num_envs} envs need {needed / gib:.1f} GiB, but only {there / gib:.1f} GiB are available; "
            "use a smaller num_envs"
        )
