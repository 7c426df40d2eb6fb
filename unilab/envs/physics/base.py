"""What every physics back end offers: copies of one model, stepped on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np

from unilab.envs.task import Delta


@dataclass(frozen=True)
class FieldSpec:
    """One field that a task reads: columns [start, stop) of the float32 row, shaped `shape` for the task."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_delta: bool

    @property
    def key(self) -> str:
        """Name under which the task finds it."""
        return f"delta:{self.name}" if self.is_delta else self.name


@dataclass(frozen=True)
class PhysicsRows:
    """The memory of a shard's envs that a back end works on, in place. Rows are envs.

    Attributes:
        state: everything that the integrator needs [S, state_size], float64.
        model: the model fields that randomisation changed [S, model_size], float64.
        last: values of the delta fields after the last control step [S, last_size], float64.
        fields: what the task reads [S, field_size], float32.
    """

    state: np.ndarray
    model: np.ndarray
    last: np.ndarray
    fields: np.ndarray


class PhysicsBackend(Protocol):
    """Steps `num_envs` copies of one model. Holds no state of its own between `attach` calls."""

    exact_state: bool
    """Whether `state` rows continue a simulation bit for bit, as replacement of a worker and resume need."""

    field_specs: tuple[FieldSpec, ...]
    state_size: int
    model_size: int
    last_size: int
    field_size: int

    def attach(self, rows: PhysicsRows) -> None:
        """Work on these rows from now on."""

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        """Begin an episode in the envs `index` [K] at qpos [K, nq], qvel [K, nv], with model fields [K, ...]."""

    def step(self, controls: Mapping[str, np.ndarray]) -> np.ndarray:
        """Advance all envs by one control step under controls [S, ...]; returns which became unstable [S]."""


def field_specs(model: mujoco.MjModel, fields: Sequence[str | Delta]) -> tuple[FieldSpec, ...]:
    """Columns of the declared fields in the order given.

    Raises:
        ValueError: mjData has no such field, its length varies (contacts, efc_*), or it is declared twice.
    """
    data, start = mujoco.MjData(model), 0
    specs: list[FieldSpec] = []
    for declared in fields:
        name = declared.name if isinstance(declared, Delta) else declared
        value: Any = getattr(data, name, None)
        ragged = name == "contact" or name.startswith(("efc_", "iefc_", "island_"))
        if not isinstance(value, np.ndarray) or ragged:
            reason = "its length varies from step to step" if ragged else "mjData has no such array"
            raise ValueError(
                f"field {name!r} cannot be read: {reason}. Allowed are arrays of fixed size, such as "
                "qpos, qvel, sensordata, xpos, cfrc_ext, actuator_force."
            )
        spec = FieldSpec(name, value.shape, start, start + value.size, isinstance(declared, Delta))
        if any(spec.key == other.key for other in specs):
            raise ValueError(f"field {spec.key!r} is declared twice")
        specs.append(spec)
        start = spec.stop
    return tuple(specs)
