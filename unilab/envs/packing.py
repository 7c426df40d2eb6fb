"""A pytree of small arrays as one row of 32-bit words, and back, without changing a bit.

Rows of one dtype are what shared memory, the bank and a jitted call can handle cheaply: one array instead of a dozen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WORD = jnp.uint32


@dataclass(frozen=True)
class Packing:
    """Layout of a pytree in a row of `size` words. Leaves must be 32-bit or boolean arrays of fixed shape."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, tree: Any) -> Packing:
        """Layout for pytrees shaped like `tree` (arrays or `jax.ShapeDtypeStruct`s).

        Raises:
            TypeError: a leaf has a dtype that is neither boolean nor 32 bits wide.
        """
        leaves_with_paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
        for path, leaf in leaves_with_paths:
            dtype = np.dtype(leaf.dtype)
            if dtype != np.bool_ and dtype.itemsize != 4:
                name = jax.tree_util.keystr(path)
                raise TypeError(f"leaf {name} has dtype {dtype}; allowed are bool and the 32-bit types")
        leaves = [leaf for _, leaf in leaves_with_paths]
        return cls(treedef, tuple(tuple(x.shape) for x in leaves), tuple(str(np.dtype(x.dtype)) for x in leaves))

    @property
    def size(self) -> int:
        """Number of words in a row."""
        return sum(math.prod(shape) for shape in self.shapes)

    def pack(self, tree: Any) -> jax.Array:
        """Words [size] of one pytree."""
        words = []
        for leaf, dtype in zip(self.treedef.flatten_up_to(tree), self.dtypes, strict=True):
            flat = jnp.ravel(jnp.asarray(leaf, dtype))
            words.append(flat.astype(WORD) if dtype == "bool" else jax.lax.bitcast_convert_type(flat, WORD))
        return jnp.concatenate(words) if words else jnp.zeros((0,), WORD)

    def unpack(self, words: jax.Array) -> Any:
        """The pytree of a row of words [size]."""
        leaves, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            flat = words[start : start + math.prod(shape)]
            start += math.prod(shape)
            leaf = flat != 0 if dtype == "bool" else jax.lax.bitcast_convert_type(flat, jnp.dtype(dtype))
            leaves.append(jnp.reshape(leaf, shape))
        return jax.tree_util.tree_unflatten(self.treedef, leaves)
