"""What a Gymnasium env and its workers agree on: the task, how many envs, and which arrays they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from gymnasium.vector import AutoresetMode

from unilab.config import replace
from unilab.envs.batch import Batch, batch_row_shapes
from unilab.envs.env import Env
from unilab.envs.physics.registry import DEFAULT, PHYSICS, physics_entry
from unilab.envs.registry import find_task
from unilab.envs.task import Task
from unilab.runtime.layout import with_leading
from unilab.runtime.memory import FieldShapes

NO_LIMIT = 2**30
"""Env steps of an episode without a time limit: more than anyone waits for."""


@dataclass(frozen=True)
class Settings:
    """The keyword arguments that single and vector envs share.

    Attributes:
        obs: "flat" (an array: the actor's observation) or "dict" (the groups "actor" and "critic"; the critic's repeats
            the actor's where the task has none of its own).
        settings: fields of the task; dotted names reach into dictionaries: {"noise": False, "rewards.gait": 0.2}.
        fine_physics: simulate the task's most faithful model.
        physics: name of the physics back end.
        render_mode: None or "rgb_array".
        width, height: size of the pictures [pixels].
        camera: name of a camera of the model; by default its first, or one that follows the robot.
    """

    obs: str = "flat"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fine_physics: bool = False
    physics: str = DEFAULT
    render_mode: str | None = None
    width: int = 480
    height: int = 480
    camera: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings or {}))
        require("obs", self.obs, self.obs in ("flat", "dict"), "'flat' or 'dict'")
        require("physics", self.physics, self.physics in PHYSICS, ", ".join(map(repr, PHYSICS)))
        require("render_mode", self.render_mode, self.render_mode in (None, "rgb_array"), "None or 'rgb_array'")
        for name in ("width", "height"):
            value = getattr(self, name)
            require(name, value, isinstance(value, int) and 16 <= value <= 4096, "16 to 4096 pixels")
        if "episode_s" in self.settings:
            raise ValueError("settings has 'episode_s'; the time limit of an env is max_episode_steps=, in env steps")

    def task(self, task: str | Task) -> Task:
        """The task with these settings."""
        found = task if isinstance(task, Task) else find_task(task)()
        try:
            return replace(found, **self.settings)
        except ValueError as error:
            raise ValueError(f"settings of {type(found).__name__}: {error}") from None


def make_settings(keywords: Mapping[str, Any]) -> Settings:
    """Settings from keyword arguments.

    Raises:
        TypeError: one is unknown; the message lists those that are allowed.
        ValueError: a value is not allowed.
    """
    names = [field.name for field in dataclasses.fields(Settings)]
    if unknown := [name for name in keywords if name not in names]:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}; allowed beside the named ones: {names}")
    return Settings(**keywords)


@dataclass(frozen=True)
class GymPlan:
    """What the workers of a Gymnasium env get.

    Attributes:
        task: the task, with its settings.
        model: its compiled model.
        num_envs: number of envs N.
        num_workers: processes that step them; with 0 this process does.
        episode_steps: time limit of an episode in env steps, or None for none.
        autoreset_mode: who restarts an ended env, and when.
        groups: groups of observations that are handed over.
        physics: name of the physics back end.
    """

    task: Task
    model: mujoco.MjModel
    num_envs: int
    num_workers: int
    episode_steps: int | None
    autoreset_mode: AutoresetMode
    groups: tuple[str, ...]
    physics: str

    runner = "unilab.gym.runner:StepRunner"

    def __post_init__(self) -> None:
        limit, envs, workers = self.episode_steps, self.num_envs, self.num_workers
        require("num_envs", envs, _is_count(envs) and envs >= 1, "a whole number of at least 1")
        allowed = f"0 (this process) to num_envs={envs}"
        require("num_workers", workers, _is_count(workers) and 0 <= workers <= envs, allowed)
        if physics_entry(self.physics).on_device:
            require("num_workers", workers, workers == 0, f"0, since {self.physics} steps on JAX's device")
        is_limit = limit is None or (_is_count(limit) and 1 <= limit < NO_LIMIT)
        require("max_episode_steps", limit, is_limit, "a whole number of at least 1, or -1 for no time limit")

    @cached_property
    def env(self) -> Env:
        return Env(self.task, model=self.model, episode_steps=self.episode_steps or NO_LIMIT)

    def envs(self, worker: int) -> slice:
        """The envs of a worker. They are spread evenly."""
        count = max(self.num_workers, 1)
        return slice(worker * self.num_envs // count, (worker + 1) * self.num_envs // count)

    def make_batch(self, size: int) -> Batch:
        """A batch of `size` envs on the physics back end."""
        return Batch(self.env, size, seed=0, physics=self.physics)

    def curriculum(self) -> Any:
        return jax.tree.map(jnp.asarray, self.task.curriculum())

    @cached_property
    def layout(self) -> dict[str, FieldShapes]:
        """Shared memories: the rows of the envs, what goes in and out, and a sign of life of each worker."""
        env, f32, flag = self.env, np.float32, np.bool_
        exchange: dict[str, Any] = {
            "action": (f32, (env.action_size,)), "seed": (np.uint64, ()), "is_reset": (flag, ()),
            "is_seeded": (flag, ()), "reward": (f32, ()), "terminated": (flag, ()), "truncated": (flag, ()),
            "totals": (f32, (len(env.columns.names),)), "qpos": (np.float64, (self.model.nq,)),
        }  # fmt: skip
        for group in self.groups:
            exchange[f"obs/{group}"] = exchange[f"final_obs/{group}"] = (f32, (env.obs_sizes[group],))
        rows = batch_row_shapes(self.make_batch(1))
        return {
            "rows": with_leading(rows, self.num_envs),
            "exchange": with_leading(exchange, self.num_envs),
            "progress": {"steps": (np.uint64, (max(self.num_workers, 1),))},
        }


def require(name: str, value: Any, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
