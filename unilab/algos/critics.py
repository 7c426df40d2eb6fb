"""Ensembles of critics: values as numbers, or as distributions over fixed values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Critics(ABC):
    """An ensemble of E critics, whose parameters have a leading axis E.

    Attributes:
        network: output [B, K] of one critic, given its parameters and observations and actions in one array [B, n].
        reduction: "min" or "mean" of the ensemble.
    """

    network: Callable[[Any, jax.Array], jax.Array]
    reduction: str

    def outputs(self, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Outputs [E, B, K] for normalised observations [B, n] and actions in [-1, 1] [B, A]."""
        x = jnp.concatenate([obs, action], axis=-1)
        return jax.vmap(self.network, in_axes=(0, None))(params, x)

    @abstractmethod
    def values(self, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Values [E, B]."""

    def reduced(self, values: jax.Array) -> jax.Array:
        """One value [B] from those of the ensemble [E, B]."""
        return jnp.min(values, axis=0) if self.reduction == "min" else jnp.mean(values, axis=0)

    @abstractmethod
    def target(
        self, params: Any, obs: jax.Array, action: jax.Array, bonus: jax.Array, reward: jax.Array, discount: jax.Array
    ) -> jax.Array:
        """What to learn: `reward + discount * (value of what follows + bonus)`, all [B], in the form of `loss`."""

    @abstractmethod
    def loss(
        self, params: Any, obs: jax.Array, action: jax.Array, target: jax.Array, weight: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Loss of the ensemble, and its mean value, for samples of weight 0 or 1 [B]."""


@dataclass(frozen=True)
class ScalarCritics(Critics):
    """Critics whose output is the value; they learn the mean squared error."""

    def values(self, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        return self.outputs(params, obs, action)[..., 0]

    def target(
        self, params: Any, obs: jax.Array, action: jax.Array, bonus: jax.Array, reward: jax.Array, discount: jax.Array
    ) -> jax.Array:
        return reward + discount * (self.reduced(self.values(params, obs, action)) + bonus)

    def loss(
        self, params: Any, obs: jax.Array, action: jax.Array, target: jax.Array, weight: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        values = self.values(params, obs, action)
        return jnp.sum(weighted_mean(jnp.square(values - target), weight)), jnp.mean(values)


@dataclass(frozen=True)
class CategoricalCritics(Critics):
    """Critics whose output is the logits of a distribution over `support`; they learn its cross-entropy.

    C51 (Bellemare et al. 2017, arXiv 1707.06887). The reduction "min" takes, sample by sample, the distribution of the
    critic with the smallest mean; "mean" takes their mixture.

    Attributes:
        support: equally spaced values [K]; what lies beyond counts as the first or the last of them.
    """

    support: jax.Array

    def values(self, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        return jax.nn.softmax(self.outputs(params, obs, action)) @ self.support

    def target(
        self, params: Any, obs: jax.Array, action: jax.Array, bonus: jax.Array, reward: jax.Array, discount: jax.Array
    ) -> jax.Array:
        """Probabilities [B, K]."""
        each = jax.nn.softmax(self.outputs(params, obs, action))
        if self.reduction == "min":
            lowest = jnp.argmin(each @ self.support, axis=0)
            chosen = jnp.take_along_axis(each, lowest[None, :, None], axis=0)[0]
        else:
            chosen = jnp.mean(each, axis=0)
        moved = reward[:, None] + discount[:, None] * (self.support + bonus[:, None])
        return jax.vmap(projected, in_axes=(0, 0, None))(chosen, moved, self.support)

    def loss(
        self, params: Any, obs: jax.Array, action: jax.Array, target: jax.Array, weight: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        logits = self.outputs(params, obs, action)
        cross_entropy = -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
        return jnp.sum(weighted_mean(cross_entropy, weight)), jnp.mean(jax.nn.softmax(logits) @ self.support)


def projected(probs: jax.Array, values: jax.Array, support: jax.Array) -> jax.Array:
    """Probabilities [K] of `values` [K], each shared between its two neighbours in `support` [K]."""
    last = support.shape[0] - 1
    position = jnp.clip((values - support[0]) / (support[1] - support[0]), 0.0, last)
    below = jnp.clip(jnp.floor(position).astype(jnp.int32), 0, last - 1)
    share = position - below
    return jnp.zeros_like(probs).at[below].add(probs * (1.0 - share)).at[below + 1].add(probs * share)


def weighted_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Mean over the last axis of x [..., B] with weights [B] of 0 or 1."""
    return jnp.sum(x * weight, axis=-1) / jnp.maximum(jnp.sum(weight), 1.0)
