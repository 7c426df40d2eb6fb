"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from unilab.algos.algorithm import require
from unilab.algos.critics import weighted_mean
from unilab.algos.off_policy import OffPolicy, OffPolicyConfig, OffPolicyState
from unilab.algos.replay import Batch


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3, besides those of every off-policy algorithm.

    Attributes:
        critic_learning_rate: step size of Adam for the critics.
        exploration_std: smallest and largest standard deviation of the noise on exploring actions, as a share of half
            their range; spread evenly over the envs (FastTD3, Seo et al. 2025, arXiv 2505.22642).
        target_noise: the same of the noise on the target's actions.
        target_noise_clip: largest noise on the target's actions.
    """

    critic_learning_rate: float = 3e-4
    exploration_std: tuple[float, float] = (0.1, 0.1)
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.exploration_std
        require(self, "exploration_std", 0 <= low <= high, "two numbers of at least 0, the smaller one first")
        for name in ("target_noise", "target_noise_clip"):
            require(self, name, getattr(self, name) >= 0, "at least 0")


class TD3(OffPolicy):
    """TD3 as pure functions: a deterministic actor with a target network, and noise on the target's actions."""

    targets = ("actor", "critic")
    actor_heads = 1

    def draw_noise(self, key: jax.Array, env: jax.Array) -> jax.Array:
        """Normal numbers [A], and the env's standard deviation [1]."""
        low, high = self.config.exploration_std
        std = low + (high - low) * env / max(self.horizon.num_envs - 1, 1)
        return jnp.append(super().draw_noise(key, env), std)

    def explore(self, actor: Any, obs: jax.Array, noise: jax.Array) -> jax.Array:
        normal, std = noise[..., :-1], noise[..., -1:]
        return jnp.clip(self.best(actor, obs) + std * normal, -1.0, 1.0)

    def best(self, actor: Any, obs: jax.Array) -> jax.Array:
        return jnp.tanh(self.forward("actor", actor, obs))

    def next_action(self, state: OffPolicyState, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        config = self.config
        action = self.best(state.targets["actor"], obs)
        noise = config.target_noise * jax.random.normal(key, action.shape)
        noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
        return jnp.clip(action + noise, -1.0, 1.0), jnp.zeros(action.shape[0])

    def improve(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> tuple[OffPolicyState, dict[str, Any]]:
        """Raise the value that the first critic gives."""
        first = jax.tree.map(lambda x: x[:1], state.params["critic"])

        def loss(actor: Any) -> jax.Array:
            (values,) = self.critics.values(first, batch.obs["critic"], self.best(actor, batch.obs["actor"]))
            return -weighted_mean(values, batch.weight)

        loss_actor, grads = jax.value_and_grad(loss)(state.params["actor"])
        return self.stepped(state, "actor", grads), {"loss_actor": loss_actor}
