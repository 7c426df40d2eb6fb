"""The default back end: upstream MuJoCo, one `mj_step` call per env and control step.

One `MjData` serves all envs of a shard: `mj_setState` and `mj_getState` around each control step cost about a
microsecond, are bit-equal to one `MjData` per env, and leave everything that an env needs in its row. One `MjModel`
serves them too: what randomisation changed is copied into it before each env's step. That costs less than a model of
its own per env, whose hundred kilobytes would have to come from memory each time.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import mujoco
import numpy as np

from unilab.envs.physics.base import NOBODY, Demands, FieldSpec, PhysicsRows, field_specs

STATE = mujoco.mjtState.mjSTATE_INTEGRATION

DERIVED = (
    "body_subtreemass", "body_invweight0", "dof_invweight0", "dof_M0", "dof_length", "tendon_invweight0",
    "tendon_length0", "actuator_acc0", "actuator_length0",
)  # fmt: skip
"""What `mj_setConst` recomputes from masses, inertias and frames, besides `stat.meaninertia`."""

NEEDS_SET_CONST = (
    "body_mass", "body_inertia", "body_ipos", "body_iquat", "body_pos", "body_quat", "dof_armature",
    "jnt_pos", "jnt_axis", "qpos0", "site_pos", "actuator_gear",
)  # fmt: skip

NEEDS_RNE_POST = ("cacc", "cfrc_int", "cfrc_ext")
"""What only `mj_rnePostConstraint` computes."""

UNSTABLE = (
    int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADQVEL), int(mujoco.mjtWarning.mjWARN_BADQACC),
    int(mujoco.mjtWarning.mjWARN_BADCTRL),
)  # fmt: skip

mujoco.set_mju_user_warning(lambda text: None)  # instability is counted and reported, not logged to a file


class MujocoPhysics:
    """Steps the envs of a shard with upstream MuJoCo; see `PhysicsBackend` for the methods.

    Args:
        demands: what the task asks of its physics.
        num_envs: rows of a shard.
    """

    exact_state: ClassVar = True

    def __init__(self, demands: Demands, num_envs: int) -> None:
        model = demands.model
        self.model = without_autoreset(model)
        self.substeps = demands.substeps
        self.field_specs = field_specs(model, demands.fields)
        self.field_size = self.field_specs[-1].stop if self.field_specs else 0
        self.state_size = mujoco.mj_stateSize(model, STATE)
        self._state_slices = state_slices(self.model)
        self._needs_rne_post = needs_rne_post(self.field_specs)

        self._randomised = tuple(demands.randomised)
        self._needs_set_const = any(name in NEEDS_SET_CONST for name in self._randomised)
        self._model_fields = self._randomised + (DERIVED if self._needs_set_const else ())
        sizes = [getattr(model, name).size for name in self._model_fields]
        self._model_slices = _slices(sizes)
        self.model_size = sum(sizes) + int(self._needs_set_const)  # the last column is stat.meaninertia

        self.data = mujoco.MjData(self.model)
        self._stat = self.model.stat  # looking it up costs more than setting a number in it
        self._scratch_model = copy.copy(self.model)
        self._scratch_data = mujoco.MjData(self.model)
        self._scratch_views = self._views(self._scratch_model)
        self._nominal = [np.array(view) for view in self._views(self.model)]
        self._patch = Patch(self._views(self.model), num_envs)

        # qpos and qvel are read from the state rows, all others are copied env by env.
        derived = [spec for spec in self.field_specs if spec.name not in ("qpos", "qvel")]
        self._buffers = {spec.key: self._buffer(spec, num_envs) for spec in derived}
        sources = [np.atleast_1d(getattr(self.data, spec.name)).reshape(-1) for spec in derived]
        self._copies = [
            [(buffer[env], source) for buffer, source in zip(self._buffers.values(), sources, strict=True)]
            for env in range(num_envs)
        ]
        self._last_slices = _slices([spec.stop - spec.start if spec.is_delta else 0 for spec in self.field_specs])
        self.last_size = self._last_slices[-1].stop if self.field_specs else 0

    def attach(self, rows: PhysicsRows) -> None:
        self.rows = rows
        self._state_rows = list(rows.state)
        self._load_models(slice(None))

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        model = self.model
        for k, env in enumerate(index) if self._randomised else ():
            self.rows.model[env] = self._model_row({name: randomised[name][k] for name in self._randomised})
        self._load_models(index)
        for k, env in enumerate(index):
            for target, source in self._patch.copies[env]:
                np.copyto(target, source)
            if self._mean_inertias:
                self._stat.meaninertia = self._mean_inertias[env]
            mujoco.mj_resetData(model, self.data)
            self.data.qpos[:] = qpos[k]
            self.data.qvel[:] = qvel[k]
            mujoco.mj_forward(model, self.data)
            if self._needs_rne_post:
                mujoco.mj_rnePostConstraint(model, self.data)
            mujoco.mj_getState(model, self.data, self._state_rows[env], STATE)
            for target, source in self._copies[env]:
                np.copyto(target, source)
        self._collect_fields(index, is_reset=True)

    def step(self, controls: Mapping[str, np.ndarray], resting: np.ndarray = NOBODY) -> np.ndarray:
        self.apply(controls)
        mask = self._simulate(resting)
        mask |= ~np.isfinite(self.qvel).all(axis=1)
        self._collect_fields(np.flatnonzero(~mask) if mask.any() else slice(None), is_reset=False)
        return mask

    @property
    def qpos(self) -> np.ndarray:
        return self.rows.state[:, self._state_slices["qpos"]]

    @property
    def qvel(self) -> np.ndarray:
        return self.rows.state[:, self._state_slices["qvel"]]

    def _simulate(self, resting: np.ndarray) -> np.ndarray:
        """Advance the state rows by one control step and fill the buffers, but for the envs `resting` [K]; returns
        which envs had a warning [S]."""
        model, data, substeps, stat, mean_inertias = (
            self.model, self.data, self.substeps, self._stat, self._mean_inertias
        )  # fmt: skip
        set_state, step, get_state, copyto = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_getState, np.copyto
        spec = STATE.value  # the number is taken faster than the enum
        data.warning.number[:] = 0
        warnings = memoryview(data.warning.number)  # live counters of this one MjData
        needs_rne_post, counts, unstable = self._needs_rne_post, warnings.tobytes(), []
        skipped = frozenset(resting.tolist())
        envs = zip(self._state_rows, self._patch.copies, self._copies, strict=True)
        for env, (row, model_copies, field_copies) in enumerate(envs):
            if env in skipped:
                continue
            for target, source in model_copies:
                copyto(target, source)
            if mean_inertias:
                stat.meaninertia = mean_inertias[env]
            set_state(model, data, row, spec)
            step(model, data, substeps)
            if needs_rne_post:
                mujoco.mj_rnePostConstraint(model, data)
            get_state(model, data, row, spec)
            for target, source in field_copies:
                copyto(target, source)
            if warnings.tobytes() != counts:  # rare, and perhaps a harmless one
                if any(warnings[number] for number in UNSTABLE):
                    unstable.append(env)
                data.warning.number[:] = 0
        mask = np.zeros(len(self._state_rows), bool)
        mask[unstable] = True
        return mask

    def _buffer(self, spec: FieldSpec, num_envs: int) -> np.ndarray:
        """Where the values of a field lie after a control step [S, n]."""
        return np.zeros((num_envs, spec.stop - spec.start))

    def columns(self, part: str) -> slice:
        """Where a part of the state, such as "qpos" or "ctrl", lies in a row."""
        return self._state_slices[part]

    def apply(self, controls: Mapping[str, np.ndarray]) -> None:
        """Write controls [S, ...] into the state rows, where the next `mj_setState` finds them."""
        state = self.rows.state
        for name, value in controls.items():
            if name == "qvel_kick":
                state[:, self._state_slices["qvel"]] += value
            else:
                state[:, self._state_slices[name]] = value.reshape(len(state), -1)

    def _collect_fields(self, index: np.ndarray | slice, is_reset: bool) -> None:
        """Fill the float32 `fields` of the envs `index`; the others keep what they were."""
        rows = self.rows
        for spec, last in zip(self.field_specs, self._last_slices, strict=True):
            is_state = spec.name in ("qpos", "qvel")
            values = rows.state[:, self._state_slices[spec.name]] if is_state else self._buffers[spec.key]
            if spec.is_delta:
                rows.fields[index, spec.start : spec.stop] = 0.0 if is_reset else values[index] - rows.last[index, last]
                rows.last[index, last] = values[index]
            else:
                rows.fields[index, spec.start : spec.stop] = values[index]

    def _views(self, model: mujoco.MjModel) -> list[np.ndarray]:
        return [getattr(model, name).reshape(-1) for name in self._model_fields]

    def write_model(self, model: mujoco.MjModel, row: np.ndarray) -> None:
        """Give a copy of the model the fields of a row [model_size]."""
        for view, columns in zip(self._views(model), self._model_slices, strict=True):
            np.copyto(view, row[columns])
        if self._needs_set_const:
            model.stat.meaninertia = row[-1]

    def _load_models(self, index: np.ndarray | slice) -> None:
        """Take over the model rows of the envs `index`."""
        self._patch.load(index, self.rows.model, self._model_slices)
        self._mean_inertias = self.rows.model[:, -1].tolist() if self._needs_set_const else []

    def _model_row(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Row of model fields for one episode: the randomised ones and all that follows from them [model_size]."""
        row = np.empty(self.model_size)
        for name, view, nominal in zip(self._randomised, self._scratch_views, self._nominal, strict=False):
            value = np.asarray(values[name]).reshape(-1)
            # An entry that randomisation left alone keeps its float64 value.
            np.copyto(view, np.where(value == nominal.astype(np.float32), nominal, value))
        if self._needs_set_const:
            mujoco.mj_setConst(self._scratch_model, self._scratch_data)
            row[-1] = self._scratch_model.stat.meaninertia
        for view, columns in zip(self._scratch_views, self._model_slices, strict=True):
            row[columns] = view
        return row


