"""The vector envs that `unilab bench env` compares, one entry each: how it is made, installed and counted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unilab.bench.envpool_limit import ENVPOOL_LIMIT
from unilab.bench.raw import LIMIT
from unilab.envs.physics.registry import PHYSICS
from unilab.names import closest

if TYPE_CHECKING:
    from unilab.bench.stepped import SteppedEnv


@dataclass(frozen=True)
class Backend:
    """A way to step a batch of envs.

    Attributes:
        summary: one line.
        module: must be there to import.
        install_command: what installs it.
        physics: name of our physics back end, or None for another program's vector env.
        limit: name of its physical limit: bare `mj_step` of the MuJoCo that it steps with.
    """

    summary: str
    module: str
    install_command: str
    physics: str | None = None
    limit: str | None = LIMIT

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported, or its physics engine is there."""
        if self.physics is not None:
            return PHYSICS[self.physics].is_installed
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # a parent package is missing
            return False


BACKENDS: dict[str, Backend] = {
    **{
        name: Backend(
            f"ours: {entry.description}", "unilab", entry.install_command, physics=name,
            limit=LIMIT if entry.is_upstream else None,
        )
        for name, entry in PHYSICS.items()
    },
    "gymnasium-sync": Backend("Gymnasium's envs, one after the other", "gymnasium", "pip install 'gymnasium[mujoco]'"),
    "gymnasium-async": Backend("Gymnasium's envs, a process each", "gymnasium", "pip install 'gymnasium[mujoco]'"),
    "envpool": Backend("EnvPool in C++, waiting for all envs", "envpool", "pip install envpool", limit=ENVPOOL_LIMIT),
    "envpool-async": Backend(
        "EnvPool in C++, taking the envs that are ready first", "envpool", "pip install envpool",
        limit=ENVPOOL_LIMIT,
    ),
}  # fmt: skip


def find_backend(name: str) -> Backend:
    """The entry of a back end.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown back end {name!r}; {closest(name, BACKENDS)}")
    return BACKENDS[name]


def make_stepped(name: str, task: str, num_envs: int, workers: int, seconds: float) -> SteppedEnv:
    """The envs of a back end, ready to be stepped for `seconds` at a time.

    Raises:
        LookupError: it has no such task; says so.
    """
    from unilab.bench import stepped

    makers: dict[str, Callable[..., Any]] = {
        "gymnasium-sync": stepped.make_sync,
        "gymnasium-async": stepped.make_async,
        "envpool": stepped.make_envpool,
        "envpool-async": stepped.make_envpool_async,
    }
    physics = BACKENDS[name].physics
    if physics is not None:
        return stepped.make_ours(name, task, num_envs, workers, seconds, physics)
    return makers[name](name, task, num_envs, workers, seconds)
