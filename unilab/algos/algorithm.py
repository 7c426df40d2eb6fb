"""What the runtime needs of a learning algorithm: pure functions over a pytree of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from unilab.algos.networks import Involution

Tree = Any


@dataclass(frozen=True)
class Spaces:
    """Sizes that networks are built for.

    Attributes:
        obs_sizes: length of the groups "actor" and "critic".
        action_size: length of an action.
        mirror: left-right symmetry of "actor", "critic" and "action", or None.
        bounds: smallest and largest sensible action [A]; by default -1 and 1. Only bounded policies heed them.
        shared_obs: whether "critic" is the same as "actor".
    """

    obs_sizes: Mapping[str, int]
    action_size: int
    mirror: Mapping[str, Involution] | None = None
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    shared_obs: bool = False

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest sensible action [A]."""
        one = np.ones(self.action_size, np.float32)
        return self.bounds if self.bounds is not None else (-one, one)


@dataclass(frozen=True)
class Horizon:
    """How a run is cut up: what schedules and shapes are derived from.

    Attributes:
        iterations: planned number of passes of the main loop.
        num_envs: envs N.
        rollout_steps: env steps T of each env in a rollout.
        lag: policy versions between the one that collects a rollout and the one that learns from it.
        episode_steps: time limit of an episode in env steps.
    """

    iterations: int
    num_envs: int
    rollout_steps: int
    lag: int
    episode_steps: int


def require(config: Any, name: str, is_valid: bool, allowed: str) -> None:
    """Check a setting of an algorithm.

    Raises:
        ValueError: it is not valid; names the field, its value and what is allowed.
    """
    if not is_valid:
        raise ValueError(f"algo.{name} is {getattr(config, name)!r}; allowed: {allowed}")


class Algorithm(Protocol):
    """A learning algorithm. `act` runs in the workers, `update` in the learner; both are jitted by the caller."""

    final_groups: tuple[str, ...]
    """Groups of observations whose true successors (`final_obs`) a rollout must hold."""
    has_host_memory: bool
    """Whether remembered data lie in the host's memory, so that `update` is done in parts (see `OffPolicy`)."""

    def init(self, key: jax.Array) -> Tree:
        """State before the first update."""

    def snapshot(self, state: Tree) -> Tree:
        """What a worker needs to act: the actor and the observation normaliser."""

    def draw_noise(self, key: jax.Array, env: jax.Array) -> jax.Array:
        """What one action of env number `env` needs to be random: a vector."""

    def act(
        self, snapshot: Tree, obs: Mapping[str, jax.Array], noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Exploring actions [S, A] for observations [S, n], and what the learner wants to know of them [S, ...]."""

    def act_deterministic(self, snapshot: Tree, obs: Mapping[str, jax.Array]) -> jax.Array:
        """Best actions [S, A], as used for evaluation."""

    def update(
        self, state: Tree, rollout: Mapping[str, jax.Array], key: jax.Array
    ) -> tuple[Tree, dict[str, jax.Array]]:
        """State after learning from a rollout of fields [T, N, ...], and scalar metrics."""

    def split(self, state: Tree) -> tuple[Tree, Tree]:
        """A state as what was learned, and remembered data, such as a replay, that acting does not need."""

    def joined(self, learned: Tree, memory: Tree) -> Tree:
        """The inverse of `split`."""

    def policy_from(self, state: Tree, other: Tree) -> Tree:
        """`state` with the policy (and what it sees through) of `other`, to start from a trained one."""
