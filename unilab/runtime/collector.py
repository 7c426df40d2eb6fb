"""Collects rollouts and evaluations: owns the shared memories and the pool, and leaves neither behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from unilab.runtime.bank import Bank
from unilab.runtime.memory import Memory, available_bytes, total_bytes
from unilab.runtime.plan import Plan
from unilab.runtime.pool import InlinePool, Pool, ProcessPool
from unilab.runtime.ring import Ring
from unilab.runtime.runner import make_runner
from unilab.runtime.schedule import Schedule
from unilab.runtime.snapshots import Snapshots

LEARNER_BYTES = 800 * 2**20  # likewise for the learner's process, beside the rollouts


class Collector:
    """What the training loop sees of the workers. Use it as a context manager.

    Args:
        plan: what is to be collected.
        check: called a few times a second while waiting; may raise to stop.
        report: told in one line when a worker was replaced.
        poison: fill the shared memory with NaN first (for tests).
    """

    def __init__(
        self, plan: Plan, check: Callable[[], None] = lambda: None, report: Callable[[str], None] = lambda text: None,
        poison: bool = False,
    ) -> None:  # fmt: skip
        num_workers = plan.config.workers
        assert num_workers is not None
        require_memory(plan, num_workers)
        self._plan = plan
        self._memories = {name: Memory(shapes, poison=poison) for name, shapes in plan.layout.items().items()}
        self.bank = Bank(self._memories["bank"])
        self.ring = Ring(self._memories["ring"])
        self._snapshots = Snapshots(self._memories["snapshots"], plan.snapshot_packing)
        shuffled = plan.config.job_order == "shuffled"
        self.pool: Pool
        if num_workers == 0:
            self.pool = InlinePool(make_runner(plan, self._memories), shuffled, check)
        else:
            try:
                self.pool = ProcessPool(plan, self._memories, num_workers, shuffled, check, report)
            except BaseException:
                self._close_memories()
                raise
        self.schedule = Schedule(plan, self.pool)

    def publish(self, version: int, policy: Any, curriculum: Any) -> None:
        """Make a version of the policy known to the workers."""
        self._snapshots.publish(version, {"policy": policy, "curriculum": curriculum})

    def evaluate(self, version: int) -> dict[str, float]:
        """Figures of a version on the evaluation episodes: means per episode and `return_std`."""
        self.schedule.evaluate(version)
        totals = np.array(self._memories["evaluation"].arrays["totals"])
        columns = self._plan.evaluation_env.columns
        figures = columns.episode_means(totals.sum(axis=0))
        returns = totals[:, columns.names.index("return")]
        whole = totals[:, columns.names.index("episodes")] > 0
        figures["return_std"] = float(returns[whole].std()) if whole.any() else float("nan")
        figures["episodes"] = int(whole.sum())
        return figures

    def state(self, iteration: int) -> dict[str, dict[str, np.ndarray]]:
        """All that collecting goes on from after `iteration` passes of the main loop; views, to be copied at once.

        `bank`: the rows from which rollout `iteration` is collected. `snapshots`: the versions that it and later
        rollouts use. A rollout in flight has changed neither, and will be collected again.
        """
        versions = {str(version): self._snapshots.words(version) for version in self._versions(iteration)}
        return {"bank": self.bank.generation(iteration), "snapshots": versions}

    def restore(self, iteration: int, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Go on from what `state` gave."""
        for name, rows in self.bank.generation(iteration).items():
            rows[:] = state["bank"][name]
        for version in self._versions(iteration):
            self._snapshots.words(version)[:] = state["snapshots"][str(version)]
        self.schedule.go_on(iteration)

    def _versions(self, iteration: int) -> range:
        lag = self._plan.config.lag
        assert lag is not None
        return range(max(0, iteration - lag), iteration + 1)

    def close(self) -> None:
        """End the workers and give the memory back."""
        try:
            self.pool.close()
        finally:
            self._close_memories()

    def _close_memories(self) -> None:
        for memory in self._memories.values():
            memory.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def require_memory(plan: Plan, num_workers: int) -> None:
    """Refuse a run that this machine cannot hold.

    Raises:
        MemoryError: states the bytes needed, the bytes there are, and what to change.
    """
    layout = plan.layout.items()
    shared = sum(total_bytes(shapes) for shapes in layout.values())
    # The learner's working set: about three times a rollout (gathered minibatches, activations, gradients).
    needed = shared + 3 * total_bytes(layout["ring"]) + num_workers * plan.worker_bytes + LEARNER_BYTES
    there = available_bytes()
    device, replay = jax.devices()[0], plan.replay_bytes
    if device.platform == "cpu" or plan.algorithm.has_host_memory:
        needed += replay
    elif replay > (room := (device.memory_stats() or {}).get("bytes_limit", math.inf)):
        raise MemoryError(
            f"the replay needs {replay / 2**30:.1f} GiB, but {device.device_kind} has {room / 2**30:.1f} GiB; "
            "use --algo.replay-on host, or a smaller --algo.replay-steps"
        )
    if needed > there:
        gib = 2**30
        raise MemoryError(
            f"this run needs about {needed / gib:.1f} GiB ({shared / gib:.1f} shared, {num_workers} workers), but only "
            f"{there / gib:.1f} GiB are available; use a smaller --num-envs or --algo.rollout-steps, or fewer --workers"
        )
