"""SAC: soft actor-critic with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from unilab.algos.algorithm import require
from unilab.algos.critics import weighted_mean
from unilab.algos.distributions import gaussian_log_prob
from unilab.algos.off_policy import OffPolicy, OffPolicyConfig, OffPolicyState
from unilab.algos.replay import Batch

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC, besides those of every off-policy algorithm.

    Attributes:
        init_temperature: weight of the entropy at first.
        target_entropy_scale: the entropy aimed at is minus this times the number of actions [nats].
        init_std: standard deviation of the actions at first, before they are bounded by tanh.
    """

    init_temperature: float = 1.0
    target_entropy_scale: float = 1.0
    init_std: float = 0.22

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "init_temperature", self.init_temperature > 0, "greater than 0")
        least, most = math.exp(LOG_STD_MIN), math.exp(LOG_STD_MAX)
        require(self, "init_std", least < self.init_std < most, f"between {least:.3f} and {most:.1f}")


class SAC(OffPolicy):
    """SAC as pure functions: a tanh-Gaussian actor, an ensemble of critics, a temperature that keeps the entropy."""

    targets = ("critic",)
    actor_heads = 2

    def extra_params(self) -> dict[str, Any]:
        return {"log_temperature": jnp.float32(math.log(self.config.init_temperature))}

    def explore(self, actor: Any, obs: jax.Array, noise: jax.Array) -> jax.Array:
        mean, log_std = self._gaussian(actor, obs)
        return jnp.tanh(mean + jnp.exp(log_std) * noise)

    def best(self, actor: Any, obs: jax.Array) -> jax.Array:
        return jnp.tanh(self._gaussian(actor, obs)[0])

    def next_action(self, state: OffPolicyState, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        action, log_prob = self._drawn(state.params["actor"], obs, key)
        return action, -jnp.exp(state.params["log_temperature"]) * log_prob

    def improve(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> tuple[OffPolicyState, dict[str, Any]]:
        """Raise value plus entropy, then move the temperature towards the wanted entropy."""
        temperature = jnp.exp(state.params["log_temperature"])

        def actor_loss(actor: Any) -> tuple[jax.Array, jax.Array]:
            action, log_prob = self._drawn(actor, batch.obs["actor"], key)
            values = self.critics.values(state.params["critic"], batch.obs["critic"], action)
            return weighted_mean(temperature * log_prob - self.critics.reduced(values), batch.weight), log_prob

        (loss_actor, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.params["actor"])
        state = self.stepped(state, "actor", grads)
        excess = weighted_mean(-log_prob, batch.weight) + self.config.target_entropy_scale * self.spaces.action_size
        state = self.stepped(state, "log_temperature", jnp.exp(state.params["log_temperature"]) * excess)
        return state, {"loss_actor": loss_actor, "entropy": -jnp.mean(log_prob), "temperature": temperature}

    def _gaussian(self, actor: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, raw = jnp.split(self.forward("actor", actor, obs), 2, axis=-1)
        middle, half = (LOG_STD_MAX + LOG_STD_MIN) / 2, (LOG_STD_MAX - LOG_STD_MIN) / 2
        at_first = math.atanh((math.log(self.config.init_std) - middle) / half)
        return mean, middle + half * jnp.tanh(raw + at_first)

    def _drawn(self, actor: Any, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions in [-1, 1] [B, A] and their log-density there [B]."""
        mean, log_std = self._gaussian(actor, obs)
        before = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return jnp.tanh(before), tanh_gaussian_log_prob(before, mean, log_std)


def tanh_gaussian_log_prob(before: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """Log-density of tanh(before), where `before` is Gaussian; [..., A] -> [...].

    log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)) without cancellation for large x.
    """
    correction = 2.0 * (math.log(2.0) - before - jax.nn.softplus(-2.0 * before))
    return gaussian_log_prob(before, mean, log_std) - jnp.sum(correction, axis=-1)
