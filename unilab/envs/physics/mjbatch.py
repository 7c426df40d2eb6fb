"""Upstream MuJoCo, all envs of a shard stepped by one call into mjbatch's C++ loop.

State rows, model rows and resets are those of the default back end, so the two agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import mjbatch
import numpy as np

from unilab.envs.physics.base import Demands, FieldSpec, PhysicsRows, UnsupportedError, field_specs
from unilab.envs.physics.mujoco import NEEDS_RNE_POST, UNSTABLE, MujocoPhysics, without_autoreset


class MjbatchPhysics(MujocoPhysics):
    """Steps the envs of a shard in one thread of C++; see `PhysicsBackend` for the methods.

    Args:
        demands: what the task asks of its physics.
        num_envs: rows of a shard.

    Raises:
        UnsupportedError: the task reads contact forces or accelerations of bodies, which mjbatch does not compute.
    """

    def __init__(self, demands: Demands, num_envs: int) -> None:
        names = {spec.name for spec in field_specs(demands.model, demands.fields)}
        if beyond := sorted(names.intersection(NEEDS_RNE_POST)):
            raise UnsupportedError(f"it does not call mj_rnePostConstraint, which makes the fields {', '.join(beyond)}")
        self._batch = mjbatch.Batch(without_autoreset(demands.model), num_envs, num_threads=1)
        self._all_states = self._batch.bind("state")
        self._all_warnings = self._batch.bind("warning")
        super().__init__(demands, num_envs)
        self._expanded = [self._batch.expand(name) for name in self._randomised]

    def attach(self, rows: PhysicsRows) -> None:
        super().attach(rows)
        self._set_models(np.arange(len(rows.state), dtype=np.int64))

    def reset(
        self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray, randomised: Mapping[str, np.ndarray]
    ) -> None:
        super().reset(index, qpos, qvel, randomised)
        self._set_models(index)

    def _simulate(self, resting: np.ndarray) -> np.ndarray:
        self._all_states[:] = self.rows.state
        self._all_warnings[:] = 0
        self._batch.step(nstep=self.substeps)
        self.rows.state[:] = self._all_states
        return np.asarray(self._all_warnings[:, UNSTABLE, 1].any(axis=1))

    def _buffer(self, spec: FieldSpec, num_envs: int) -> np.ndarray:
        values: np.ndarray = self._batch.bind(spec.name)
        return values.reshape(num_envs, -1)

    def _set_models(self, index: np.ndarray) -> None:
        """Take over the model rows of the envs `index`; what follows from them is computed again, to the same bits."""
        for values, columns in zip(self._expanded, self._model_slices, strict=False):
            values[index] = self.rows.model[index, columns].reshape(-1, *values.shape[1:])
        if self._needs_set_const:
            self._batch.set_const(np.unique(index).astype(np.int64))
