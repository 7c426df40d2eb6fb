"""What follows from masses and inertias, as MuJoCo's `mj_setConst` computes it, for one env on JAX's device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

MASSES = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature")
"""Model fields that may change before `derived_constants`."""


def derived_constants(model: Any, data: Any) -> dict[str, jax.Array]:
    """Fields of mjx.Model that follow from `MASSES`, and "meaninertia" of its statistics.

    Args:
        model: mjx.Model with changed masses; without tendons.
        data: any mjx.Data of that model.
    """
    data = mjx.com_pos(model, mjx.kinematics(model, data.replace(qpos=jnp.asarray(model.qpos0))))
    inertia = mjx.full_m(model, mjx.crb(model, data))
    inverse = jnp.linalg.inv(inertia)
    bodies = np.flatnonzero(model.body_weldid)  # the others cannot move
    jacobians = jax.vmap(lambda body: jnp.concatenate(mjx.jac(model, data, data.xipos[body], body), axis=1))(bodies)
    weights = jnp.einsum("bni,nm,bmi->bi", jacobians, inverse, jacobians)  # of the six directions of each body
    body_weights = jnp.zeros((model.nbody, 2)).at[bodies].set(weights.reshape(-1, 2, 3).mean(axis=2))
    masses = [jnp.asarray(model.body_mass[i]) for i in range(model.nbody)]
    for body in range(model.nbody - 1, 0, -1):
        masses[model.body_parentid[body]] += masses[body]
    return {
        "body_subtreemass": jnp.stack(masses),
        "body_invweight0": body_weights,
        "dof_invweight0": jnp.asarray(_averages(model)) @ jnp.diag(inverse),
        "meaninertia": jnp.diag(inertia).mean(),
    }


def _averages(model: Any) -> np.ndarray:
    """Matrix [nv, nv] that takes means over the dofs that MuJoCo treats as one: of a free or ball joint."""
    groups, free, ball = np.arange(model.nv), mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL
    for kind, start in zip(model.jnt_type, model.jnt_dofadr, strict=True):
        for first in {free: (0, 3), ball: (0,)}.get(mujoco.mjtJoint(kind), ()):
            groups[start + first : start + first + 3] = start + first
    same = groups[:, None] == groups[None, :]
    return same / same.sum(axis=1, keepdims=True)
