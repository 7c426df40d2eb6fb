"""`unilab bench learner`: gradient steps per second on data from memory, on each of JAX's devices."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.algos.replay import VALID, Replay
from unilab.bench.compare import DEFAULT_TASKS
from unilab.bench.measure import Contender, Tell, close_all, interleaved
from unilab.bench.result import Row, make_result, make_row
from unilab.bench.sbx import INSTALL, Sbx
from unilab.config import Config, make_config
from unilab.runtime.learner import Learner
from unilab.runtime.plan import Plan
from unilab.runtime.ring import TOTALS
from unilab.runtime.xla import set_learner_threads

OURS = "unilab"
HIDDEN = (256, 256)
BATCH_SIZE = 256
REPLAY_STEPS = 100_000
EPOCHS = 10
ROLLOUT_STEPS = {"ppo": 256, "sac": 8, "td3": 8}
POLICY_DELAY = {"sac": 1, "td3": 2}
"""SBX's defaults, on both sides. Target networks move with every update of the critics, on both sides too."""


def bench_learner(
    tell: Tell, algo: Sequence[str] = ("sac", "td3", "ppo"), tasks: Sequence[str] = DEFAULT_TASKS,
    num_envs: Sequence[int] = (8,), updates_per_env_step: Sequence[int] = (1, 8), repeats: int = 5,
    sbx_python: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare our jitted update with SBX's on the sizes of some tasks, batch 256 and two hidden layers of 256.

    Args:
        algo: names of algorithms.
        updates_per_env_step: for SAC and TD3; PPO makes its passes over a rollout.
        sbx_python: interpreter that has sbx-rl; without it SBX is skipped.
    """
    threads, rows = set_learner_threads(None), list[Row]()
    versions: dict[str, str] = {}
    for name, task, count, platform in itertools.product(algo, tasks, num_envs, platforms()):
        for updates in updates_per_env_step if name != "ppo" else (1,):
            config = learner_config(name, task, count, updates)
            title = f"{name}, {task}, {updates} updates per env step, {platform}"
            tell(f"{title}: starting")
            with jax.default_device(jax.devices(platform)[0]):
                contenders: list[Contender] = []
                try:
                    ours = Updates(config)
                    contenders.append(ours)
                    if sbx_python is not None:
                        settings = sbx_settings(config, ours.plan) | {"mode": "updates"}
                        contenders.append(other := Sbx("sbx", sbx_python, settings, threads, platform))
                        versions |= other.versions
                    rates = interleaved(contenders, repeats, tell, title)
                finally:
                    close_all(contenders)
            rows += [_row(each.name, config, rates, platform) for each in contenders]
    options = {
        "algo": algo, "tasks": tasks, "num_envs": num_envs, "updates_per_env_step": updates_per_env_step,
        "repeats": repeats, "batch_size": BATCH_SIZE, "hidden": HIDDEN, "replay_steps": REPLAY_STEPS,
        "rollout_steps": ROLLOUT_STEPS, "policy_delay": POLICY_DELAY, "learner_threads": threads, "sbx": versions,
    }  # fmt: skip
    return make_result("learner", options, rows, [] if sbx_python else [sbx_skipped()])


def platforms() -> list[str]:
    """JAX's platforms here: the default one, and the CPU."""
    return list(dict.fromkeys([jax.devices()[0].platform, "cpu"]))


def sbx_skipped() -> dict[str, str]:
    """Says that SBX was left out, and how to have it."""
    return {"backend": "sbx", "reason": f"no interpreter given; {INSTALL}", "install": INSTALL}


def learner_config(algo: str, task: str, num_envs: int, updates: int = 1, **more: Any) -> Config:
    """A configuration with the sizes that are compared."""
    settings: dict[str, Any] = {
        "num_envs": num_envs, "shard_size": None, "lag": 0, "algo.rollout_steps": ROLLOUT_STEPS[algo],
        "algo.actor_hidden": HIDDEN, "algo.critic_hidden": HIDDEN,
    }  # fmt: skip
    if algo == "ppo":
        samples = num_envs * ROLLOUT_STEPS[algo]
        settings |= {"algo.epochs": EPOCHS, "algo.minibatches": max(1, samples // BATCH_SIZE)}
    else:
        settings |= {
            "algo.updates_per_env_step": float(updates), "algo.batch_size": BATCH_SIZE,
            "algo.replay_steps": REPLAY_STEPS, "algo.warm_up_steps": 0, "algo.policy_delay": POLICY_DELAY[algo],
        }  # fmt: skip
    return make_config(task, algo, **(settings | more)).resolved()


def updates_per_rollout(config: Config) -> int:
    """Gradient steps that follow a rollout."""
    if config.algo_name == "ppo":
        return int(config.algo.epochs * config.algo.minibatches)
    return round(config.algo.updates_per_env_step * config.env_steps_per_iteration)


def sbx_settings(config: Config, plan: Plan) -> dict[str, Any]:
    """The same for SBX."""
    algo = config.algo
    return {
        "algo": config.algo_name, "num_envs": config.num_envs, "rollout_steps": algo.rollout_steps,
        "updates": updates_per_rollout(config), "batch_size": BATCH_SIZE, "hidden": algo.actor_hidden,
        "activation": algo.activation, "epochs": EPOCHS, "replay_steps": REPLAY_STEPS,
        "policy_delay": getattr(algo, "policy_delay", 1), "warm_up_steps": getattr(algo, "warm_up_steps", 0),
        "obs_size": plan.spaces.obs_sizes["actor"], "action_size": plan.spaces.action_size,
    }  # fmt: skip


class Updates:
    """Our learner as a contender: `Learner.learn` on one random rollout, with a full replay where there is one."""

    name = OURS

    def __init__(self, config: Config) -> None:
        self.plan = Plan.of(config)
        self._updates = updates_per_rollout(config)
        self._learner, self._iteration = Learner(self.plan.algorithm, config.seed), 0
        self._rollout = random_rollout(self.plan)
        learned, memory = self.plan.algorithm.split(self._learner.state)
        if isinstance(memory, Replay):
            self._learner.state = self.plan.algorithm.joined(learned, _filled(memory))

    def run(self) -> float:
        start = time.perf_counter()
        self._learner.learn(self._iteration, self._rollout)
        self._iteration += 1
        return self._updates / (time.perf_counter() - start)

    def close(self) -> None:
        pass


def random_rollout(plan: Plan) -> dict[str, np.ndarray]:
    """Fields [T, N, ...] of a rollout in which no episode ends."""
    rng = np.random.default_rng(0)
    fields = {name: spec for name, spec in plan.layout.ring.items() if name not in TOTALS}
    rollout = {name: rng.uniform(-1.0, 1.0, shape[1:]).astype(dtype) for name, (dtype, shape) in fields.items()}
    constant = {"terminated": 0.0, "truncated": 0.0, "weight": 1.0}
    return rollout | {name: np.full_like(rollout[name], value) for name, value in constant.items()}


def _filled(memory: Replay) -> Replay:
    """A replay full of random steps."""

    def random(x: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.key(x.size), x.shape, x.dtype, -1.0, 1.0)

    return memory._replace(
        obs=jax.tree.map(random, memory.obs), action=random(memory.action), reward=random(memory.reward),
        flags=jnp.full_like(memory.flags, VALID), num_rows=jnp.int32(memory.reward.shape[0]),
    )  # fmt: skip


def _row(name: str, config: Config, rates: Mapping[str, list[float]], platform: str) -> Row:
    """A row; an env step costs `updates_per_env_step` updates."""
    per_env_step = updates_per_rollout(config) / config.env_steps_per_iteration
    env_steps = {key: [rate / per_env_step for rate in values] for key, values in rates.items()}
    row = make_row(
        name, _task(config), config.num_envs, 0, env_steps[name], env_steps[OURS], algo=config.algo_name,
        device=platform, updates_per_env_step=per_env_step,
    )  # fmt: skip
    return row | {"updates_per_s": row["env_steps_per_s"] * per_env_step}


def _task(config: Config) -> str:
    from unilab.envs.registry import task_source

    return task_source(type(config.task)) or type(config.task).__name__
