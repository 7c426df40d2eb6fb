"""Snapshots of the policy, one per version: written whole by the learner, never changed while a job may read them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from unilab.envs.packing import Packing
from unilab.runtime.memory import Memory


class Snapshots:
    """The last few versions of what a worker needs from the learner, in shared memory.

    Args:
        memory: mapping with the array "words" [versions kept, words].
        packing: how a snapshot lies in a row.
    """

    def __init__(self, memory: Memory, packing: Packing) -> None:
        self._words = memory.arrays["words"]
        self._pack, self._unpack = jax.jit(packing.pack), jax.jit(packing.unpack)

    def publish(self, version: int, snapshot: Any) -> None:
        """Write a version. The caller makes sure that no job still reads the version that it replaces."""
        self.words(version)[:] = np.asarray(self._pack(snapshot))

    def words(self, version: int) -> np.ndarray:
        """View of the packed snapshot of a version [words]."""
        return self._words[version % len(self._words)]

    def read(self, version: int) -> Any:
        """The snapshot of a version, as arrays of this process."""
        return self._unpack(np.array(self.words(version)))
