"""MotrixSim: an engine of its own that reads MJCF, in float32.

It does not give its full state (the solver's warm start is hidden), so an env cannot be put into a row and taken out
again: the envs live in the back end that began them, and a row's state is no more than the number of their scene. That
is why a shard stays with its worker, and why runs on it are not resumed.

MotrixSim ignores some of the model's options, such as the integrator; the physics is similar to MuJoCo's, not the same.
"""

from __future__ import annotations

import contextlib
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any, ClassVar

import mujoco
import numpy as np

from unilab.envs.physics.base import NOBODY, Demands, PhysicsRows, UnsupportedError, field_specs

os.environ.setdefault("RUST_LOG", "error")  # else the loader lists each option that it ignores
import motrixsim

READABLE = ("qpos", "qvel", "sensordata")
CONTROLS = ("ctrl", "qvel_kick")
MAX_VALUE = 1e10  # as for MuJoCo, a number is bad that is larger, or is none
WXYZ = [3, 0, 1, 2]
"""Where the entries of MuJoCo's quaternions lie in those of MotrixSim, which has w last."""


class MotrixsimPhysics:
    """Steps the envs of a shard with MotrixSim in one thread; see `PhysicsBackend` for the methods.

    Args:
        demands: what the task asks of its physics.
        num_envs: rows of a shard.

    Raises:
        UnsupportedError: the task randomises its model, applies forces to bodies, reads fields other than qpos, qvel
            and sensordata, moves in a fluid, or MotrixSim does not read its model.
    """

    exact_state: ClassVar = False

    def __init__(self, demands: Demands, num_envs: int) -> None:
        self.field_specs = field_specs(demands.model, demands.fields)
        self.field_size = self.field_specs[-1].stop if self.field_specs else 0
        _require_little(demands, {spec.name for spec in self.field_specs})
        self._deltas = [spec for spec in self.field_specs if spec.is_delta]
        self.state_size, self.model_size = 1, 0
        self.last_size = sum(spec.stop - spec.start for spec in self._deltas)
        self._num_envs, self._substeps = num_envs, demands.substeps
        self._model = _loaded(demands)
        self._sensors = [demands.model.sensor(i).name for i in range(demands.model.nsensor)]
        self._from_pos, self._to_pos, self._from_vel, self._to_vel = _orders(demands.model, self._model)
        self._num_free = int((demands.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).sum())
        self._scenes: list[Any] = []
        self._scene: Any = None

    def attach(self, rows: PhysicsRows) -> None:
        self.rows = rows
        number = rows.state[0, 0]
        self._scene = self._scenes[int(number) - 1] if 1 <= number <= len(self._scenes) else None

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        if self._scene is None:
            self._scenes.append(motrixsim.SceneData(self._model, batch=[self._num_envs]))
            self._scene = self._scenes[-1]
            self.rows.state[:] = len(self._scenes)
        order, is_chosen = np.argsort(index), np.zeros(self._num_envs, bool)
        is_chosen[index] = True
        positions, velocities = _plain(qpos[order][:, self._to_pos]), _plain(qvel[order][:, self._to_vel])
        for free in range(self._num_free):  # MuJoCo does not mind other lengths, MotrixSim does
            quaternions = positions[:, 7 * free + 3 : 7 * free + 7]
            quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
        self._scene[is_chosen].reset(self._model, positions, velocities, forward_kinematic=True)
        self._collect_fields(index, is_reset=True)

    def step(self, controls: Mapping[str, np.ndarray], resting: np.ndarray = NOBODY) -> np.ndarray:
        scene = self._scene
        if scene is None:
            raise RuntimeError("these envs were not begun in this process; MotrixSim cannot take them over")
        if "qvel_kick" in controls:
            kicked = self.qvel + controls["qvel_kick"]
            scene.set_dof_vel(_plain(kicked[:, self._to_vel]))
        if controls["ctrl"].size:  # the engine panics at none
            scene.actuator_ctrls = _plain(controls["ctrl"])
        self._model.step_n(scene, self._substeps)
        is_unstable = ~(np.abs(np.concatenate([self.qpos, self.qvel], axis=1)) <= MAX_VALUE).all(axis=1)
        self._collect_fields(np.flatnonzero(~is_unstable), is_reset=False)
        return is_unstable

    @property
    def qpos(self) -> np.ndarray:
        return np.asarray(self._scene.dof_pos)[:, self._from_pos]

    @property
    def qvel(self) -> np.ndarray:
        return np.asarray(self._scene.dof_vel)[:, self._from_vel]

    def _collect_fields(self, index: np.ndarray, is_reset: bool) -> None:
        """Fill the `fields` of the envs `index`; the others keep what they were."""
        rows, values = self.rows, {"qpos": self.qpos, "qvel": self.qvel, "sensordata": np.zeros((self._num_envs, 0))}
        if self._sensors:
            values["sensordata"] = self._model.get_sensor_values(self._sensors, self._scene)
        start = 0
        for spec in self.field_specs:
            value = values[spec.name][index]
            if spec.is_delta:
                last = slice(start, start := start + spec.stop - spec.start)
                change = 0.0 if is_reset else value - rows.last[index, last]
                rows.last[index, last] = value
                value = change
            rows.fields[index, spec.start : spec.stop] = value


