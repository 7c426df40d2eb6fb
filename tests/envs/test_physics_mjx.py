from __future__ import annotations

import copy

import mujoco
import numpy as np
import pytest

pytest.importorskip("mujoco.mjx")

import jax
from mujoco import mjx

from unilab.envs.physics.mjx_const import derived_constants

CHAIN = """
<mujoco model="chain">
  <worldbody>
    <body name="stand"><geom type="box" size="0.1 0.1 0.1" mass="3"/></body>
    <body name="box" pos="0 0 1">
      <freejoint/>
      <geom name="box" type="box" size="0.1 0.2 0.3" mass="1.1"/>
      <body name="ball" pos="0.2 0 0">
        <joint type="ball" armature="0.01"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.04" mass="0.5"/>
        <body name="arm" pos="0.3 0 0">
          <joint axis="0 1 0" armature="0.02"/>
          <geom type="capsule" fromto="0 0 0 0.2 0.1 0" size="0.03" mass="0.3"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_changed_masses_have_the_consequences_that_mj_set_const_computes() -> None:
    """Subtree masses, inverse weights and mean inertia of a robot with free, ball and hinge joints are upstream's."""
    model = mujoco.MjModel.from_xml_string(CHAIN)
    changed = copy.copy(model)
    changed.body_mass *= np.linspace(0.7, 1.4, model.nbody)
    changed.body_inertia *= np.linspace(1.3, 0.6, model.nbody)[:, None]
    values = {name: getattr(changed, name).astype(np.float32) for name in ("body_mass", "body_inertia")}
    put, data = mjx.put_model(model), mjx.make_data(model)
    derived = jax.jit(lambda values: derived_constants(put.replace(**values), data))(values)
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    for name, value in derived.items():
        upstream = getattr(changed.stat if name == "meaninertia" else changed, name)
        nominal = getattr(model.stat if name == "meaninertia" else model, name)
        np.testing.assert_allclose(value, upstream, rtol=1e-4, atol=1e-6, err_msg=name)
        assert not np.allclose(value, nominal, rtol=1e-2, atol=0), name
