"""When what runs: rollouts under the right policy version, evaluations, and how long each took.

lag 0:  collect k with version k | learn k -> k+1 | collect k+1 with version k+1 | ...
lag 1:  collect k+1 with version k  while  learning k -> k+1
"""

from __future__ import annotations

import time
from collections import Counter

from unilab.runtime.messages import Job, Report
from unilab.runtime.plan import Plan
from unilab.runtime.pool import Pool
from unilab.runtime.unstable import UnstableEnv


class Schedule:
    """Turns "rollout k" and "evaluate version v" into jobs for a pool and waits for them.

    Rollouts must be asked for in order: a shard's next job reads what its last one wrote.
    """

    def __init__(self, plan: Plan, pool: Pool) -> None:
        self._plan, self._pool = plan, pool
        self._outstanding: Counter[tuple[str, int]] = Counter()
        self._started: dict[int, float] = {}
        self._finished: dict[int, float] = {}
        self._next_rollout = 0
        self.unstable: list[UnstableEnv] = []  # emptied by whoever records them
        self._evaluations = 0

    def begin(self) -> None:
        """Start the first episode of every env."""
        self._submit("begin", 0, 0, self._plan.num_shards)
        self._drain("begin", 0)

    def go_on(self, index: int) -> None:
        """Rollout `index` comes next; the envs' rows for it are in the bank already."""
        self._next_rollout = index

    def start_rollout(self, index: int) -> None:
        """Hand out the jobs of rollout `index`, unless they are already running."""
        if index < self._next_rollout:
            return
        if index != self._next_rollout:
            raise RuntimeError(f"rollout {index} asked for, but rollout {self._next_rollout} comes next")
        self._started[index] = time.perf_counter()
        lag = self._plan.config.lag
        assert lag is not None
        self._submit("rollout", index, max(0, index - lag), self._plan.num_shards)
        self._next_rollout += 1

    def finish_rollout(self, index: int) -> float:
        """Wait until rollout `index` is whole; returns the seconds from its start to its last job's end."""
        self._drain("rollout", index)
        return self._finished.pop(index) - self._started.pop(index)

    def evaluate(self, version: int) -> None:
        """Play the evaluation episodes with the deterministic policy of `version`, to the end."""
        self._evaluations += 1
        self._submit("evaluate", self._evaluations, version, self._plan.num_evaluation_shards)
        self._drain("evaluate", self._evaluations)

    def _submit(self, kind: str, index: int, version: int, num_shards: int) -> None:
        self._outstanding[kind, index] = num_shards
        for shard in range(num_shards):
            self._pool.submit(Job(kind, index, shard, version))  # type: ignore[arg-type]

    def _drain(self, kind: str, index: int) -> None:
        while self._outstanding[kind, index]:
            self._note(self._pool.wait())
        del self._outstanding[kind, index]

    def _note(self, report: Report) -> None:
        job = report.job
        self._outstanding[job.kind, job.number] -= 1
        self.unstable += report.unstable
        if job.kind == "rollout" and self._outstanding[job.kind, job.number] == 0:
            self._finished[job.number] = time.perf_counter()
