"""Registration of the tasks with Gymnasium, without importing it.

`import unilab` must stay light, and importing gymnasium takes half a second with numpy. So the tasks are registered at
once if gymnasium has been imported, or else as soon as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unilab.envs.registry import TASKS

if TYPE_CHECKING:
    from unilab.envs.task import Task

NAMESPACE = "unilab"


def env_id(task: str) -> str:
    """Gymnasium's name of a registered task: `unilab/Go1JoystickFlat-v0`, `unilab/HalfCheetah-v5`."""
    return f"{NAMESPACE}/{task}" if "-v" in task else f"{NAMESPACE}/{task}-v0"


def register(id: str, task: str | Task, episode_steps: int) -> None:
    """Register a task with Gymnasium.

    Args:
        id: its name there, such as "Hover-v0".
        task: a registered name, "file.py:Class", or the task itself.
        episode_steps: time limit of an episode in env steps.
    """
    import gymnasium

    gymnasium.register(
        id,
        entry_point="unilab.gym.env:UnilabEnv",
        vector_entry_point="unilab.gym.vector:UnilabVectorEnv",
        max_episode_steps=episode_steps,
        kwargs={"task": task},
    )


def register_tasks() -> None:
    """Register all tasks of the package, now or when gymnasium is imported."""
    if "gymnasium" in sys.modules:
        for name, entry in TASKS.items():
            register(env_id(name), name, entry.episode_steps)
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    """Finds gymnasium where the other finders do, and registers the tasks once it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._execute, loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            register_tasks()
