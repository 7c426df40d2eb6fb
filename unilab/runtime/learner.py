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
        self.state = self.placed(self._init(jax.random.fold_in(self._key, INIT)) if state is None else state)
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
        self.state, metrics = self._updated(self.state, rollout, key)
        jax.block_until_ready(self.state)
        numbers = {f"train/{name}": float(value) for name, value in metrics.items()}
        broken = [name for name, value in numbers.items() if not np.isfinite(value)]
        if not self._is_finite(self.learned):
            broken += [name for name, leaf in named_leaves(self.learned).items() if not _is_finite(leaf)]
        if broken:
            more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
            raise NonFiniteError(f"{', '.join(broken[:5])}{more} became non-finite in iteration {iteration}")
        return numbers

    def placed(self, state: Any) -> Any:
        """A state whose arrays lie where the learner wants them."""
        return state

    def _init(self, key: jax.Array) -> Any:
        return self.algorithm.init(key)

    def _updated(self, state: Any, rollout: Mapping[str, np.ndarray], key: jax.Array) -> tuple[Any, dict[str, Any]]:
        return self._update(state, {name: jax.device_put(array) for name, array in rollout.items()}, key)

    @property
    def learned(self) -> Any:
        """The state without remembered data."""
        return self.algorithm.split(self.state)[0]

    def snapshot(self) -> Any:
        """What a worker needs of the present state."""
        return self._snapshot(self.learned)


class HostMemoryLearner(Learner):
    """A learner whose replay lies in the host's memory, since its device cannot hold it.

    The functions are those of `Learner`, in parts: the host's CPU draws batches, the device learns from them. Calls
    return before they are done, so the next batches are drawn and copied while the device is busy.
    """

    def __init__(self, algorithm: Any, seed: int, state: Any = None) -> None:
        self._host, self._device = jax.local_devices(backend="cpu")[0], jax.devices()[0]
        self._remember = jax.jit(algorithm.remember, donate_argnums=0)
        self._notice = jax.jit(algorithm.notice, donate_argnums=0)
        self._draw = jax.jit(algorithm.draw)
        self._learn = jax.jit(algorithm.learn, donate_argnums=0)
        super().__init__(algorithm, seed, state)

    def placed(self, state: Any) -> Any:
        learned, memory = self.algorithm.split(state)
        return self.algorithm.joined(jax.device_put(learned, self._device), jax.device_put(memory, self._host))

    def _init(self, key: jax.Array) -> Any:
        with jax.default_device(self._host):
            return self.algorithm.init(jax.device_put(key, self._host))

    def _updated(self, state: Any, rollout: Mapping[str, np.ndarray], key: jax.Array) -> tuple[Any, dict[str, Any]]:
        algorithm: Any = self.algorithm
        learned, memory = algorithm.split(state)
        memory = self._remember(memory, jax.device_put(dict(rollout), self._host))
        learned = self._notice(learned, jax.device_put(dict(rollout), self._device))
        rows = []
        if algorithm.is_ready(memory):
            for step_key in algorithm.update_keys(jax.device_put(key, self._host)):
                batch = jax.device_put(self._draw(memory, step_key), self._device)
                learned, row = self._learn(learned, batch, jax.device_put(step_key, self._device))
                rows.append(row)
        metrics = {name: jnp.mean(jnp.stack([row[name] for row in rows])) for name in rows[0]} if rows else {}
        return algorithm.joined(learned, memory), metrics | algorithm.replay_metrics(memory)


def make_learner(algorithm: Algorithm, seed: int) -> Learner:
    """The learner that suits an algorithm."""
    return HostMemoryLearner(algorithm, seed) if algorithm.has_host_memory else Learner(algorithm, seed)


def _is_finite(leaf: Any) -> Any:
    return jnp.isfinite(leaf).all() if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.bool_(True)
