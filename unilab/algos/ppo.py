"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) with a Gaussian actor and a separate critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from unilab.algos.algorithm import Horizon, Spaces, require
from unilab.algos.distributions import gaussian_entropy, gaussian_kl, gaussian_log_prob
from unilab.algos.networks import ACTIVATIONS, MLP, MirrorMLP, perceptron
from unilab.algos.normalizer import Normalizer
from unilab.algos.returns import gae


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO; the defaults follow rsl_rl's for legged robots.

    Attributes:
        rollout_steps: env steps of each env between two updates.
        epochs: passes over a rollout.
        minibatches: parts of each pass, one gradient step each.
        learning_rate: initial step size of Adam.
        schedule: "adaptive" keeps the KL divergence near `kl_target`; "linear" falls to 0; "constant".
        kl_target: KL divergence that "adaptive" aims at, from the policy before an update to its last epoch [nats].
        max_learning_rate: upper bound for "adaptive".
        discount: gamma, the weight of a reward one env step later.
        trace: lambda of GAE.
        clip: half-width of the trust region of the probability ratio.
        value_clip: largest change of a normalised value per iteration; 0 switches the clipping off.
        value_weight: weight of the critic's loss.
        entropy_weight: weight of the entropy bonus.
        max_grad_norm: bound on the gradient's norm, for actor and critic each.
        init_std: initial standard deviation of actions.
        actor_hidden: widths of the actor's hidden layers.
        critic_hidden: widths of the critic's hidden layers.
        activation: "elu", "relu", "silu" or "tanh".
        mirror: respect the task's left-right symmetry, where it has one.
        normalize_obs: scale observations by their running statistics.
    """

    rollout_steps: int = 24
    epochs: int = 5
    minibatches: int = 4
    learning_rate: float = 1e-3
    schedule: Literal["adaptive", "linear", "constant"] = "adaptive"
    kl_target: float = 0.02
    max_learning_rate: float = 1e-2
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.2
    value_weight: float = 1.0
    entropy_weight: float = 0.005
    max_grad_norm: float = 1.0
    init_std: float = 0.5
    actor_hidden: tuple[int, ...] = (128, 128)
    critic_hidden: tuple[int, ...] = (128, 128)
    activation: str = "elu"
    mirror: bool = True
    normalize_obs: bool = True

    def __post_init__(self) -> None:
        for name in ("rollout_steps", "epochs", "minibatches"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "kl_target", "max_learning_rate", "clip", "max_grad_norm", "init_std"):
            require(self, name, getattr(self, name) > 0, "greater than 0")
        for name in ("discount", "trace"):
            require(self, name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        for name in ("value_clip", "value_weight", "entropy_weight"):
            require(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("actor_hidden", "critic_hidden"):
            require(self, name, all(width >= 1 for width in getattr(self, name)), "widths of at least 1")
        require(self, "activation", self.activation in ACTIVATIONS, f"one of {sorted(ACTIVATIONS)}")
        require(self, "schedule", self.schedule in ("adaptive", "linear", "constant"), "adaptive, linear or constant")


class Snapshot(NamedTuple):
    """What a worker needs to act."""

    actor: nnx.State
    log_std: jax.Array
    obs_norm: Normalizer


class PPOState(NamedTuple):
    """All that an update changes."""

    params: dict[str, Any]
    """"actor" and "critic" weights, and "log_std" [A]."""
    opt_state: Any
    obs_norm: dict[str, Normalizer]
    value_norm: Normalizer
    learning_rate: jax.Array
    iteration: jax.Array


class PPO:
    """PPO as pure functions; see `Algorithm` for the meaning of the methods."""

    final_groups = ("critic",)
    has_host_memory = False

    def __init__(self, config: PPOConfig, spaces: Spaces, horizon: Horizon) -> None:
        batch = horizon.num_envs * config.rollout_steps
        if batch % config.minibatches:
            raise ValueError(
                f"algo.minibatches is {config.minibatches}; allowed: divisors of num_envs * rollout_steps = {batch}"
            )
        self.config, self.spaces, self.horizon = config, spaces, horizon
        self._mirror = spaces.mirror if config.mirror else None
        networks = jax.eval_shape(lambda: self._networks(jax.random.key(0)))
        self._graphs = {name: nnx.graphdef(network) for name, network in networks.items()}
        self._optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    # --- for the worker -------------------------------------------------------------------------------------------

    def snapshot(self, state: PPOState) -> Snapshot:
        return Snapshot(state.params["actor"], state.params["log_std"], state.obs_norm["actor"])

    def draw_noise(self, key: jax.Array, env: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.spaces.action_size,), jnp.float32)

    def act(
        self, snapshot: Snapshot, obs: Mapping[str, jax.Array], noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        mean = self.act_deterministic(snapshot, obs)
        log_std = self._symmetric_log_std(snapshot.log_std)
        action = mean + jnp.exp(log_std) * noise
        return action, {"log_prob": gaussian_log_prob(action, mean, log_std)}

    def act_deterministic(self, snapshot: Snapshot, obs: Mapping[str, jax.Array]) -> jax.Array:
        return self._forward("actor", snapshot.actor, self._normalized(snapshot.obs_norm, obs["actor"]))

    # --- for the learner ------------------------------------------------------------------------------------------

    def init(self, key: jax.Array) -> PPOState:
        params: dict[str, Any] = {name: nnx.state(net, nnx.Param) for name, net in self._networks(key).items()}
        params["log_std"] = jnp.full(self.spaces.action_size, jnp.log(self.config.init_std), jnp.float32)
        return PPOState(
            params=params,
            opt_state={name: self._optimizer.init(tree) for name, tree in _halves(params).items()},
            obs_norm={group: Normalizer.of_size(size) for group, size in self.spaces.obs_sizes.items()},
            value_norm=Normalizer.of_size(1),
            learning_rate=jnp.float32(self.config.learning_rate),
            iteration=jnp.int32(0),
        )

    def split(self, state: PPOState) -> tuple[PPOState, tuple[()]]:
        return state, ()

    def joined(self, learned: PPOState, memory: tuple[()]) -> PPOState:
        return learned

    def policy_from(self, state: PPOState, other: PPOState) -> PPOState:
        return state._replace(params=other.params, obs_norm=other.obs_norm, value_norm=other.value_norm)

    def update(
        self, state: PPOState, rollout: Mapping[str, jax.Array], key: jax.Array
    ) -> tuple[PPOState, dict[str, jax.Array]]:
        """One iteration: advantages, then `epochs` passes over the rollout in parts, then the normalisers."""
        config = self.config
        samples, targets = self._samples(state, rollout)
        batch = targets.shape[0]
        keys = jax.random.split(key, config.epochs)
        order = jnp.stack([_random_order(k, batch) for k in keys])
        order = order.reshape(config.epochs * config.minibatches, batch // config.minibatches)

        def minibatch(state: PPOState, index: jax.Array) -> tuple[PPOState, dict[str, jax.Array]]:
            return self._step(state, jax.tree.map(lambda x: x[index], samples))

        old_value = state.value_norm.mean + samples["value"] * state.value_norm.std
        state, metrics = jax.lax.scan(minibatch, state, order)

        first, final_kl = metrics.pop("ratio_error")[0], jnp.mean(metrics["kl"][-config.minibatches :])
        metrics = jax.tree.map(jnp.mean, metrics)
        weight = samples["weight"]
        metrics |= {
            "first_ratio_error": first,
            "final_kl": final_kl,
            "learning_rate": state.learning_rate,
            "std": jnp.mean(jnp.exp(state.params["log_std"])),
            "explained_variance": _explained_variance(old_value, targets, weight),
            "value_mean": _weighted_mean(old_value, weight),
        }
        state = state._replace(learning_rate=self._next_learning_rate(state, final_kl))
        return self._refresh_normalizers(state, rollout, targets, weight), metrics

    def _samples(self, state: PPOState, rollout: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        """Samples [B, ...], seen through the statistics that they were collected with, and value targets [B]."""
        weight = rollout["weight"]
        ended = jnp.maximum(rollout["terminated"], rollout["truncated"])
        actor_obs = self._normalized(state.obs_norm["actor"], rollout["obs/actor"])
        critic_obs = self._normalized(state.obs_norm["critic"], rollout["obs/critic"])
        value = self._value(state, critic_obs)
        value_scale = state.value_norm.mean + value * state.value_norm.std
        next_value = self._next_values(state, value_scale, ended, rollout["final_obs/critic"])
        advantage = gae(
            rollout["reward"], value_scale, next_value, rollout["terminated"], ended, weight,
            self.config.discount, self.config.trace,
        )  # fmt: skip
        mean = self._forward("actor", state.params["actor"], actor_obs)
        log_std = self._symmetric_log_std(state.params["log_std"])
        # With lag 0 the rollout's policy is today's: its log-probabilities come from the very arithmetic that the
        # minibatches use, so that the first ratio is 1 to the last bit. With lag they come from the worker.
        own_log_prob = gaussian_log_prob(rollout["action"], mean, log_std)
        samples = {
            "actor_obs": actor_obs, "critic_obs": critic_obs, "action": rollout["action"], "mean": mean,
            "log_prob": own_log_prob if self.horizon.lag == 0 else rollout["log_prob"],
            "advantage": _standardized(advantage, weight), "value": value, "weight": weight,
            "target": (advantage + value_scale - state.value_norm.mean) / state.value_norm.std,
            "log_std": jnp.broadcast_to(log_std, mean.shape),
        }  # fmt: skip
        flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in samples.items()}
        return flat, (advantage + value_scale).reshape(-1)

    def _next_values(self, state: PPOState, value: jax.Array, ended: jax.Array, final_obs: jax.Array) -> jax.Array:
        """Values of the true successors [T, N]: the next row's value, or that of `final_obs` where there is none.

        Only the last row and the ended steps are evaluated anew, in blocks of N rows, as many as there are.
        """
        steps, num_envs = value.shape
        is_needed = (ended > 0).at[-1].set(True).reshape(-1)
        index = jnp.nonzero(is_needed, size=steps * num_envs, fill_value=steps * num_envs)[0]
        rows = final_obs.reshape(steps * num_envs, -1)
        padded = jnp.concatenate([index, jnp.full(num_envs, steps * num_envs, index.dtype)])

        def block(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            start, values = carry
            chosen = jax.lax.dynamic_slice_in_dim(padded, start, num_envs)
            obs = self._normalized(state.obs_norm["critic"], rows[jnp.minimum(chosen, len(rows) - 1)])
            new = state.value_norm.mean + self._value(state, obs) * state.value_norm.std
            return start + num_envs, values.at[chosen].set(new, mode="drop")

        shifted = jnp.concatenate([value[1:], value[-1:]]).reshape(-1)
        count = jnp.sum(is_needed)
        _, values = jax.lax.while_loop(lambda carry: carry[0] < count, block, (jnp.int32(0), shifted))
        return values.reshape(steps, num_envs)

    def _step(self, state: PPOState, batch: Mapping[str, jax.Array]) -> tuple[PPOState, dict[str, jax.Array]]:
        """One gradient step on a minibatch."""
        (_, metrics), grads = jax.value_and_grad(self._loss, has_aux=True)(state.params, batch)
        params: dict[str, Any] = {}
        opt_state: dict[str, Any] = {}
        for name, tree in _halves(state.params).items():
            updates, opt_state[name] = self._optimizer.update(_halves(grads)[name], state.opt_state[name])
            params |= jax.tree.map(lambda p, u: p - state.learning_rate * u, tree, updates)
        metrics["grad_norm"] = optax.tree.norm(grads)
        return state._replace(params=params, opt_state=opt_state), metrics

    def _loss(self, params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        config, weight = self.config, batch["weight"]
        mean = self._forward("actor", params["actor"], batch["actor_obs"])
        log_std = self._symmetric_log_std(params["log_std"])
        ratio = jnp.exp(gaussian_log_prob(batch["action"], mean, log_std) - batch["log_prob"])
        clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
        advantage = batch["advantage"]
        loss_actor = -_weighted_mean(jnp.minimum(ratio * advantage, clipped * advantage), weight)

        value = self._forward("critic", params["critic"], batch["critic_obs"])[..., 0]
        error = jnp.square(value - batch["target"])
        if config.value_clip > 0:
            near = batch["value"] + jnp.clip(value - batch["value"], -config.value_clip, config.value_clip)
            error = jnp.maximum(error, jnp.square(near - batch["target"]))
        loss_critic = 0.5 * _weighted_mean(error, weight)

        entropy = gaussian_entropy(log_std)
        loss = loss_actor + config.value_weight * loss_critic - config.entropy_weight * entropy
        kl = gaussian_kl(batch["mean"], batch["log_std"], mean, log_std)
        return loss, {
            "loss_actor": loss_actor,
            "loss_critic": loss_critic,
            "entropy": entropy,
            "kl": _weighted_mean(kl, weight),
            "clip_fraction": _weighted_mean(jnp.abs(ratio - 1.0) > config.clip, weight),
            "ratio_error": jnp.max(jnp.abs(ratio - 1.0)),
        }

    def _refresh_normalizers(
        self, state: PPOState, rollout: Mapping[str, jax.Array], targets: jax.Array, weight: jax.Array
    ) -> PPOState:
        """Statistics that include this rollout; the critic's head is rescaled so that its values stay what they are
        (van Hasselt et al. 2016, arXiv 1602.07714)."""
        obs_norm = dict(state.obs_norm)
        for group, norm in obs_norm.items() if self.config.normalize_obs else ():
            obs = rollout[f"obs/{group}"]
            obs_norm[group] = norm.update(obs.reshape(-1, obs.shape[-1]), weight)
            if self._mirror is not None:
                obs_norm[group] = obs_norm[group].symmetrized(self._mirror[group].perm, self._mirror[group].sign)
        old, new = state.value_norm, state.value_norm.update(targets[:, None], weight)
        critic = nnx.merge(self._graphs["critic"], state.params["critic"])
        critic.head.kernel[...] = critic.head.kernel[...] * old.std / new.std
        critic.head.bias[...] = (critic.head.bias[...] * old.std + old.mean - new.mean) / new.std
        params = state.params | {"critic": nnx.state(critic, nnx.Param)}
        return state._replace(params=params, obs_norm=obs_norm, value_norm=new, iteration=state.iteration + 1)

    def _next_learning_rate(self, state: PPOState, kl: jax.Array) -> jax.Array:
        """Step size of the next update, given how far this one moved the policy [nats]."""
        config = self.config
        if config.schedule == "linear":
            return config.learning_rate * jnp.maximum(1.0 - (state.iteration + 1) / self.horizon.iterations, 0.0)
        if config.schedule == "constant":
            return state.learning_rate
        # The divergence grows as the square of the step; half of the correction in the exponent damps the loop.
        factor = jnp.clip(jnp.sqrt(config.kl_target / jnp.maximum(kl, 1e-6)), 1 / 1.5, 1.5)
        return jnp.clip(state.learning_rate * factor, 1e-5, config.max_learning_rate)

    # --- networks -------------------------------------------------------------------------------------------------

    def _networks(self, key: jax.Array) -> dict[str, Any]:
        config, sizes = self.config, self.spaces.obs_sizes
        actor_key, critic_key = jax.random.split(key)

        mirror = self._mirror or {}

        def network(
            group: str, hidden: tuple[int, ...], output: str, size: int, scale: float, key: jax.Array
        ) -> MLP | MirrorMLP:
            return perceptron(
                sizes[group], hidden, size, mirror.get(group), mirror.get(output),
                activation=config.activation, head_scale=scale, rngs=nnx.Rngs(key),
            )  # fmt: skip

        return {
            "actor": network("actor", config.actor_hidden, "action", self.spaces.action_size, 0.01, actor_key),
            "critic": network("critic", config.critic_hidden, "value", 1, 1.0, critic_key),
        }

    def _forward(self, name: str, params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(self._graphs[name], params)(x)

    def _value(self, state: PPOState, critic_obs: jax.Array) -> jax.Array:
        """Normalised values [...] of normalised observations."""
        return self._forward("critic", state.params["critic"], critic_obs)[..., 0]

    def _normalized(self, norm: Normalizer, obs: jax.Array) -> jax.Array:
        return norm.normalize(obs) if self.config.normalize_obs else obs

    def _symmetric_log_std(self, log_std: jax.Array) -> jax.Array:
        if self._mirror is None:
            return log_std
        return 0.5 * (log_std + log_std[self._mirror["action"].perm])


def _random_order(key: jax.Array, n: int) -> jax.Array:
    """Indices 0..n-1 in random order: one sort of words, random above and an index below.

    On a CPU this takes a tenth of `jax.random.permutation`, which sorts pairs twice. Words with equal random bits keep
    their order, which moves a sample by a few places among thousands.
    """
    bits = max(n - 1, 1).bit_length()
    mask = jnp.uint32(2**bits - 1)
    words = (jax.random.bits(key, (n,)) & ~mask) | jnp.arange(n, dtype=jnp.uint32)
    return (jnp.sort(words) & mask).astype(jnp.int32)


def _halves(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Weights by owner: the actor's with `log_std`, and the critic's; each has its own gradient norm."""
    return {
        "actor": {"actor": params["actor"], "log_std": params["log_std"]},
        "critic": {"critic": params["critic"]},
    }


def _weighted_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.sum(x * weight) / jnp.maximum(jnp.sum(weight), 1.0)


def _standardized(x: jax.Array, weight: jax.Array) -> jax.Array:
    mean = _weighted_mean(x, weight)
    return (x - mean) * jax.lax.rsqrt(_weighted_mean(jnp.square(x - mean), weight) + 1e-8)


def _explained_variance(value: jax.Array, target: jax.Array, weight: jax.Array) -> jax.Array:
    """1 - Var(target - value) / Var(target); 1 is perfect, 0 no better than a constant."""

    def variance(x: jax.Array) -> jax.Array:
        return _weighted_mean(jnp.square(x - _weighted_mean(x, weight)), weight)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
