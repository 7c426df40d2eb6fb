"""The ring of slots: each holds one rollout. A worker writes its shard's columns; the learner reads whole slots."""

from __future__ import annotations

import numpy as np

from unilab.runtime.memory import Memory

TOTALS = ("totals/steps", "totals/ended")


class Ring:
    """`num_slots` rollouts [T, N, ...] per field, and totals [N, columns], in shared memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.num_slots = next(iter(memory.arrays.values())).shape[0]

    def rollout(self, index: int) -> dict[str, np.ndarray]:
        """Fields [T, N, ...] of rollout `index`, without a copy."""
        slot = index % self.num_slots
        return {name: array[slot] for name, array in self._memory.arrays.items() if name not in TOTALS}

    def columns(self, index: int, first: int, size: int) -> dict[str, np.ndarray]:
        """Fields [T, S, ...] of the envs [first, first + size) of rollout `index`, to be written in place."""
        return {name: array[:, first : first + size] for name, array in self.rollout(index).items()}

    def totals(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(step totals, totals of ended episodes) of rollout `index` [N, columns]."""
        slot = index % self.num_slots
        steps, ended = (self._memory.arrays[name][slot] for name in TOTALS)
        return steps, ended
