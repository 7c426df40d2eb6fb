from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.envs.packing import Packing
from unilab.runtime.memory import Memory
from unilab.runtime.snapshots import Snapshots

KEPT = 3


def tree(version: int) -> Any:
    return {
        "w": jnp.full((2, 3), version, jnp.float32),
        "flags": jnp.array([True, version % 2 == 0]),
        "n": jnp.int32(version),
    }


def make_pair() -> tuple[Snapshots, Snapshots]:
    """Two views of the same memory, as the learner's and a worker's."""
    packing = Packing.of(tree(0))
    memory = Memory({"words": (np.uint32, (KEPT, packing.size))}, poison=True)
    return Snapshots(memory, packing), Snapshots(memory, packing)


def test_versions_are_read_as_published() -> None:
    """The last few versions are read back whole on the other side; publishing one leaves the others alone."""
    ours, theirs = make_pair()
    for version in range(8):
        ours.publish(version, tree(version))
        for old in range(max(0, version - KEPT + 1), version + 1):
            found = theirs.read(old)
            assert jax.tree.structure(found) == jax.tree.structure(tree(old))
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(tree(old)), strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_was_read_does_not_change() -> None:
    """A snapshot that was read stays what it was when its place is used for a later version."""
    ours, theirs = make_pair()
    ours.publish(0, tree(0))
    found = theirs.read(0)
    ours.publish(KEPT, tree(KEPT))
    assert int(found["n"]) == 0
    assert not found["w"].any()
    assert int(theirs.read(KEPT)["n"]) == KEPT
