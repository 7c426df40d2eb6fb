"""The physics back ends as the benchmarks make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unilab.envs.physics.base import PhysicsBackend, PhysicsRows
from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.names import closest

if TYPE_CHECKING:
    from unilab.bench.stepping import StepSettings


@dataclass(frozen=True)
class Engine:
    """A physics back end.

    Attributes:
        is_installed: whether its engine is there.
        install_command: what installs it.
        has_limit: it steps this environment's own MuJoCo, so that bare `mj_step` is its physical limit.
    """

    is_installed: bool
    install_command: str
    has_limit: bool


ENGINES: dict[str, Engine] = {"mujoco": Engine(True, "pip install unilab", True)}


def find_engine(name: str) -> Engine:
    """The entry of a physics back end.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown back end {name!r}; {closest(name, ENGINES)}")
    return ENGINES[name]


def make_engine(settings: StepSettings) -> tuple[PhysicsBackend, PhysicsRows]:
    """A back end for one model without randomisation, and rows for its envs."""
    engine = MujocoPhysics(settings.model, settings.fields, (), settings.num_envs, settings.substeps)
    state, model, last = (
        np.zeros((settings.num_envs, size)) for size in (engine.state_size, engine.model_size, engine.last_size)
    )
    return engine, PhysicsRows(state, model, last, np.zeros((settings.num_envs, engine.field_size), np.float32))
