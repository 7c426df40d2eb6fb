"""What every physics back end promises, asked of each one that is installed."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import mujoco
import numpy as np
import pytest

from unilab.envs.env import Env
from unilab.envs.physics.base import Demands, PhysicsBackend, PhysicsRows, UnsupportedError
from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.envs.physics.registry import PHYSICS, make_physics, physics_class
from unilab.envs.registry import find_task
from unilab.envs.task import delta

CART = """
<mujoco model="cart">
  <option timestep="0.005"/>
  <worldbody>
    <body name="cart">
      <joint name="rail" type="slide" axis="1 0 0" damping="0.2"/>
      <geom name="cart" type="box" size="0.2 0.1 0.1" mass="1" contype="0" conaffinity="0"/>
      <body name="pole">
        <joint name="hinge" axis="0 1 0" damping="0.01"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 0.6" size="0.04" mass="0.3" contype="0" conaffinity="0"/>
        <site name="tip" pos="0 0 0.6"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="rail" gear="8"/></actuator>
  <sensor><framepos name="tip" objtype="site" objname="tip"/><jointpos name="hinge" joint="hinge"/></sensor>
</mujoco>
"""
NUM_ENVS, SUBSTEPS = 3, 2
ALL = np.arange(NUM_ENVS)
CALM = np.zeros((NUM_ENVS, 2), np.float32)
INSTALLED = [name for name, entry in PHYSICS.items() if entry.is_installed]
TOLERANCE = {"mujoco": 0.0, "mjbatch": 0.0, "mujoco-uni": 0.0, "motrixsim": 2e-4, "mjx": 2e-4}


def rows_of(backend: PhysicsBackend, num_envs: int = NUM_ENVS) -> PhysicsRows:
    """Rows full of NaN."""
    sizes = (backend.state_size, backend.model_size, backend.last_size)
    arrays = [np.full((num_envs, size), np.nan) for size in sizes]
    return PhysicsRows(*arrays, np.full((num_envs, backend.field_size), np.nan, np.float32))


def copy_of(rows: PhysicsRows) -> PhysicsRows:
    return PhysicsRows(*(getattr(rows, field.name).copy() for field in dataclasses.fields(rows)))


def demands() -> Demands:
    model = mujoco.MjModel.from_xml_string(CART)
    mjcf = mujoco.MjSpec.from_string(CART)
    inertias = mjcf.compile()
    for body in mjcf.bodies[1:]:  # as `Env.mjcf` does
        body.explicitinertial, body.mass, body.inertia = (
            True,
            inertias.body_mass[body.id],
            inertias.body_inertia[body.id],
        )
        body.ipos, body.iquat = inertias.body_ipos[body.id], inertias.body_iquat[body.id]
    mjcf.compile()
    fields = ("qpos", "qvel", "sensordata", delta("qpos"))
    return Demands(model, fields, SUBSTEPS, controls=("ctrl", "qvel_kick"), mjcf=mjcf.to_xml)


class Case:
    """A back end, and upstream MuJoCo beside it with an MjData for each env."""

    def __init__(self, name: str) -> None:
        self.name, self.demands = name, demands()
        self.backend = make_physics(name, self.demands, NUM_ENVS)

    def begin(self) -> None:
        self.rows = rows_of(self.backend)
        self.backend.attach(self.rows)
        self.datas = [mujoco.MjData(self.demands.model) for _ in range(NUM_ENVS)]
        self.reset(ALL, np.linspace(-0.5, 0.5, 6).reshape(3, 2), np.linspace(0.3, -0.3, 6).reshape(3, 2))

    def reset(self, index: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        self.backend.reset(index, qpos.astype(np.float32), qvel.astype(np.float32), {})
        for k, env in enumerate(index):
            mujoco.mj_resetData(self.demands.model, self.datas[env])
            self.datas[env].qpos[:], self.datas[env].qvel[:] = qpos[k].astype(np.float32), qvel[k].astype(np.float32)
            mujoco.mj_forward(self.demands.model, self.datas[env])

    def step(self, seed: int, kick: bool = False) -> np.ndarray:
        rng = np.random.default_rng(seed)
        ctrl = rng.uniform(-1, 1, (NUM_ENVS, 1)).astype(np.float32)
        kicks = rng.uniform(-0.5, 0.5, (NUM_ENVS, 2)).astype(np.float32) if kick else CALM
        for env, data in enumerate(self.datas):
            data.ctrl[:] = ctrl[env]
            data.qvel += kicks[env]
            mujoco.mj_step(self.demands.model, data, SUBSTEPS)
        return self.backend.step({"ctrl": ctrl, "qvel_kick": kicks})

    def expect(self, name: str, index: np.ndarray = ALL) -> None:
        """The field, and where it is a coordinate the back end's own, is upstream's."""
        upstream = np.array([getattr(self.datas[env], name) for env in index])
        tolerance = TOLERANCE[self.name]
        np.testing.assert_allclose(
            self.field(name)[index], upstream.astype(np.float32), tolerance, tolerance, err_msg=name
        )
        if name in ("qpos", "qvel"):
            np.testing.assert_allclose(getattr(self.backend, name)[index], upstream, tolerance, tolerance)

    def field(self, name: str) -> np.ndarray:
        spec = next(spec for spec in self.backend.field_specs if spec.key == name)
        return self.rows.fields[:, spec.start : spec.stop]


@pytest.fixture(scope="module", params=INSTALLED)
def made(request: Any) -> Case:
    return Case(request.param)


@pytest.fixture
def case(made: Case) -> Case:
    made.begin()
    return made


def test_an_episode_begins_where_it_was_told_and_all_fields_agree(case: Case) -> None:
    """After a reset, qpos, qvel and sensors are those of mj_forward, and nothing has moved."""
    for name in ("qpos", "qvel", "sensordata"):
        case.expect(name)
    assert not case.field("delta:qpos").any()


def test_control_steps_are_upstreams(case: Case) -> None:
    """Twenty control steps under random controls and pushes, with the restart of one env, follow mj_step."""
    for t in range(20):
        before = case.backend.qpos.copy()
        assert not case.step(t, kick=t % 5 == 2).any()
        case.expect("qpos")
        case.expect("qvel")
        np.testing.assert_allclose(case.field("delta:qpos"), case.backend.qpos - before, rtol=1e-4, atol=1e-6)
        if t == 9:
            case.reset(np.array([1]), np.array([[0.1, 3.0]]), np.zeros((1, 2)))


def test_sensors_lag_by_one_physics_step(case: Case) -> None:
    """After a control step sensordata belongs to the state before the last physics step, as mj_step leaves it."""
    for t in range(5):
        case.step(t)
        case.expect("sensordata")
    mujoco.mj_forward(case.demands.model, case.datas[0])
    assert np.abs(case.field("sensordata")[0] - case.datas[0].sensordata).max() > 1e-3


def test_a_broken_env_is_flagged_and_keeps_its_last_good_fields(case: Case) -> None:
    """Of three envs one gets an impossible velocity: it alone is flagged, and the fields are its last good ones."""
    case.step(0)
    fields = case.rows.fields.copy()
    kick = CALM.copy()
    kick[1, 0] = 1e20
    unstable = case.backend.step({"ctrl": np.zeros((NUM_ENVS, 1), np.float32), "qvel_kick": kick})
    assert unstable.tolist() == [False, True, False]
    np.testing.assert_array_equal(case.rows.fields[1], fields[1])
    assert (case.rows.fields[[0, 2]] != fields[[0, 2]]).any(axis=1).all()
    case.reset(np.array([1]), np.zeros((1, 2)), np.zeros((1, 2)))
    assert not case.step(1).any()


def test_rows_are_all_that_an_env_is(case: Case) -> None:
    """With an exact state, a copy of the rows goes on bit for bit after the back end has worked on others."""
    if not case.backend.exact_state:
        case.backend.attach(rows_of(case.backend))
        with pytest.raises(RuntimeError, match="not begun in this process"):
            case.step(0)
        return
    case.step(0)
    kept = copy_of(case.rows)
    for t in range(1, 5):
        case.step(t)
    expected = copy_of(case.rows)
    case.rows = kept
    case.backend.attach(kept)
    for t in range(1, 5):
        case.step(t)
    for field in dataclasses.fields(kept):
        np.testing.assert_array_equal(getattr(kept, field.name), getattr(expected, field.name), err_msg=field.name)


# --- bit-equality with the default back end, on real tasks ---------------------------------------------------------

TASKS = ("CartpoleSwingup", "HalfCheetah-v5", "Ant-v5", "Go1JoystickFlat")


@pytest.fixture(scope="module", params=TASKS)
def env(request: Any) -> Env:
    return Env(find_task(request.param)())


@pytest.mark.parametrize("name", ["mjbatch", "mujoco-uni"])
def test_stock_mujoco_agrees_bit_for_bit(env: Env, name: str) -> None:
    """Random steps with restarts and randomised models: the states are those of the default back end.

    mujoco-uni forgets the solver's warm start, so the default one is made to forget it too.
    """
    if name not in INSTALLED:
        pytest.skip(PHYSICS[name].install_command)
    wanted = dataclasses.replace(env.demands, fields=("qpos", "qvel", "sensordata"))
    default, other = MujocoPhysics(wanted, 4), make_physics(name, wanted, 4)
    begin = jax.jit(jax.vmap(env.begin, in_axes=(None, 0, 0, None)))
    envs, key, rng = np.arange(4, dtype=np.int32), jax.random.key(0), np.random.default_rng(0)
    for backend in (default, other):
        backend.attach(rows_of(backend, 4))
    for t in range(120):
        if t % 30 == 0:
            index = envs if t == 0 else np.array([3, 1])
            starts = jax.tree.map(lambda x: np.asarray(x)[index], begin(key, envs, envs + t, {})[:3])  # noqa: B023
            for backend in (default, other):
                backend.reset(index, *starts)
        controls = {"ctrl": rng.uniform(-1, 1, (4, env.model.nu)).astype(np.float32)}
        controls["xfrc_applied"] = rng.normal(size=(4, env.model.nbody, 6)).astype(np.float32)
        if name == "mujoco-uni":
            default.rows.state[:, default.columns("warmstart")] = 0.0
        for backend in (default, other):
            assert not backend.step(controls).any()
        np.testing.assert_array_equal(other.qpos, default.qpos)
        np.testing.assert_array_equal(other.qvel, default.qvel)
        np.testing.assert_array_equal(other.rows.fields, default.rows.fields)


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "mjx"])
def test_a_model_without_sensors_has_empty_sensordata(name: str) -> None:
    """A task may declare sensordata whether or not its model has sensors."""
    env = Env(find_task("CartpoleSwingup")())
    backend = make_physics(name, dataclasses.replace(env.demands, fields=("qpos", "sensordata")), 1)
    backend.attach(rows := rows_of(backend, 1))
    backend.reset(np.array([0]), np.array([[0.1, 0.2]], np.float32), np.zeros((1, 2), np.float32), {})
    np.testing.assert_array_equal(rows.fields, np.array([[0.1, 0.2]], np.float32))


@pytest.mark.parametrize("task", ["CartpoleSwingup", "HalfCheetah-v5"])
def test_the_mjcf_text_is_the_model_with_its_inertias_written_out(task: str) -> None:
    """An engine need infer no inertia: each body of the text has its own, and MuJoCo makes the same model of it."""
    env = Env(find_task(task)())
    model, text = mujoco.MjModel.from_xml_string(env.mjcf), env.mjcf
    assert text.count("<inertial") == env.model.nbody - 1
    for name in ("body_mass", "body_inertia", "body_ipos", "dof_armature", "jnt_range", "geom_pos", "actuator_gear"):
        np.testing.assert_allclose(getattr(model, name), getattr(env.model, name), rtol=1e-4, atol=1e-6, err_msg=name)


# --- what cannot be had -------------------------------------------------------------------------------------------


def test_an_unknown_name_is_an_error_with_the_allowed() -> None:
    """A misspelt name is answered with the nearest one, a strange one with all."""
    with pytest.raises(ValueError, match="unknown physics 'mjbach'; did you mean mjbatch"):
        physics_class("mjbach")
    with pytest.raises(ValueError, match="allowed: mujoco, mjbatch, mujoco-uni, motrixsim, mjx"):
        physics_class("bullet")


def test_an_engine_that_is_missing_is_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the command that installs the extra."""
    missing = dataclasses.replace(PHYSICS["mjbatch"], engine="no-such-distribution")
    monkeypatch.setitem(PHYSICS, "mjbatch", missing)
    with pytest.raises(ValueError, match=r"'mjbatch' is not installed: pip install 'unilab\[mjbatch\]'"):
        make_physics("mjbatch", demands(), 1)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("mjbatch", {"fields": ("qpos", "cfrc_ext")}, "mj_rnePostConstraint"),
        ("mujoco-uni", {"fields": ("qpos", "xpos")}, "not xpos"),
        ("motrixsim", {"fields": ("qpos", "xpos")}, "not xpos"),
        ("motrixsim", {"randomised": ("body_mass",)}, "cannot vary body_mass"),
        ("motrixsim", {"controls": ("ctrl", "xfrc_applied")}, "does not apply xfrc_applied"),
        ("mjx", {"fields": ("qpos", "cdof_missing")}, "mjData has no such array"),
        ("mjx", {"fields": ("qpos", "qLDiagInv", "flexvert_xpos")}, "mjx.Data has no flexvert_xpos"),
        ("mjx", {"randomised": ("jnt_axis",)}, "cannot vary jnt_axis"),
    ],
)
def test_what_a_back_end_cannot_do_is_an_error_when_it_is_made(name: str, change: dict[str, Any], reason: str) -> None:
    """The message names the demand and, for what others can do, who can."""
    if name not in INSTALLED:
        pytest.skip(PHYSICS[name].install_command)
    with pytest.raises(ValueError, match=reason) as caught:
        make_physics(name, dataclasses.replace(demands(), **change), 1)
    if isinstance(caught.value, UnsupportedError):
        assert "installed ones that can: mujoco" in str(caught.value)