def _plain(values: np.ndarray) -> np.ndarray:
    """Float32 in C order: MotrixSim takes no notice of strides."""
    return np.ascontiguousarray(values, np.float32)


def _require_little(demands: Demands, names: set[str]) -> None:
    """Refuse what this back end cannot do."""
    if beyond := sorted(names.difference(READABLE)):
        raise UnsupportedError(f"it gives {', '.join(READABLE)}, but not {', '.join(beyond)}")
    if demands.randomised:
        raise UnsupportedError(f"it cannot vary {', '.join(demands.randomised)} from env to env")
    if beyond := sorted(set(demands.controls).difference(CONTROLS)):
        raise UnsupportedError(f"it does not apply {', '.join(beyond)}")
    if demands.model.opt.density or demands.model.opt.viscosity:
        raise UnsupportedError("it has no fluid for the model to move in")
    sensors = [demands.model.sensor(i).name for i in range(demands.model.nsensor)]
    if "sensordata" in names and not all(sensors):
        raise UnsupportedError("it reads sensors by name, but some of the model's have none")


def _loaded(demands: Demands) -> Any:
    """MotrixSim's model."""
    with contextlib.suppress(RuntimeError):  # there is a pool already
        motrixsim.init_thread_pool(num_threads=1)  # workers are what runs in parallel
    if demands.mjcf is None:
        raise UnsupportedError("it needs the model as MJCF text")
    try:
        root = ElementTree.fromstring(demands.mjcf())
    except ValueError as error:
        raise UnsupportedError(str(error)) from None
    for texture in root.iter("texture"):
        texture.attrib.pop("colorspace", None)  # MuJoCo writes "auto", which MotrixSim refuses
    try:
        loaded = motrixsim.load_mjcf_str(ElementTree.tostring(root, encoding="unicode"))
    except RuntimeError as error:
        raise UnsupportedError(f"MotrixSim refuses the model: {error}") from None
    model = demands.model
    sizes = [("nq", loaded.num_dof_pos), ("nv", loaded.num_dof_vel), ("nu", loaded.num_actuators)]
    for name, size in sizes:
        if size != getattr(model, name):
            raise UnsupportedError(f"MotrixSim reads the model with {name} {size} instead of {getattr(model, name)}")
    return loaded


def _orders(model: mujoco.MjModel, loaded: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Indices that take MotrixSim's positions to MuJoCo's and back, and velocities likewise.

    MotrixSim has the free joints first.
    """
    names, from_pos, from_vel, num_free = list(loaded.joint_names), [], [], 0
    for joint in range(model.njnt):
        kind, name = model.jnt_type[joint], model.joint(joint).name
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            from_pos += [7 * num_free + i for i in (0, 1, 2, *(3 + k for k in WXYZ))]
            from_vel += [6 * num_free + i for i in range(6)]
            num_free += 1
        elif kind == mujoco.mjtJoint.mjJNT_BALL or name not in names:
            raise UnsupportedError(f"it finds hinges and slides by name, but not the joint {name or joint!r}")
        else:
            from_pos.append(loaded.joint_dof_pos_indices[names.index(name)])
            from_vel.append(loaded.joint_dof_vel_indices[names.index(name)])
    return np.array(from_pos), np.argsort(from_pos), np.array(from_vel), np.argsort(from_vel)