def needs_rne_post(specs: Sequence[FieldSpec]) -> bool:
    """Whether an env step ends with `mj_rnePostConstraint`, since one of its fields needs that."""
    return any(spec.name in NEEDS_RNE_POST for spec in specs)


def without_autoreset(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of a model whose envs do not start anew by themselves when their numbers break."""
    model = copy.copy(model)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return model


class Patch:
    """Values of some arrays of one mjModel for each of `num_envs` envs, to be copied into it in few pieces.

    `copies[env]` lists what to copy: pairs of (target, source).

    All arrays of an mjModel lie in one block of memory. Those that are close to each other are copied as one piece,
    with what lies between them, since a call costs more than a kilobyte.

    Args:
        arrays: views of the arrays, float64.
        num_envs: number of envs.
    """

    LARGEST_GAP = 256  # float64 numbers

    def __init__(self, arrays: Sequence[np.ndarray], num_envs: int) -> None:
        starts = [array.__array_interface__["data"][0] // 8 for array in arrays]
        order = sorted((i for i, array in enumerate(arrays) if array.size), key=lambda i: starts[i])
        pieces: list[list[int]] = []
        for i in order:
            last = pieces[-1][-1] if pieces else None
            if last is not None and starts[i] - starts[last] - arrays[last].size <= self.LARGEST_GAP:
                pieces[-1].append(i)
            else:
                pieces.append([i])
        self.copies: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(num_envs)]
        self._places: list[tuple[int, np.ndarray]] = []
        for piece in pieces:
            start, last = starts[piece[0]], piece[-1]
            size = starts[last] + arrays[last].size - start
            target = np.lib.stride_tricks.as_strided(arrays[piece[0]], (size,), (8,))
            table = np.tile(target, (num_envs, 1))
            self._places += [(i, table[:, starts[i] - start : starts[i] - start + arrays[i].size]) for i in piece]
            for copies, source in zip(self.copies, table, strict=True):
                copies.append((target, source))

    def load(self, index: np.ndarray | slice, rows: np.ndarray, slices: Sequence[slice]) -> None:
        """Take the envs' values from `rows` [S, n], where array i lies in the columns `slices[i]`."""
        for i, columns in self._places:
            columns[index] = rows[index, slices[i]]


def _slices(sizes: Sequence[int]) -> list[slice]:
    stops = np.cumsum([0, *sizes])
    return [slice(int(a), int(b)) for a, b in pairwise(stops)]


def state_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Columns of the parts of a state row that are read or written by name, in the order of mjtState's bits."""
    slices, start = {}, 0
    for bit in range(mujoco.mjtState.mjNSTATE.value):
        if not STATE.value & (1 << bit):
            continue
        size = mujoco.mj_stateSize(model, 1 << bit)
        slices[mujoco.mjtState(1 << bit).name.removeprefix("mjSTATE_").lower()] = slice(start, start + size)
        start += size
    return slices
