"""The single env, for `gymnasium.make`: one env of a vector env, in this process."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from unilab.envs.task import Task
from unilab.gym.vector import UnilabVectorEnv


class UnilabEnv(gymnasium.Env):
    """One env of a task behind Gymnasium's interface.

    As in all of Gymnasium, the env itself has no time limit unless told so: `gymnasium.make` adds it as a wrapper.

    Args:
        task: a registered name, "file.py:Class", or the task itself.
        seed: seed for the first `reset()` without one; by default a random one.
        max_episode_steps: time limit in env steps; by default none of its own.
        keywords: see `unilab.gym.plan.Settings`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(
        self, task: str | Task, *, seed: int | None = None, max_episode_steps: int = -1, **keywords: Any
    ) -> None:
        self._envs = UnilabVectorEnv(
            task, 1, seed=seed, max_episode_steps=max_episode_steps, autoreset_mode=AutoresetMode.DISABLED, **keywords
        )
        self.metadata = {**self.metadata, "render_fps": self._envs.metadata["render_fps"]}
        self.render_mode, self.task = self._envs.render_mode, self._envs.task
        self.action_space = self._envs.single_action_space
        self.observation_space = self._envs.single_observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episode of `seed`, or the next one."""
        super().reset(seed=seed)
        if options:
            raise ValueError(f"unknown option {next(iter(options))!r} of reset; a single env has none")
        obs, _ = self._envs.reset(seed=seed)
        return _first(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One env step under an action [A]; errors are those of `UnilabVectorEnv.step`."""
        given = np.asarray(action, np.float32)
        if given.shape != self.action_space.shape:
            raise ValueError(f"action has shape {given.shape}; allowed: {self.action_space.shape}")
        if self._envs.ended[0]:
            raise ResetNeeded("the episode has ended; call reset() first")
        obs, reward, terminated, truncated, infos = self._envs.step(given[None])
        return _first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), first_info(infos)

    def render(self) -> np.ndarray | None:
        """A picture [height, width, 3]; None without render_mode="rgb_array"."""
        frames = self._envs.render()
        return None if frames is None else frames[0]

    def qpos(self) -> np.ndarray:
        """Positions [nq], as MuJoCo has them."""
        return self._envs.qpos()[0]

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._envs.close()


def _first(obs: Any) -> Any:
    return {group: value[0] for group, value in obs.items()} if isinstance(obs, dict) else obs[0]


def first_info(infos: dict[str, Any]) -> dict[str, Any]:
    """Info of the first env of a vector env: what its masks say that it has."""
    own = {name: value for name, value in infos.items() if f"_{name}" in infos and infos[f"_{name}"][0]}
    return {name: first_info(value) if isinstance(value, dict) else value[0].item() for name, value in own.items()}
