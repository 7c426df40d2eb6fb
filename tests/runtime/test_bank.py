from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unilab.envs.batch import BatchRows
from unilab.runtime.bank import Bank
from unilab.runtime.memory import Memory

N = 6
SIZES = {"state": (np.float64, 5), "model": (np.float64, 3), "last": (np.float64, 0), "fields": (np.float32, 4)}


def make_bank() -> Bank:
    shapes = {name: (dtype, (2, N, size)) for name, (dtype, size) in SIZES.items()}
    return Bank(Memory(shapes | {"words": (np.uint32, (2, N, 7))}, poison=True))


def arrays_of(rows: BatchRows) -> dict[str, np.ndarray]:
    return {**vars(rows.physics), "words": rows.words}


def bits(rows: BatchRows) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays_of(rows).items()}


@given(generation=st.integers(0, 9), first=st.integers(0, N - 1), data=st.data())
def test_a_generation_stays_while_the_next_is_written(generation: int, first: int, data: st.DataObject) -> None:
    """Copying forward gives equal rows; working on them changes neither the old generation nor other envs' rows."""
    size = data.draw(st.integers(1, N - first))
    bank, rng = make_bank(), np.random.default_rng(generation)
    for array in arrays_of(bank.rows(generation, 0, N)).values():
        array[...] = rng.integers(0, 100, array.shape)
    before, others = bits(bank.rows(generation, 0, N)), bits(bank.rows(generation + 1, 0, N))
    rows = bank.copy_forward(generation, first, size)
    assert bits(rows) == bits(bank.rows(generation, first, size))
    for array in arrays_of(rows).values():
        array[...] += 1
    assert bits(bank.rows(generation, 0, N)) == before
    written = arrays_of(bank.rows(generation + 1, 0, N))
    for name, array in written.items():
        array[first : first + size] = np.frombuffer(others[name], array.dtype).reshape(array.shape)[
            first : first + size
        ]
    assert bits(bank.rows(generation + 1, 0, N)) == others  # nothing outside the shard was touched


def test_rows_are_views() -> None:
    """What is written into a shard's rows is what the bank's whole generation shows."""
    bank = make_bank()
    bank.rows(3, 2, 2).physics.state[1, 4] = 42.0
    assert bank.rows(1, 0, N).physics.state[3, 4] == 42.0  # two generations: 3 lies where 1 lay
    assert np.isnan(bank.rows(2, 0, N).physics.state).all()
