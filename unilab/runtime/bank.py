"""The bank: every env's row, in two generations. A job reads generation k and makes generation k + 1."""

from __future__ import annotations

import numpy as np

from unilab.envs.batch import BatchRows, rows_of
from unilab.runtime.layout import GENERATIONS
from unilab.runtime.memory import Memory


class Bank:
    """Rows of all envs [2, N, ...] in shared memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def rows(self, generation: int, first: int, size: int) -> BatchRows:
        """Views of the rows of envs [first, first + size) in a generation."""
        return rows_of(
            {name: a[generation % GENERATIONS, first : first + size] for name, a in self._memory.arrays.items()}
        )

    def generation(self, number: int) -> dict[str, np.ndarray]:
        """Views of the rows of all envs in a generation [N, ...], by name."""
        return {name: array[number % GENERATIONS] for name, array in self._memory.arrays.items()}

    def copy_forward(self, generation: int, first: int, size: int) -> BatchRows:
        """Copy rows from `generation` to the next one and return those; the old generation stays as it is."""
        envs = slice(first, first + size)
        for array in self._memory.arrays.values():
            array[(generation + 1) % GENERATIONS, envs] = array[generation % GENERATIONS, envs]
        return self.rows(generation + 1, first, size)
