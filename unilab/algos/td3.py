"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from unilab.algos.algorithm import require
from unilab.algos.off_policy import OffPolicy, OffPolicyConfig, OffPolicyState, weighted_mean
from unilab.algos.replay import Batch


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3, besides those of every off-policy algorithm.

    Attributes:
        critic_learning_rate: step size of Adam for the critics.
        exploration_std: standard deviation of the noise on exploring actions, as a share of half their range.
        target_noise: the same of the noise on the target's actions.
        target_noise_clip: largest noise on the target's actions.
    """

    critic_learning_rate: float = 3e-4
    exploration_std: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exploration_std", "target_noise", "target_noise_clip"):
            require(self, name, getattr(self, name) >= 0, "at least 0")


class TD3(OffPolicy):
    """TD3 as pure functions: a deterministic actor with a target network, and noise on the target's actions."""

    targets = ("actor", "critic")

    def network(self, name: str, key: jax.Array) -> nnx.Module:
        size = self.spaces.action_size
        if name == "actor":
            return self.perceptron("actor", self.config.actor_hidden, size, key)
        return self.perceptron("critic", self.config.critic_hidden, 1, key, more=size)

    def explore(self, actor: Any, obs: jax.Array, noise: jax.Array) -> jax.Array:
        return jnp.clip(self.best(actor, obs) + self.config.exploration_std * noise, -1.0, 1.0)

    def best(self, actor: Any, obs: jax.Array) -> jax.Array:
        return jnp.tanh(self.forward("actor", actor, obs))

    def next_value(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> jax.Array:
        config = self.config
        action = self.best(state.targets["actor"], batch.next_obs["actor"])
        noise = config.target_noise * jax.random.normal(key, action.shape)
        noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
        return self.reduced(self.values(state.targets["critic"], batch.next_obs["critic"], action))

    def improve(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> tuple[OffPolicyState, dict[str, Any]]:
        """Raise the value that the first critic gives."""

        def loss(actor: Any) -> jax.Array:
            values = self.values(state.params["critic"], batch.obs["critic"], self.best(actor, batch.obs["actor"]))
            return -weighted_mean(values[0], batch.weight)

        loss_actor, grads = jax.value_and_grad(loss)(state.params["actor"])
        return self.stepped(state, "actor", grads), {"loss_actor": loss_actor}
