"""MuJoCo XLA: physics in float32 on JAX's device.

`MjxEnv` has the physics of one env as pure functions, from which `unilab.envs.device` makes whole rollouts on the
device. `MjxPhysics` offers them to the host, as every back end does, one jitted call per control step.

Everything is float32, also positions: `delta(...)` fields are differences of float32 positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from unilab.envs.physics.base import NOBODY, Demands, FieldSpec, PhysicsRows, UnsupportedError, field_specs
from unilab.envs.physics.mujoco import NEEDS_SET_CONST, needs_rne_post

with contextlib.redirect_stdout(None):  # it prints that mujoco_warp, which is not used here, is not installed
    from mujoco import mjx
    from mujoco.mjx._src.types import DataJAX

from unilab.envs.physics.mjx_const import MASSES, derived_constants

RESET_SIZE = 64
"""Envs that the host resets in one jitted call."""
MAX_VALUE = 1e10  # mjMAXVAL: MuJoCo calls a number bad that is larger, or is none
STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "xfrc_applied")
"""Fields of mjx.Data that a step depends on."""


class MjxRow(NamedTuple):
    """One env between two control steps, all float32: as the arrays of `PhysicsRows`."""

    state: jax.Array
    model: jax.Array
    last: jax.Array
    fields: jax.Array


class MjxEnv:
    """The physics of one env as pure functions.

    Args:
        demands: what the task asks of its physics.

    Raises:
        UnsupportedError: mjx lacks a feature of the model, a field, or a way to randomise a model field.
    """

    def __init__(self, demands: Demands) -> None:
        model = demands.model
        self.field_specs = field_specs(model, demands.fields)
        _require_fields(self.field_specs)
        _require_randomised(demands)
        if model.nmocap or model.nplugin or getattr(model, "nhistory", 0):
            raise UnsupportedError("its rows do not hold mocap bodies, plugins and delays")
        try:
            self._model = mjx.put_model(model)
            self._data = mjx.make_data(model)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedError(f"mjx refuses the model: {error}") from None
        self._substeps = demands.substeps
        self._needs_constants = bool(set(demands.randomised).intersection(MASSES))
        self._randomised = {name: getattr(model, name).shape for name in demands.randomised}
        self._varied = dict(self._randomised)
        if self._needs_constants:
            constants = jax.eval_shape(derived_constants, self._model, self._data)
            self._varied |= {name: value.shape for name, value in constants.items()}
        self._state = {name: getattr(self._data, name).shape for name in STATE}
        self._deltas = tuple(spec for spec in self.field_specs if spec.is_delta)
        self._needs_rne_post = needs_rne_post(self.field_specs)
        self.field_size = self.field_specs[-1].stop if self.field_specs else 0
        self.state_size, self.model_size = _size(self._state), _size(self._varied)
        self.last_size = sum(spec.stop - spec.start for spec in self._deltas)

    def reset(self, qpos: jax.Array, qvel: jax.Array, randomised: Mapping[str, jax.Array]) -> MjxRow:
        """The env at the start of an episode."""
        with jax.default_matmul_precision("highest"):
            row = self._model_row(randomised)
            model = self._model_of(row)
            data = self._derived(model, mjx.forward(model, self._data.replace(qpos=qpos, qvel=qvel)))
        return self._row(data, row, self._positions(data))

    def step(self, row: MjxRow, controls: Mapping[str, jax.Array]) -> tuple[MjxRow, jax.Array]:
        """One control step; returns the env after it and whether it became unstable. Its fields then stay as before."""
        state = _unpacked(row.state, self._state)
        kick = controls.get("qvel_kick", 0.0)
        state |= {name: value for name, value in controls.items() if name != "qvel_kick"}
        state["qvel"] = state["qvel"] + kick
        with jax.default_matmul_precision("highest"):
            model = self._model_of(row.model)
            data = self._data.replace(**state)
            data = jax.lax.fori_loop(0, self._substeps, lambda _, data: mjx.step(model, data), data)
            data = self._derived(model, data)
        numbers = jnp.concatenate([data.qpos, data.qvel, data.qacc])
        is_unstable = ~jnp.all(jnp.abs(numbers) <= MAX_VALUE)
        new = self._row(data, row.model, row.last)
        kept = new._replace(fields=row.fields, last=row.last)
        return jax.tree.map(lambda a, b: jnp.where(is_unstable, a, b), kept, new), is_unstable

    def qpos_of(self, state: Any) -> Any:
        """qpos [..., nq] of state rows."""
        return state[..., 1 : 1 + self._state["qpos"][0]]

    def qvel_of(self, state: Any) -> Any:
        """qvel [..., nv] of state rows."""
        start = 1 + self._state["qpos"][0]
        return state[..., start : start + self._state["qvel"][0]]

    def _model_row(self, randomised: Mapping[str, jax.Array]) -> jax.Array:
        """The randomised model fields and all that follows from them [model_size]."""
        values = {name: jnp.asarray(value, jnp.float32) for name, value in randomised.items()}
        if self._needs_constants:
            values |= derived_constants(self._model.replace(**values), self._data)
        return _packed(values, self._varied)

    def _model_of(self, row: jax.Array) -> Any:
        """The model of an env whose varied fields are `row`."""
        values = _unpacked(row, self._varied)
        if "meaninertia" in values:
            values["stat"] = self._model.stat.replace(meaninertia=values.pop("meaninertia"))
        return self._model.replace(**values)

    def _derived(self, model: Any, data: Any) -> Any:
        return mjx.rne_postconstraint(model, data) if self._needs_rne_post else data

    def _positions(self, data: Any) -> jax.Array:
        """Values of the delta fields [last_size]."""
        return jnp.concatenate([jnp.ravel(_read(data, spec.name)) for spec in self._deltas] or [jnp.zeros(0)])

    def _row(self, data: Any, model: jax.Array, last: jax.Array) -> MjxRow:
        """The env as it is in `data`; deltas are taken from the values `last` before the control step."""
        positions, parts = self._positions(data), []
        changes, start = positions - last, 0
        for spec in self.field_specs:
            if spec.is_delta:
                size = spec.stop - spec.start
                parts.append(changes[start : start + size])
                start += size
            else:
                parts.append(jnp.ravel(_read(data, spec.name)))
        state = _packed({name: getattr(data, name) for name in STATE}, self._state)
        return MjxRow(state, model, positions, jnp.concatenate(parts or [jnp.zeros(0)]))


class MjxPhysics:
    """Steps the envs of a shard on JAX's device; see `PhysicsBackend` for the methods.

    Args:
        demands: what the task asks of its physics.
        num_envs: rows of a shard.
    """

    exact_state: ClassVar = True

    def __init__(self, demands: Demands, num_envs: int) -> None:
        self.env = MjxEnv(demands)
        self.field_specs = self.env.field_specs
        self.state_size, self.model_size = self.env.state_size, self.env.model_size
        self.last_size, self.field_size = self.env.last_size, self.env.field_size
        self._reset_size = min(RESET_SIZE, num_envs)
        self._reset, self._step = jax.jit(jax.vmap(self.env.reset)), jax.jit(jax.vmap(self.env.step))

    def attach(self, rows: PhysicsRows) -> None:
        self.rows = rows

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        for start in range(0, len(index), self._reset_size):
            stop = min(start + self._reset_size, len(index))
            block = np.resize(np.arange(start, stop), self._reset_size)  # the last one repeats some
            values = self._reset(qpos[block], qvel[block], {name: value[block] for name, value in randomised.items()})
            self._write(index[block], values)

    def step(self, controls: Mapping[str, np.ndarray], resting: np.ndarray = NOBODY) -> np.ndarray:
        rows = self.rows
        row = MjxRow(*(jnp.asarray(part, jnp.float32) for part in (rows.state, rows.model, rows.last, rows.fields)))
        new, is_unstable = self._step(row, {name: np.asarray(x, np.float32) for name, x in controls.items()})
        self._write(slice(None), new)
        return np.array(is_unstable)

    @property
    def qpos(self) -> np.ndarray:
        return np.asarray(self.env.qpos_of(self.rows.state))

    @property
    def qvel(self) -> np.ndarray:
        return np.asarray(self.env.qvel_of(self.rows.state))

    def _write(self, index: np.ndarray | slice, values: MjxRow) -> None:
        for name in MjxRow._fields:
            getattr(self.rows, name)[index] = np.asarray(getattr(values, name))


def _require_fields(specs: tuple[FieldSpec, ...]) -> None:
    """Refuse fields that mjx does not give."""
    known = {field.name for kind in (mjx.Data, DataJAX) for field in kind.fields()}
    if beyond := sorted({spec.name for spec in specs} - known):
        raise UnsupportedError(f"mjx.Data has no {', '.join(beyond)}")


def _require_randomised(demands: Demands) -> None:
    """Refuse model fields that cannot vary from env to env."""
    names, hints = set(demands.randomised), get_type_hints(mjx.Model)
    unknown = names.intersection(NEEDS_SET_CONST).difference(MASSES)
    unknown |= {name for name in names if hints.get(name) is not jax.Array}
    if demands.model.ntendon:
        unknown |= names.intersection(MASSES)
    if unknown:
        raise UnsupportedError(f"it cannot vary {', '.join(sorted(unknown))} of this model from env to env")


def _read(data: Any, name: str) -> jax.Array:
    """A field of mjx.Data by MuJoCo's name."""
    found: jax.Array = getattr(data if name in data.__dict__ else data._impl, name)
    return found


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


def _packed(values: Mapping[str, jax.Array], shapes: Mapping[str, tuple[int, ...]]) -> jax.Array:
    """Arrays of these shapes as one float32 row."""
    parts = [jnp.ravel(jnp.asarray(values[name], jnp.float32)) for name in shapes]
    return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.float32)


def _unpacked(row: jax.Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    """The arrays of a row."""
    stops = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes.values())])
    return {
        name: jnp.reshape(row[a:b], shape)
        for (name, shape), (a, b) in zip(shapes.items(), pairwise(stops), strict=True)
    }
