"""What every physics back end offers: copies of one model, stepped on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

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
class Demands:
    """What a task asks of its physics.

    Attributes:
        model: the nominal model.
        fields: what the task reads.
        substeps: physics steps in a control step.
        randomised: names of the model fields that differ from env to env.
        controls: what acts on the robot: "ctrl", "xfrc_applied", "qvel_kick".
        mjcf: gives the model as MJCF text, for an engine that reads no other; raises ValueError where there is none.
    """

    model: mujoco.MjModel
    fields: Sequence[str | Delta]
    substeps: int
    randomised: Sequence[str] = ()
    controls: Sequence[str] = ("ctrl",)
    mjcf: Callable[[], str] | None = None


class UnsupportedError(ValueError):
    """A back end cannot do what a task demands; the message says what."""


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


NOBODY = np.zeros(0, int)
"""Indices of no env."""


class PhysicsBackend(Protocol):
    """Steps `num_envs` copies of one model, made as `Backend(demands, num_envs)`.

    With `exact_state` it holds no state of its own between `attach` calls: all is in the rows. Without, the envs live
    in the back end that began them, and the rows only say which they are.

    What it cannot do, such as a field that its engine does not give, is an `UnsupportedError` when it is made.
    """

    exact_state: ClassVar[bool]
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

    def step(self, controls: Mapping[str, np.ndarray], resting: np.ndarray = NOBODY) -> np.ndarray:
        """Advance all envs by one control step under controls [S, ...]; returns which became unstable [S].

        The envs `resting` [K] may be left out, to save time: they are reset before anybody looks at them.
        """

    @property
    def qpos(self) -> np.ndarray:
        """Positions of all envs [S, nq], in MuJoCo's order and as exact as the back end has them."""

    @property
    def qvel(self) -> np.ndarray:
        """Velocities of all envs [S, nv], likewise."""


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
