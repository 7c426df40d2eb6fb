"""What runs the jobs of a plan. It imports no jax: a runner that needs none shall start without."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job, Report

if TYPE_CHECKING:
    from unilab.runtime.plan import Plan


class Runner(Protocol):
    """Does jobs, in a worker or in the parent."""

    def run(self, job: Job) -> Report:
        """Do a job; everything it makes is in shared memory when this returns."""


def make_runner(plan: Plan, memories: dict[str, Memory], number: int = 0) -> Runner:
    """The runner that a plan names, for the worker of this number."""
    module, _, name = plan.runner.partition(":")
    runner: Runner = getattr(importlib.import_module(module), name)(plan, memories, number)
    return runner
