from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilab.envs.packing import Packing

SHAPES = [(), (3,), (2, 2), (0,), (1, 0, 2)]
TREE = {
    "floats": [np.zeros(shape, np.float32) for shape in SHAPES],
    "ints": (np.zeros((), np.int32), np.zeros(2, np.uint32)),
    "bools": {"one": np.zeros((), np.bool_), "many": np.zeros((2, 2), np.bool_)},
    "nothing": None,
}
PACKING = Packing.of(TREE)
PACK, UNPACK = jax.jit(PACKING.pack), jax.jit(PACKING.unpack)
SPECIAL = [0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC12345, 0xFFFFFFFF, 0x00000001, 0x7FA00001]
words = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(SPECIAL))  # -0, infinities, NaNs with payloads, denormals


@st.composite
def trees(draw: Any) -> Any:
    """TREE with arbitrary bits in its 32-bit leaves."""

    def fill(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype == np.bool_:
            return np.array(draw(st.lists(st.booleans(), min_size=leaf.size, max_size=leaf.size)), bool).reshape(
                leaf.shape
            )
        bits = np.array(draw(st.lists(words, min_size=leaf.size, max_size=leaf.size)), np.uint32)
        return bits.view(leaf.dtype).reshape(leaf.shape)

    return jax.tree.map(fill, TREE)


@given(tree=trees())
def test_round_trip_keeps_every_bit(tree: Any) -> None:
    """Unpacking what was packed gives the same structure, shapes, dtypes and bits, NaN payloads and -0 included."""
    row = np.asarray(PACK(tree))
    assert row.shape == (PACKING.size,)
    assert row.dtype == np.uint32
    back = UNPACK(row)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for found, expected in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert np.asarray(found).tobytes() == expected.tobytes()


def test_size_counts_one_word_per_element() -> None:
    """A row has one word per element of every leaf; an empty tree has none."""
    assert PACKING.size == sum(leaf.size for leaf in jax.tree.leaves(TREE))
    empty = Packing.of({})
    assert empty.size == 0
    assert empty.unpack(empty.pack({})) == {}


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.float16, np.int8, np.complex64])
def test_other_widths_are_refused_by_name(dtype: Any) -> None:
    """A leaf that is neither boolean nor 32 bits wide is refused, with its path and dtype."""
    with pytest.raises(TypeError, match=rf"\['state'\]\['x'\] has dtype {np.dtype(dtype)}.*32-bit"):
        Packing.of({"state": {"x": np.zeros(2, dtype)}})
