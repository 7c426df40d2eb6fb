"""Digests: short proofs that two runs computed the same bits, and traces that say where two runs differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


class RollingDigest:
    """A chain of SHA-256 sums: each is over the one before and what was added.

    Args:
        state: the `state` of another digest, to go on from.
    """

    def __init__(self, state: str = "") -> None:
        self.state = state

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add named arrays, in the order of their names."""
        sums = hashlib.sha256(self.state.encode())
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            sums.update(f"{name} {array.dtype} {array.shape}".encode())
            sums.update(array.data.cast("B") if array.size else b"")
        self.state = sums.hexdigest()

    def hexdigest(self) -> str:
        """The first 16 digits, for people."""
        return self.state[:16]


@dataclass(frozen=True)
class Difference:
    """The first place where two traces differ; `env` is None for something that is not of one env."""

    iteration: int
    field: str
    env: int | None

    def __str__(self) -> str:
        return f"iteration {self.iteration}, {self.field}" + ("" if self.env is None else f", env {self.env}")


class Trace:
    """Sums of all rollouts, field by field and env by env, and of all weights, iteration by iteration."""

    def __init__(self) -> None:
        self._iterations: dict[int, dict[str, list[bytes]]] = {}

    def add(self, iteration: int, rollout: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]) -> None:
        """Add an iteration: fields of its rollout [T, N, ...], and the leaves of the algorithm's state after it."""
        by_env = {name: [_sum(array[:, env]) for env in range(array.shape[1])] for name, array in rollout.items()}
        self._iterations[iteration] = by_env | {f"weights/{name}": [_sum(array)] for name, array in weights.items()}

    def difference(self, other: Trace) -> Difference | None:
        """The first difference to another trace; rollouts come before the weights that were learned from them."""
        for iteration in sorted(self._iterations.keys() | other._iterations.keys()):
            ours, theirs = self._iterations.get(iteration), other._iterations.get(iteration)
            if ours is None or theirs is None:
                return Difference(iteration, "missing in one of the two", None)
            for field in ours:
                envs = [i for i, (a, b) in enumerate(zip(ours[field], theirs[field], strict=True)) if a != b]
                if envs:
                    return Difference(iteration, field, None if field.startswith("weights/") else envs[0])
        return None


def _sum(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Leaves of a pytree on the host, by their path."""
    return {name: np.asarray(leaf) for name, leaf in leaves_by_path(tree).items()}


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Leaves of a pytree, or the shapes that stand for them, by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
