from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unilab.runtime.memory import Memory
from unilab.runtime.ring import TOTALS, Ring

T, N, SHARD = 3, 6, 2


def make_ring(num_slots: int) -> Ring:
    shapes = {"obs/actor": (np.float32, (num_slots, T, N, 2)), "reward": (np.float32, (num_slots, T, N))}
    shapes |= dict.fromkeys(TOTALS, (np.float32, (num_slots, N, 4)))
    return Ring(Memory(shapes, poison=True))


@given(num_slots=st.integers(1, 3), count=st.integers(1, 6), order=st.permutations(range(N // SHARD)))
def test_ring_is_a_deque_of_rollouts(num_slots: int, count: int, order: list[int]) -> None:
    """The last `num_slots` rollouts are what was written into them, shard by shard; older ones are gone."""
    ring, model = make_ring(num_slots), deque(maxlen=num_slots)
    assert ring.num_slots == num_slots
    for index in range(count):
        whole = {"obs/actor": np.full((T, N, 2), index, np.float32), "reward": np.zeros((T, N), np.float32)}
        whole["reward"] += np.arange(N) + 10 * index
        for shard in order:
            columns = ring.columns(index, shard * SHARD, SHARD)
            assert set(columns) == set(whole)
            for name, target in columns.items():
                target[...] = whole[name][:, shard * SHARD : (shard + 1) * SHARD]
        for totals in ring.totals(index):
            totals[...] = index
        model.append((index, whole))
        for written, expected in model:
            for name, value in ring.rollout(written).items():
                np.testing.assert_array_equal(value, expected[name])
            for totals in ring.totals(written):
                assert totals.shape == (N, 4)
                assert (totals == written).all()


def test_views_are_no_copies() -> None:
    """A rollout is read where it was written: no copy is made between worker and learner."""
    ring = make_ring(2)
    ring.columns(1, 2, 2)["reward"][...] = 5.0
    assert (ring.rollout(1)["reward"][:, 2:4] == 5.0).all()
    assert np.isnan(ring.rollout(1)["reward"][:, :2]).all()
    assert np.isnan(ring.rollout(0)["reward"]).all()
    assert np.shares_memory(ring.rollout(1)["reward"], ring.columns(3, 0, N)["reward"])
