"""What SAC and TD3 share: replay, an ensemble of critics, target networks, and the loop of updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from unilab.algos.algorithm import Horizon, Spaces, require
from unilab.algos.critics import CategoricalCritics, Critics, ScalarCritics
from unilab.algos.networks import ACTIVATIONS, MLP, Involution, MirrorMLP, SignedSwap, perceptron
from unilab.algos.normalizer import Normalizer
from unilab.algos.replay import Batch, Replay, add_rollout, make_replay, num_steps, sample, with_mirror_images


@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that SAC and TD3 share; the defaults follow CleanRL's for single robots.

    Attributes:
        rollout_steps: env steps of each env between two rounds of updates.
        replay_steps: env steps that are kept; rounded down to whole rollouts.
        replay_on: "device", where the learner computes; or "host", for more than the device's memory holds: batches are
            fetched while the device learns from earlier ones.
        warm_up_steps: env steps with random actions at first; they count as data.
        updates_per_env_step: gradient steps of the critics per env step collected.
        batch_size: samples of a gradient step.
        learning_rate: step size of Adam for the actor.
        critic_learning_rate: step size of Adam for the critics.
        last_learning_rate: share of the step sizes that is left at the end of the run; they go down linearly.
        discount: gamma, the weight of a reward one env step later.
        n_step: rewards that are summed before bootstrapping.
        polyak: how far the target networks move towards the others per update.
        policy_delay: critic updates per actor update.
        critics: networks in the ensemble.
        critic_reduction: "min" or "mean" of the ensemble.
        critic_atoms: 1 for critics that give a number; more for a distribution over so many values (C51).
        value_range: smallest and largest value of that distribution, in units of the scaled reward.
        actor_hidden: widths of the actor's hidden layers.
        critic_hidden: widths of each critic's hidden layers.
        activation: "elu", "relu", "silu" or "tanh".
        layer_norm: normalise hidden layers before their activation.
        mirror: use of the task's left-right symmetry: "off"; "data", half of each batch is the mirror image of the
            other half; "networks", actor and critics respect it by construction, at half the work of plain ones.
        normalize_obs: scale observations by their running statistics.
        reward_scale: factor on the rewards that the critics learn.
    """

    rollout_steps: int = 8
    replay_steps: int = 1_000_000
    replay_on: Literal["device", "host"] = "device"
    warm_up_steps: int = 5_000
    updates_per_env_step: float = 1.0
    batch_size: int = 256
    learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    last_learning_rate: float = 1.0
    discount: float = 0.99
    n_step: int = 1
    polyak: float = 0.005
    policy_delay: int = 2
    critics: int = 2
    critic_reduction: Literal["min", "mean"] = "min"
    critic_atoms: int = 1
    value_range: tuple[float, float] = (-20.0, 20.0)
    actor_hidden: tuple[int, ...] = (256, 256)
    critic_hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    mirror: Literal["off", "data", "networks"] = "off"
    normalize_obs: bool = False
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in (
            "rollout_steps",
            "replay_steps",
            "batch_size",
            "n_step",
            "policy_delay",
            "critics",
            "critic_atoms",
        ):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        require(self, "warm_up_steps", self.warm_up_steps >= 0, "at least 0")
        for name in ("updates_per_env_step", "learning_rate", "critic_learning_rate", "reward_scale"):
            require(self, name, getattr(self, name) > 0, "greater than 0")
        for name in ("last_learning_rate", "discount", "polyak"):
            require(self, name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        for name in ("actor_hidden", "critic_hidden"):
            require(self, name, all(width >= 1 for width in getattr(self, name)), "widths of at least 1")
        require(self, "activation", self.activation in ACTIVATIONS, f"one of {sorted(ACTIVATIONS)}")
        require(self, "critic_reduction", self.critic_reduction in ("min", "mean"), "min or mean")
        require(self, "value_range", self.value_range[0] < self.value_range[1], "a smaller and a larger number")
        require(self, "replay_on", self.replay_on in ("device", "host"), "device or host")
        require(self, "mirror", self.mirror in ("off", "data", "networks"), "off, data or networks")
        require(self, "batch_size", self.mirror != "data" or self.batch_size % 2 == 0, "even numbers with mirror=data")


class OffPolicyState(NamedTuple):
    """All that an update changes."""

    params: dict[str, Any]
    """Weights: "actor", "critic" (with a leading axis over the ensemble), and what an algorithm adds."""
    targets: dict[str, Any]
    """Weights of the target networks."""
    opt_state: dict[str, Any]
    obs_norm: dict[str, Normalizer]
    updates: jax.Array
    """Gradient steps of the critics so far, int32."""
    env_steps: jax.Array
    """Env steps seen so far, int32."""
    memory: Any
    """The replay, or () in a state that was stored without it."""


class OffPolicySnapshot(NamedTuple):
    """What a worker needs to act."""

    actor: Any
    obs_norm: Normalizer
    is_random: jax.Array
    """Whether to act at random, as in the beginning."""


class OffPolicy(ABC):
    """The frame of an off-policy algorithm; see `Algorithm` for the meaning of the public methods."""

    targets: ClassVar[tuple[str, ...]]
    """Names of the networks that have a target network."""
    actor_heads: ClassVar[int]
    """Numbers that the actor gives per entry of an action."""

    def __init__(self, config: Any, spaces: Spaces, horizon: Horizon) -> None:
        self.config, self.spaces, self.horizon = config, spaces, horizon
        self.has_host_memory = config.replay_on == "host"
        self.final_groups = ("actor",) if spaces.shared_obs else ("actor", "critic")
        self.obs_sizes = {group: spaces.obs_sizes[group] for group in self.final_groups}  # what is kept
        per_rollout = horizon.num_envs * config.rollout_steps
        self.num_rows = config.replay_steps // per_rollout * config.rollout_steps
        self.updates_per_rollout = round(config.updates_per_env_step * per_rollout)
        self._mirror: Mapping[str, Involution] = (spaces.mirror or {}) if config.mirror != "off" else {}
        self._check(per_rollout)
        low, high = spaces.action_bounds
        self.action_middle, self.action_half = jnp.asarray((high + low) / 2), jnp.asarray((high - low) / 2)
        networks = jax.eval_shape(lambda: {name: self.network(name, jax.random.key(0)) for name in ("actor", "critic")})
        self._graphs = {name: nnx.graphdef(network) for name, network in networks.items()}
        self.critics = self._critics()

    def _check(self, per_rollout: int) -> None:
        """Refuse settings that do not fit the task, or each other."""
        config, kept = self.config, self.num_rows * self.horizon.num_envs
        require(config, "replay_steps", kept > 0, f"at least num_envs * rollout_steps = {per_rollout}")
        require(config, "warm_up_steps", config.warm_up_steps <= kept, f"at most the {kept} that are kept")
        updates = config.updates_per_env_step * per_rollout
        is_whole = round(updates) >= 1 and abs(round(updates) - updates) < 1e-6
        allowed = f"whole numbers of updates per rollout of {per_rollout} env steps"
        require(config, "updates_per_env_step", is_whole, allowed)
        if config.mirror != "off":
            require(config, "mirror", bool(self._mirror), "off, as the task has no mirror()")
            low, high = self.spaces.action_bounds
            perm, sign = self._mirror["action"].perm, self._mirror["action"].sign
            is_symmetric = np.allclose(np.where(sign > 0, low[perm], -high[perm]), low)
            require(config, "mirror", is_symmetric, "off, as the task's action_bounds are not mirror images")

    # --- what an algorithm adds -----------------------------------------------------------------------------------

    @abstractmethod
    def explore(self, actor: Any, obs: jax.Array, noise: jax.Array) -> jax.Array:
        """Exploring actions in [-1, 1] for normalised observations."""

    @abstractmethod
    def best(self, actor: Any, obs: jax.Array) -> jax.Array:
        """Best actions in [-1, 1] for normalised observations."""

    @abstractmethod
    def next_action(self, state: OffPolicyState, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B, A] for observations that follow, and a bonus [B] on top of their value."""

    @abstractmethod
    def improve(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> tuple[OffPolicyState, dict[str, Any]]:
        """Update the actor, and what belongs to it."""

    def extra_params(self) -> dict[str, Any]:
        """More parameters than those of actor and critics."""
        return {}

    # --- for the worker -------------------------------------------------------------------------------------------

    def snapshot(self, state: OffPolicyState) -> OffPolicySnapshot:
        is_random = state.env_steps < self.config.warm_up_steps
        return OffPolicySnapshot(state.params["actor"], state.obs_norm["actor"], is_random)

    def draw_noise(self, key: jax.Array, env: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.spaces.action_size,), jnp.float32)

    def act(
        self, snapshot: OffPolicySnapshot, obs: Mapping[str, jax.Array], noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        action = self.explore(snapshot.actor, self.normalized(snapshot.obs_norm, obs["actor"]), noise)
        uniform = 2.0 * jax.scipy.stats.norm.cdf(noise[..., : self.spaces.action_size]) - 1.0
        return self._scaled(jnp.where(snapshot.is_random, uniform, action)), {}

    def act_deterministic(self, snapshot: OffPolicySnapshot, obs: Mapping[str, jax.Array]) -> jax.Array:
        return self._scaled(self.best(snapshot.actor, self.normalized(snapshot.obs_norm, obs["actor"])))

    # --- for the learner ------------------------------------------------------------------------------------------

    def init(self, key: jax.Array) -> OffPolicyState:
        actor_key, *critic_keys = jax.random.split(key, 1 + self.config.critics)
        params = {"actor": nnx.state(self.network("actor", actor_key), nnx.Param)}
        critics = [nnx.state(self.network("critic", k), nnx.Param) for k in critic_keys]
        params["critic"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)
        params |= self.extra_params()
        return OffPolicyState(
            params=params,
            targets={name: jax.tree.map(jnp.copy, params[name]) for name in self.targets},
            opt_state={name: self._optimizer(name).init(tree) for name, tree in params.items()},
            obs_norm={group: Normalizer.of_size(size) for group, size in self.obs_sizes.items()},
            updates=jnp.int32(0),
            env_steps=jnp.int32(0),
            memory=make_replay(
                self.obs_sizes, self.spaces.action_size, self.horizon.num_envs, self.num_rows,
                self.horizon.episode_steps,
            ),
        )  # fmt: skip

    def split(self, state: OffPolicyState) -> tuple[OffPolicyState, Any]:
        return state._replace(memory=()), state.memory

    def joined(self, learned: OffPolicyState, memory: Any) -> OffPolicyState:
        return learned._replace(memory=memory)

    def policy_from(self, state: OffPolicyState, other: OffPolicyState) -> OffPolicyState:
        return state._replace(params=other.params, targets=other.targets, obs_norm=other.obs_norm)

    def update(
        self, state: OffPolicyState, rollout: Mapping[str, jax.Array], key: jax.Array
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """Keep a rollout and do its share of gradient steps, once the replay holds what the warm-up collects."""
        memory = self.remember(state.memory, rollout)
        state = self.notice(state._replace(memory=()), rollout)
        keys = self.update_keys(key)

        def step(state: OffPolicyState, key: jax.Array) -> tuple[OffPolicyState, dict[str, jax.Array]]:
            return self.learn(state, self.draw(memory, key), key)

        def improved(state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
            state, metrics = jax.lax.scan(step, state, keys)
            return state, jax.tree.map(jnp.mean, metrics)

        def unchanged(state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
            shapes = jax.eval_shape(lambda: improved(state)[1])
            return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        state, metrics = jax.lax.cond(self.is_ready(memory), improved, unchanged, state)
        return state._replace(memory=memory), metrics | self.replay_metrics(memory)

    # `update` in parts, for a replay that lies elsewhere than what is learned:

    def remember(self, memory: Replay, rollout: Mapping[str, jax.Array]) -> Replay:
        """The replay with a rollout."""
        return add_rollout(memory, rollout)

    def notice(self, state: OffPolicyState, rollout: Mapping[str, jax.Array]) -> OffPolicyState:
        """What is learned from a rollout besides its share of gradient steps: statistics and counts."""
        return state._replace(
            env_steps=state.env_steps + rollout["reward"].size, obs_norm=self._refreshed(state, rollout)
        )

    def update_keys(self, key: jax.Array) -> jax.Array:
        """The random keys of a rollout's gradient steps."""
        return jax.random.split(key, self.updates_per_rollout)

    def is_ready(self, memory: Replay) -> jax.Array:
        """Whether the replay holds what the warm-up collects."""
        return num_steps(memory) >= max(self.config.warm_up_steps, 1)

    def replay_metrics(self, memory: Replay) -> dict[str, jax.Array]:
        """Metrics about the replay and its use."""
        per_env_step = self.updates_per_rollout / (self.horizon.num_envs * self.config.rollout_steps)
        return {
            "updates_per_env_step": jnp.where(self.is_ready(memory), per_env_step, 0.0),
            "replay_steps": num_steps(memory).astype(jnp.float32),
        }

    def draw(self, memory: Replay, key: jax.Array) -> Batch:
        """The batch of the gradient step with this key."""
        config, size = self.config, self.config.batch_size
        key = jax.random.split(key, 3)[0]
        if config.mirror != "data":
            return sample(memory, key, size, config.n_step, config.discount)
        return with_mirror_images(sample(memory, key, size // 2, config.n_step, config.discount), self._mirror)

    def learn(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """One gradient step of the critics, and every few times one of the actor."""
        config = self.config
        _, target_key, actor_key = jax.random.split(key, 3)
        batch = self._seen(state, batch)
        target = self._target(state, batch, target_key)

        def loss(critic: Any) -> tuple[jax.Array, jax.Array]:
            return self.critics.loss(critic, batch.obs["critic"], batch.action, target, batch.weight)

        (loss_critic, value_mean), grads = jax.value_and_grad(loss, has_aux=True)(state.params["critic"])
        state = self.stepped(state, "critic", grads)
        state = state._replace(updates=state.updates + 1)
        is_due = state.updates % config.policy_delay == 0
        shapes = jax.eval_shape(lambda: self.improve(state, batch, actor_key)[1])
        state, metrics = jax.lax.cond(
            is_due,
            lambda s: self.improve(s, batch, actor_key),
            lambda s: (s, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)),
            state,
        )
        metrics = {name: value * config.policy_delay for name, value in metrics.items()}  # zeros where not due
        moved = {
            name: jax.tree.map(lambda t, p: t + config.polyak * (p - t), state.targets[name], state.params[name])
            for name in self.targets
        }
        return state._replace(targets=moved), metrics | {"loss_critic": loss_critic, "value_mean": value_mean}

    # --- parts ----------------------------------------------------------------------------------------------------

    def forward(self, name: str, params: Any, x: jax.Array) -> jax.Array:
        """Output of a network."""
        return nnx.merge(self._graphs[name], params)(x)

    def stepped(self, state: OffPolicyState, name: str, grads: Any) -> OffPolicyState:
        """`state` after a step of Adam on some parameters."""
        updates, opt_state = self._optimizer(name).update(grads, state.opt_state[name])
        if self.config.last_learning_rate < 1.0:
            progress = jnp.minimum(state.updates / (self.horizon.iterations * self.updates_per_rollout), 1.0)
            share = 1.0 - progress * (1.0 - self.config.last_learning_rate)
            updates = jax.tree.map(lambda update: share * update, updates)
        new = optax.apply_updates(state.params[name], updates)
        return state._replace(params=state.params | {name: new}, opt_state=state.opt_state | {name: opt_state})

    def normalized(self, norm: Normalizer, obs: jax.Array) -> jax.Array:
        """Observations as the networks see them."""
        return norm.normalize(obs) if self.config.normalize_obs else obs

    def _seen(self, state: OffPolicyState, batch: Batch) -> Batch:
        """A batch as the networks see it."""

        def seen(obs: dict[str, jax.Array]) -> dict[str, jax.Array]:
            obs = {group: self.normalized(state.obs_norm[group], x) for group, x in obs.items()}
            return {"critic": obs["actor"], **obs}

        return batch._replace(
            obs=seen(batch.obs),
            next_obs=seen(batch.next_obs),
            action=(batch.action - self.action_middle) / self.action_half,
            reward=batch.reward * self.config.reward_scale,
        )

    def _target(self, state: OffPolicyState, batch: Batch, key: jax.Array) -> jax.Array:
        """What the critics should say of a batch."""
        action, bonus = self.next_action(state, batch.next_obs["actor"], key)
        obs = batch.next_obs["critic"]
        target = self.critics.target(state.targets["critic"], obs, action, bonus, batch.reward, batch.discount)
        return jax.lax.stop_gradient(target)

    def _refreshed(self, state: OffPolicyState, rollout: Mapping[str, jax.Array]) -> dict[str, Normalizer]:
        if not self.config.normalize_obs:
            return state.obs_norm
        weight = rollout["weight"].reshape(-1)
        refreshed = {}
        for group, norm in state.obs_norm.items():
            norm = norm.update(rollout[f"obs/{group}"].reshape(-1, norm.mean.size), weight)
            if self._mirror:
                norm = norm.symmetrized(self._mirror[group].perm, self._mirror[group].sign)
            refreshed[group] = norm
        return refreshed

    def _scaled(self, action: jax.Array) -> jax.Array:
        return self.action_middle + self.action_half * action

    def _optimizer(self, name: str) -> optax.GradientTransformation:
        return optax.adam(self.config.learning_rate if name == "actor" else self.config.critic_learning_rate)

    def network(self, name: str, key: jax.Array) -> MLP | MirrorMLP:
        """The actor, or one of the ensemble "critic"."""
        config, size, sizes = self.config, self.spaces.action_size, self.spaces.obs_sizes
        shape = {
            "actor": (sizes["actor"], config.actor_hidden, self.actor_heads * size),
            "critic": (sizes["critic"] + size, config.critic_hidden, config.critic_atoms),
        }[name]
        return perceptron(
            *shape, *self._network_mirrors(name), activation=config.activation, layer_norm=config.layer_norm,
            head_scale=0.01 if name == "actor" else 1.0, rngs=nnx.Rngs(key),
        )  # fmt: skip

    def _network_mirrors(self, name: str) -> tuple[Involution | None, Involution | None]:
        """Symmetry of a network's input and output."""
        if self.config.mirror != "networks":
            return None, None
        mirror = self._mirror
        if name == "critic":
            return SignedSwap.concatenated(mirror["critic"], mirror["action"]), None
        std = SignedSwap(mirror["action"].perm, np.abs(mirror["action"].sign))  # of an action: it has no side
        return mirror["actor"], SignedSwap.concatenated(mirror["action"], *[std] * (self.actor_heads - 1))

    def _critics(self) -> Critics:
        config = self.config

        def network(params: Any, x: jax.Array) -> jax.Array:
            return self.forward("critic", params, x)

        if config.critic_atoms == 1:
            return ScalarCritics(network, config.critic_reduction)
        lowest, highest = config.value_range
        support = jnp.linspace(lowest, highest, config.critic_atoms)
        return CategoricalCritics(network, config.critic_reduction, support)
