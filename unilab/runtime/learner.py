"""The learner: the algorithm's state on the JAX device, and one jitted update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.algos.algorithm import Algorithm
from unilab.runtime.digest import named_leaves
from unilab.runtime.errors import NonFiniteError

INIT, UPDATE = 101, 102  # streams of random keys, apart from those of the envs


class Learner:
    """Holds the algorithm's state; `learn` replaces it.

    Args:
        algorithm: pure functions.
        seed: seed of initial weights and minibatches.
        state: state to go on from, instead of a fresh one.
    """

    def __init__(self, algorithm: Algorithm, seed: int, state: Any = None) -> None:
        self._key = jax.random.key(seed)
        self.algorithm = algorithm
        self.state = algorithm.init(jax.random.fold_in(self._key, INIT)) if state is None else state
        # The state is donated; the rollout never is, since on a CPU it lies in memory that the workers share.
        self._update = jax.jit(algorithm.update, donate_argnums=0)
        self._snapshot = jax.jit(algorithm.snapshot)
        self._is_finite = jax.jit(lambda state: jnp.stack([_is_finite(x) for x in jax.tree.leaves(state)]).all())

    def learn(self, iteration: int, rollout: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Update the state from a rollout of fields [T, N, ...]; when this returns, nothing reads the rollout any more.

        Raises:
            NonFiniteError: a metric of the update, a weight or another number of the new state is not finite.
        """
        key = jax.random.fold_in(jax.random.fold_in(self._key, UPDATE), iteration)
        fields = {name: jax.device_put(array) for name, array in rollout.items()}
        self.state, metrics = self._update(self.state, fields, key)
        jax.block_until_ready(self.state)
        numbers = {f"train/{name}": float(value) for name, value in metrics.items()}
        broken = [name for name, value in numbers.items() if not np.isfinite(value)]
        if not self._is_finite(self.learned):
            broken += [name for name, leaf in named_leaves(self.learned).items() if not _is_finite(leaf)]
        if broken:
            more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
            raise NonFiniteError(f"{', '.join(broken[:5])}{more} became non-finite in iteration {iteration}")
        return numbers

    @property
    def learned(self) -> Any:
        """The state without remembered data."""
        return self.algorithm.split(self.state)[0]

    def snapshot(self) -> Any:
        """What a worker needs of the present state."""
        return self._snapshot(self.learned)


def _is_finite(leaf: Any) -> Any:
    return jnp.isfinite(leaf).all() if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.bool_(True)
