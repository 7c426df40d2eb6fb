"""Collecting rollouts as a contender: the real runtime, from publishing a policy to the end of the last job."""

from __future__ import annotations

import time
from typing import Any

import jax

from unilab.runtime.collector import Collector
from unilab.runtime.plan import Plan


class Collection:
    """Workers that collect one rollout after the other with one policy.

    Args:
        name: of the contender.
        plan: what is collected, and by which runner.
        state: of the algorithm, whose policy acts; by default an untrained one.
    """

    def __init__(self, name: str, plan: Plan, state: Any = None) -> None:
        assert plan.config.workers is not None
        self.name, self.plan, self.workers = name, plan, plan.config.workers
        state = plan.algorithm.init(jax.random.key(plan.config.seed)) if state is None else state
        self._policy, self._curriculum = plan.algorithm.snapshot(state), plan.initial_curriculum()
        self.collector = Collector(plan)
        self.index = -1
        try:
            self._publish(0)
            self.collector.schedule.begin()
        except BaseException:
            self.close()
            raise

    def rollout(self) -> float:
        """Collect the next rollout, `index`; returns the seconds from its start to its last job's end."""
        self.index += 1
        self._publish(self.index)
        self.collector.schedule.start_rollout(self.index)
        return self.collector.schedule.finish_rollout(self.index)

    def run(self) -> float:
        """As `rollout`; returns env steps per second, publishing included."""
        start = time.perf_counter()
        self.rollout()
        return self.plan.config.env_steps_per_iteration / (time.perf_counter() - start)

    def close(self) -> None:
        self.collector.close()

    def _publish(self, version: int) -> None:
        self.collector.publish(version, self._policy, self._curriculum)
