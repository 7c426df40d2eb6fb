"""Upstream MuJoCo, all envs of a shard stepped by one call into mujoco-uni-runtime's BatchEnvPool.

State rows, model rows and resets are those of the default back end. But BatchEnvPool does not give the solver's warm
start back, so each control step begins with none: bit-equal to upstream MuJoCo whose `qacc_warmstart` is zeroed before
each control step, and to the default back end only where the solver does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np
from mujoco_uni import BatchEnvPool

from unilab.envs.physics.base import Demands, PhysicsRows, UnsupportedError, field_specs
from unilab.envs.physics.mujoco import MujocoPhysics, without_autoreset

PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
CONTROLS = mujoco.mjtState.mjSTATE_CTRL.value | mujoco.mjtState.mjSTATE_XFRC_APPLIED.value
READABLE = ("qpos", "qvel", "sensordata")
MAX_VALUE = 1e10  # mjMAXVAL: MuJoCo calls a number bad that is larger, or is none


class MujocoUniPhysics(MujocoPhysics):
    """Steps the envs of a shard in one thread of C++; see `PhysicsBackend` for the methods.

    Of the reasons for which MuJoCo calls an env unstable, it reports bad positions and velocities.

    Args:
        demands: what the task asks of its physics.
        num_envs: rows of a shard.

    Raises:
        UnsupportedError: the task reads fields other than qpos, qvel and sensordata, or its model has mocap bodies or
            equality constraints.
    """

    def __init__(self, demands: Demands, num_envs: int) -> None:
        model = demands.model
        specs = field_specs(model, demands.fields)
        if beyond := sorted({spec.name for spec in specs}.difference(READABLE)):
            raise UnsupportedError(f"it gives {', '.join(READABLE)}, but not {', '.join(beyond)}")
        if model.nmocap or model.neq:
            raise UnsupportedError("its control steps do not keep the state of mocap bodies and equality constraints")
        self._pool = BatchEnvPool(without_autoreset(model), nbatch=num_envs, nthread=0)
        super().__init__(demands, num_envs)
        self._pool_views = (
            [(each, self._views(each)) for each in self._pool.get_all_models()] if self._randomised else []
        )
        parts = self._state_slices.items()
        self._physics_columns, self._control_columns = (
            np.concatenate([np.arange(self.state_size)[part] for name, part in parts if bits & _bit(name)])
            for bits in (PHYSICS, CONTROLS)
        )

    def attach(self, rows: PhysicsRows) -> None:
        super().attach(rows)
        self._write_pool(range(len(rows.state)))

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        super().reset(index, qpos, qvel, randomised)
        self._write_pool(index)

    def _simulate(self, resting: np.ndarray) -> np.ndarray:
        rows = self.rows.state
        controls = np.repeat(rows[:, None, self._control_columns], self.substeps, axis=1)
        states, sensors = self._pool.step(
            rows[:, self._physics_columns], nstep=self.substeps, control_spec=CONTROLS, control=controls,
            return_sensor=True,
        )  # fmt: skip
        rows[:, self._physics_columns] = states
        rows[:, self._state_slices["warmstart"]] = 0.0
        for buffer in self._buffers.values():
            buffer[:] = sensors
        return ~(np.abs(np.concatenate([self.qpos, self.qvel], axis=1)) <= MAX_VALUE).all(axis=1)

    def _write_pool(self, index: range | np.ndarray) -> None:
        """Give the pool's own models the model rows of the envs `index`."""
        for env in index if self._randomised else ():
            model, views = self._pool_views[env]
            for view, columns in zip(views, self._model_slices, strict=True):
                np.copyto(view, self.rows.model[env, columns])
            if self._needs_set_const:
                model.stat.meaninertia = self.rows.model[env, -1]


def _bit(name: str) -> int:
    """The bit of mjtState that stands for a part of a state row."""
    return int(getattr(mujoco.mjtState, f"mjSTATE_{name.upper()}").value)
