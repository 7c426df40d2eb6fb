"""Digests: short proofs that two runs computed the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


class RollingDigest:
    """SHA-256 over everything that was added, in order; `hexdigest` may be asked for at any time."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add named arrays, in the order of their names."""
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            self._hash.update(f"{name} {array.dtype} {array.shape}".encode())
            self._hash.update(array.data.cast("B") if array.size else b"")

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:16]


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Leaves of a pytree on the host, by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
