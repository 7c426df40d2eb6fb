"""A task so small that a whole training takes a second, and configurations for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from unilab.config import Config, make_config
from unilab.envs.task import Mirror, Physics, Task
from unilab.runtime.display import QuietDisplay
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job
from unilab.runtime.plan import Plan
from unilab.runtime.runner import make_runner

SLIDER = """
<mujoco model="slider">
  <option timestep="0.01"/>
  <worldbody>
    <body name="block">
      <joint name="rail" type="slide" axis="1 0 0" damping="0.1"/>
      <geom name="block" type="box" size="0.1 0.1 0.1" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="rail" gear="5"/></actuator>
  <sensor><jointpos name="rail" joint="rail"/></sensor>
</mujoco>
"""


class SliderState(NamedTuple):
    """The wind on the block, N, and env steps since the episode began."""

    wind: jax.Array
    steps: jax.Array


@dataclass(frozen=True)
class Slider(Task):
    """Bring a block on a rail to the middle and hold it there; past `limit` the episode terminates.

    It draws numbers wherever a task may: in reset, randomise, advance and observe.
    """

    control_dt: float = 0.02
    episode_s: float = 0.6
    rewards: dict[str, float] = field(default_factory=lambda: {"middle": 1.0, "effort": -0.05})
    limit: float = 1.0
    wind: float = 0.2
    noise: float = 0.01

    fields: ClassVar = ("qpos", "qvel", "sensordata")

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(SLIDER)

    def randomise(self, key: jax.Array, nominal: Any) -> dict[str, jax.Array]:
        return {"body_mass": nominal.body_mass.at[1].multiply(jax.random.uniform(key, minval=0.8, maxval=1.2))}

    def reset(self, key: jax.Array, curriculum: Any, randomised: Any) -> tuple[jax.Array, jax.Array, SliderState]:
        start = jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)
        return start[:1], start[1:], SliderState(jnp.float32(0.0), jnp.int32(0))

    def control(self, state: SliderState, action: jax.Array) -> dict[str, jax.Array]:
        return {"ctrl": action, "xfrc_applied": jnp.zeros((2, 6)).at[1, 0].set(state.wind)}

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        x = physics.qpos[0]
        terms = {"middle": jnp.exp(-10.0 * jnp.square(x)), "effort": jnp.sum(jnp.square(action))}
        new_state = SliderState(self.wind * jax.random.normal(key), state.steps + 1)
        late = (state.steps >= 10).astype(jnp.float32)
        return new_state, terms, jnp.abs(x) > self.limit, {"distance": jnp.abs(x), "late_distance": (jnp.abs(x), late)}

    def observe(self, state: SliderState, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        exact = jnp.concatenate([physics.qpos, physics.qvel])
        return {"actor": exact + self.noise * jax.random.normal(key, (2,)), "critic": jnp.append(exact, state.wind)}

    def mirror(self) -> dict[str, Mirror]:
        return {"actor": Mirror.of([-1, -1]), "critic": Mirror.of([-1, -1, -1]), "action": Mirror.of([-1])}


SETTINGS: dict[str, Any] = {
    "steps": 3 * 8 * 8, "num_envs": 8, "shard_size": 2, "workers": 0, "lag": 0, "learner_threads": 2,
    "eval_every": 10**9, "eval_episodes": 3,
    "algo.rollout_steps": 8, "algo.epochs": 2, "algo.minibatches": 2,
    "algo.actor_hidden": (8,), "algo.critic_hidden": (8,),
}  # fmt: skip
"""Three iterations of 8 steps of 8 envs in four shards."""


def tiny_config(task: Task | None = None, **changes: Any) -> Config:
    """A configuration of `task` (by default a Slider) that trains in a second."""
    return make_config(task or Slider(), **(SETTINGS | changes))


def tiny_plan(task: Task | None = None, **changes: Any) -> Plan:
    """The plan of `tiny_config`."""
    return Plan.of(tiny_config(task, **changes).resolved())


class Messages(QuietDisplay):
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)

    def warn(self, text: str) -> None:
        self.texts.append(text)


FREE = {"limit": 1e9, "wind": 0.0, "noise": 0.0}  # a Slider on which nothing ever terminates


class Rollouts:
    """Collects rollouts of a plan in this process, with the policy of version 0."""

    def __init__(self, task: Task, **changes: Any) -> None:
        self.plan = tiny_plan(task, **changes)
        memories = {name: Memory(shapes, poison=True) for name, shapes in self.plan.layout.items().items()}
        self.runner = make_runner(self.plan, memories)
        policy = self.plan.algorithm.snapshot(self.plan.algorithm.init(jax.random.key(0)))
        self.runner.snapshots.publish(0, {"policy": policy, "curriculum": {}})
        self.index = 0
        self._run("begin", 0)

    def _run(self, kind: Any, index: int) -> None:
        for shard in range(self.plan.num_shards):
            self.runner.run(Job(kind, index, shard, 0))

    def collect(self) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
        """The next rollout: its fields [T, N, ...], and totals over its steps and over the episodes that ended."""
        self._run("rollout", self.index)
        names = self.plan.env.columns.names
        step, ended = (dict(zip(names, x.sum(0), strict=True)) for x in self.runner.ring.totals(self.index))
        rollout = {name: np.array(value) for name, value in self.runner.ring.rollout(self.index).items()}
        self.index += 1
        return rollout, step, ended

    def means(self, totals: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Means per step and per episode of such totals."""
        columns, values = self.plan.env.columns, np.array(list(totals.values()))
        return columns.step_means(values), columns.episode_means(values)
