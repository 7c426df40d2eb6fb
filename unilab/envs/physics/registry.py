"""Physics back ends by name. The entries are strings, so that naming one imports neither its engine nor mujoco."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from unilab.names import closest

if TYPE_CHECKING:
    from unilab.envs.physics.base import Demands, PhysicsBackend

DEFAULT = "mujoco"


@dataclass(frozen=True)
class PhysicsEntry:
    """Where a back end lives and what it is.

    Attributes:
        description: one line.
        target: "module:class".
        extra: the extra of the package that installs its engine, or "" if it is always there.
        engine: the distribution that the extra installs.
        on_device: steps on JAX's device, in the learner's process, instead of in workers.
        is_upstream: steps with upstream MuJoCo, so that bare `mj_step` is its physical limit.
    """

    description: str
    target: str
    extra: str = ""
    engine: str = ""
    on_device: bool = False
    is_upstream: bool = True

    @property
    def version(self) -> str | None:
        """Version of its engine, or None where it is not installed."""
        try:
            return metadata.version(self.engine or "mujoco")
        except metadata.PackageNotFoundError:
            return None

    @property
    def is_installed(self) -> bool:
        """Whether its engine is there."""
        return self.version is not None

    @property
    def install_command(self) -> str:
        """What installs its engine."""
        return f"pip install 'unilab[{self.extra}]'" if self.extra else "pip install unilab"


_HERE = "unilab.envs.physics"

PHYSICS: dict[str, PhysicsEntry] = {
    "mujoco": PhysicsEntry("upstream MuJoCo, stepped env by env in each worker", f"{_HERE}.mujoco:MujocoPhysics"),
    "mjbatch": PhysicsEntry(
        "upstream MuJoCo, a shard stepped in C++ by mjbatch", f"{_HERE}.mjbatch:MjbatchPhysics", "mjbatch", "mjbatch"
    ),
    "mujoco-uni": PhysicsEntry(
        "upstream MuJoCo, a shard stepped in C++ by mujoco-uni-runtime; forgets the solver's warm start",
        f"{_HERE}.mujoco_uni:MujocoUniPhysics", "mujoco-uni", "mujoco-uni-runtime",
    ),
    "motrixsim": PhysicsEntry(
        "MotrixSim, an engine of its own in float32; no resume, no replacement of workers",
        f"{_HERE}.motrixsim:MotrixsimPhysics", "motrix", "motrixsim-core",
        is_upstream=False,
    ),
    "mjx": PhysicsEntry(
        "MuJoCo XLA in float32 on JAX's device: rollouts without workers", f"{_HERE}.mjx:MjxPhysics",
        "mjx", "mujoco-mjx", on_device=True, is_upstream=False,
    ),
}  # fmt: skip


def physics_entry(name: str) -> PhysicsEntry:
    """The entry of a back end.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in PHYSICS:
        raise ValueError(f"unknown physics {name!r}; {closest(name, PHYSICS)}")
    return PHYSICS[name]


def physics_class(name: str) -> type[PhysicsBackend]:
    """The class of a back end.

    Raises:
        ValueError: there is none of this name, or its engine is not installed.
    """
    entry = physics_entry(name)
    if not entry.is_installed:
        raise ValueError(f"the physics {name!r} is not installed: {entry.install_command}")
    module, _, class_name = entry.target.partition(":")
    found: type[PhysicsBackend] = getattr(importlib.import_module(module), class_name)
    return found


def make_physics(name: str, demands: Demands, num_envs: int) -> PhysicsBackend:
    """The back end `name` for `num_envs` envs of a task.

    Raises:
        ValueError: there is none of this name, or its engine is not installed.
        UnsupportedError: it cannot do what the task demands; the message says what, and which ones can.
    """
    from unilab.envs.physics.base import UnsupportedError

    make = physics_class(name)
    try:
        return make(demands, num_envs)  # type: ignore[call-arg]
    except UnsupportedError as error:
        able = ", ".join(other for other in PHYSICS if other != name and can_do(other, demands))
        raise UnsupportedError(
            f"the physics {name!r} cannot do this task: {error}; installed ones that can: {able or 'none'}"
        ) from None


def can_do(name: str, demands: Demands) -> bool:
    """Whether a back end is installed and does what a task demands; found out by making it."""
    from unilab.envs.physics.base import UnsupportedError

    if not physics_entry(name).is_installed:
        return False
    try:
        physics_class(name)(demands, 1)  # type: ignore[call-arg]
    except UnsupportedError:
        return False
    return True
