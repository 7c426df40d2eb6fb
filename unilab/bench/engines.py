"""The physics back ends as the benchmarks make them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from unilab.envs.physics.base import Demands, PhysicsBackend, PhysicsRows
from unilab.envs.physics.registry import make_physics, physics_entry

if TYPE_CHECKING:
    from unilab.envs.env import Env


def engine_demands(env: Env) -> Demands:
    """What a task asks of its physics, without randomisation, in a form that can be sent to a worker."""
    try:
        mjcf = functools.partial(str, env.mjcf)
    except ValueError:
        mjcf = None
    return dataclasses.replace(env.demands, randomised=(), controls=("ctrl",), mjcf=mjcf)


def make_engine(name: str, demands: Demands, num_envs: int) -> tuple[PhysicsBackend, PhysicsRows]:
    """A back end by name, and rows for its envs.

    Raises:
        UnsupportedError: it cannot do what is demanded.
    """
    engine = make_physics(name, demands, num_envs)
    state, model, last = (np.zeros((num_envs, n)) for n in (engine.state_size, engine.model_size, engine.last_size))
    rows = PhysicsRows(state, model, last, np.zeros((num_envs, engine.field_size), np.float32))
    engine.attach(rows)
    return engine, rows


def worker_processes(name: str, workers: int) -> int:
    """Processes that step a back end where `workers` are wished: none for one that steps on JAX's device."""
    return 0 if physics_entry(name).on_device else workers
