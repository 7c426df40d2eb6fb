from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from unilab.envs.physics.base import Demands, PhysicsRows, field_specs
from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.envs.task import delta

ROBOT = """
<mujoco model="robot">
  <option timestep="0.005"/>
  <default><geom friction="0.7 0.005 0.0001"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1" friction="0.3 0.005 0.0001"/>
    <body name="box" pos="0 0 0.12">
      <freejoint/>
      <geom name="box" type="box" size="0.1 0.1 0.1" mass="1.1"/>
    </body>
    <body name="arm" pos="1 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.1" range="-1.2 1.2" limited="true"/>
      <geom name="arm" type="capsule" fromto="0 0 0 0.3 0 0" size="0.04" mass="0.55"/>
      <body name="hand" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0.2" damping="0.05"/>
        <geom name="hand" type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.35"/>
        <site name="hand" pos="0.3 0 0"/>
      </body>
    </body>
    <site name="anchor" pos="1 0 1.5"/>
  </worldbody>
  <tendon>
    <spatial name="rope" range="0 0.8" limited="true"><site site="anchor"/><site site="hand"/></spatial>
  </tendon>
  <actuator>
    <general name="shoulder" joint="shoulder" dyntype="filter" dynprm="0.05" gainprm="2"/>
    <motor name="elbow" joint="elbow" gear="2"/>
  </actuator>
  <sensor>
    <jointpos joint="shoulder"/>
    <framepos objtype="site" objname="hand"/>
    <framelinvel objtype="body" objname="box"/>
  </sensor>
</mujoco>
"""
FIELDS = ("qpos", "qvel", "sensordata", "xpos", "actuator_force")
NUM_ENVS, SUBSTEPS = 3, 4
STATE = mujoco.mjtState.mjSTATE_INTEGRATION


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ROBOT)


def backend_of(
    model: mujoco.MjModel, fields: Any = FIELDS, randomised: Any = (), num_envs: int = NUM_ENVS
) -> MujocoPhysics:
    """A back end attached to rows full of NaN."""
    backend = MujocoPhysics(Demands(model, fields, SUBSTEPS, randomised), num_envs)
    sizes = (backend.state_size, backend.model_size, backend.last_size)
    arrays = [np.full((num_envs, size), np.nan) for size in sizes]
    backend.attach(PhysicsRows(*arrays, np.full((num_envs, backend.field_size), np.nan, np.float32)))
    return backend


def model_of(backend: MujocoPhysics, env: int) -> mujoco.MjModel:
    """A copy of the model as an env has it."""
    model = copy.copy(backend.model)
    backend.write_model(model, backend.rows.model[env])
    return model


def field(backend: MujocoPhysics, name: str) -> np.ndarray:
    """The float32 values [S, ...] of one field."""
    spec = next(spec for spec in backend.field_specs if spec.key == name)
    return backend.rows.fields[:, spec.start : spec.stop].reshape(-1, *spec.shape)


def starts(model: mujoco.MjModel, rng: np.random.Generator, num_envs: int = NUM_ENVS) -> tuple[np.ndarray, np.ndarray]:
    """Random initial qpos and qvel near the model's own."""
    qpos = np.tile(model.qpos0, (num_envs, 1)) + rng.uniform(-0.1, 0.1, (num_envs, model.nq))
    return qpos.astype(np.float32), rng.uniform(-1, 1, (num_envs, model.nv)).astype(np.float32)


def random_controls(model: mujoco.MjModel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    controls = {
        "ctrl": rng.uniform(-1, 1, (NUM_ENVS, model.nu)),
        "xfrc_applied": rng.uniform(-1, 1, (NUM_ENVS, model.nbody, 6)),
        "qvel_kick": rng.uniform(-0.2, 0.2, (NUM_ENVS, model.nv)),
    }
    return {name: value.astype(np.float32) for name, value in controls.items()}


def random_model_fields(
    model: mujoco.MjModel,
    rng: np.random.Generator,
    names: Sequence[str] = ("body_mass", "body_inertia", "geom_friction"),
) -> dict[str, np.ndarray]:
    def scaled(nominal: np.ndarray) -> np.ndarray:
        return (nominal * rng.uniform(0.7, 1.3, (NUM_ENVS, *nominal.shape))).astype(np.float32)

    return {name: scaled(getattr(model, name)) for name in names}


class Separate:
    """One env with a model and an MjData of its own, stepped as upstream's documentation says: the oracle."""

    def __init__(self, model: mujoco.MjModel, changes: dict[str, np.ndarray]) -> None:
        self.model = copy.copy(model)
        for name, value in changes.items():
            getattr(self.model, name)[:] = value
        if changes:
            mujoco.mj_setConst(self.model, mujoco.MjData(self.model))
        self.data = mujoco.MjData(self.model)

    def reset(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, self.data)

    def step(self, controls: dict[str, np.ndarray], substeps: int = SUBSTEPS) -> None:
        self.data.ctrl[:] = controls["ctrl"]
        self.data.xfrc_applied[:] = controls["xfrc_applied"]
        self.data.qvel[:] += controls["qvel_kick"]
        for _ in range(substeps):
            mujoco.mj_step(self.model, self.data)

    def state(self) -> np.ndarray:
        state = np.empty(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self.data, state, STATE)
        return state


RANDOMISED = [
    (),
    ("body_mass", "body_inertia", "geom_friction"),
    ("body_pos", "jnt_axis"),
    ("actuator_gear", "site_pos"),
]


@pytest.mark.parametrize("names", RANDOMISED, ids=lambda names: "+".join(names) or "nothing")
def test_one_mjdata_for_all_equals_one_for_each(model: mujoco.MjModel, names: tuple[str, ...]) -> None:
    """N envs in one MjData equal N separate models and MjDatas under upstream mj_step, bit for bit."""
    rng = np.random.default_rng(0)
    changes = random_model_fields(model, rng, names)
    backend = backend_of(model, randomised=tuple(changes))
    separate = [Separate(model, {name: value[i] for name, value in changes.items()}) for i in range(NUM_ENVS)]
    qpos, qvel = starts(model, rng)
    backend.reset(np.arange(NUM_ENVS), qpos, qvel, changes)
    for env, p, v in zip(separate, qpos, qvel, strict=True):
        env.reset(p, v)
    constraints: set[int] = set()
    for t in range(40):
        controls = random_controls(model, rng)
        assert not backend.step(controls).any()
        for i, env in enumerate(separate):
            env.step({name: value[i] for name, value in controls.items()})
            constraints |= set(env.data.efc_type.tolist())
            assert backend.rows.state[i].tobytes() == env.state().tobytes(), f"env {i}, step {t}"
            for name in FIELDS:
                np.testing.assert_array_equal(field(backend, name)[i], getattr(env.data, name).astype(np.float32))
        if t == 20:
            backend.reset(np.array([1]), qpos[1:2], qvel[1:2], {name: value[1:2] for name, value in changes.items()})
            separate[1].reset(qpos[1], qvel[1])
    kinds = mujoco.mjtConstraint
    assert {kinds.mjCNSTR_LIMIT_TENDON, kinds.mjCNSTR_CONTACT_PYRAMIDAL} <= constraints  # the hard parts took part
    if not names:
        return
    for i, env in enumerate(separate):
        found = model_of(backend, i)
        for name in dir(found):
            array = getattr(found, name)
            if isinstance(array, np.ndarray) and not name.startswith(("_", "cam_", "light_")):  # those only render
                np.testing.assert_array_equal(array, getattr(env.model, name), name)
        assert found.stat.meaninertia == env.model.stat.meaninertia


def test_rows_continue_in_another_backend(model: mujoco.MjModel) -> None:
    """Rows copied to a back end whose MjData was used for other envs go on bit for bit."""
    rng = np.random.default_rng(1)
    changes = random_model_fields(model, rng)
    fields = (*FIELDS, delta("xpos"))
    first, second = (backend_of(model, fields, tuple(changes)) for _ in range(2))
    for backend in (first, second):
        backend.reset(np.arange(NUM_ENVS), *starts(model, rng), changes)
        backend.step(random_controls(model, rng))
    rows = PhysicsRows(*(array.copy() for array in vars(first.rows).values()))
    second.attach(rows)
    for _ in range(10):
        controls = random_controls(model, rng)
        first.step(controls)
        second.step(controls)
        for name, array in vars(first.rows).items():
            assert array.tobytes() == getattr(rows, name).tobytes(), name


def test_derived_fields_lag_by_one_physics_step_but_not_after_a_reset(model: mujoco.MjModel) -> None:
    """After a control step sensordata and xpos belong to the state one physics step ago; after a reset all agree."""
    rng = np.random.default_rng(2)
    backend, qpos, qvel = backend_of(model), *starts(model, rng)
    backend.reset(np.arange(NUM_ENVS), qpos, qvel, {})

    def kinematics(qpos: np.ndarray, qvel: np.ndarray) -> mujoco.MjData:
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(model, data)
        return data

    for i in range(NUM_ENVS):
        data = kinematics(qpos[i], qvel[i])
        np.testing.assert_array_equal(field(backend, "xpos")[i], data.xpos.astype(np.float32))
        np.testing.assert_array_equal(field(backend, "sensordata")[i], data.sensordata.astype(np.float32))
    controls = random_controls(model, rng)
    backend.step(controls)
    for i in range(NUM_ENVS):
        env = Separate(model, {})
        env.reset(qpos[i], qvel[i])
        env.step({name: value[i] for name, value in controls.items()}, SUBSTEPS - 1)
        before = kinematics(env.data.qpos, env.data.qvel)
        mujoco.mj_step(model, env.data)
        after = kinematics(env.data.qpos, env.data.qvel)
        np.testing.assert_array_equal(field(backend, "qpos")[i], env.data.qpos.astype(np.float32))
        np.testing.assert_array_equal(field(backend, "qvel")[i], env.data.qvel.astype(np.float32))
        for name in ("xpos", "sensordata"):
            np.testing.assert_array_equal(field(backend, name)[i], getattr(before, name).astype(np.float32))
            assert not np.array_equal(field(backend, name)[i], getattr(after, name).astype(np.float32))


def test_delta_is_a_float64_difference_rounded_once(model: mujoco.MjModel) -> None:
    """delta("xpos") is exact 1,000 m from the origin, where float32 positions lose it; 0 after a reset."""
    rng = np.random.default_rng(3)
    backend, qpos, qvel = backend_of(model, (delta("xpos"), "xpos")), *starts(model, rng)
    qpos[:, :2] = 1000.0  # where the box is
    backend.reset(np.arange(NUM_ENVS), qpos, qvel, {})
    assert not field(backend, "delta:xpos").any()
    separate = [Separate(model, {}) for _ in range(NUM_ENVS)]
    for env, p, v in zip(separate, qpos, qvel, strict=True):
        env.reset(p, v)
    for _ in range(5):
        controls = random_controls(model, rng)
        last = field(backend, "xpos").copy()
        backend.step(controls)
        for i, env in enumerate(separate):
            before = env.data.xpos.copy()
            env.step({name: value[i] for name, value in controls.items()})
            np.testing.assert_array_equal(field(backend, "delta:xpos")[i], (env.data.xpos - before).astype(np.float32))
        assert not np.allclose(
            field(backend, "delta:xpos")[:, 1], (field(backend, "xpos") - last)[:, 1], rtol=1e-3, atol=0
        )
    backend.reset(np.array([2]), qpos[:1], qvel[:1], {})
    assert not field(backend, "delta:xpos")[2].any()
    assert field(backend, "delta:xpos")[1].any()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("contact", "its length varies"),
        ("efc_force", "its length varies"),
        ("ncon", "mjData has no such array"),
        ("qposs", "mjData has no such array"),
        ("step", "mjData has no such array"),
    ],
)
def test_fields_that_cannot_be_read_are_refused(model: mujoco.MjModel, name: str, reason: str) -> None:
    """A field whose length varies, or that mjData does not have, is refused by name, with examples of good ones."""
    with pytest.raises(ValueError, match=f"field '{name}' cannot be read: {reason}.*qpos, qvel"):
        field_specs(model, ("qpos", name))


def test_a_field_is_declared_once(model: mujoco.MjModel) -> None:
    """The same field twice is an error; a field and its delta are two."""
    with pytest.raises(ValueError, match="'qpos' is declared twice"):
        field_specs(model, ("qpos", "qvel", "qpos"))
    assert [spec.key for spec in field_specs(model, ("xpos", delta("xpos")))] == ["xpos", "delta:xpos"]


@pytest.mark.parametrize("cause", ["qvel", "kick", "ctrl"])
def test_an_unstable_env_is_flagged_and_leaves_the_others_alone(
    model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cause: str
) -> None:
    """Numbers that break in one env are flagged; the others go on bit for bit, and no log file is written."""
    monkeypatch.chdir(tmp_path)
    results = []
    for is_broken in (False, True):
        rng = np.random.default_rng(4)
        backend, qpos, qvel = backend_of(model), *starts(model, rng)
        if is_broken and cause == "qvel":
            qvel[1] = 1e12
        backend.reset(np.arange(NUM_ENVS), qpos, qvel, {})
        flagged, states = np.zeros(NUM_ENVS, bool), []
        for t in range(6):
            controls = random_controls(model, rng)
            if is_broken and t == 2 and cause in ("kick", "ctrl"):
                controls["qvel_kick" if cause == "kick" else "ctrl"][1] = np.nan
            flagged |= backend.step(controls)
            states.append((backend.rows.state[[0, 2]].copy(), backend.rows.fields[[0, 2]].copy()))
        backend.reset(np.array([1]), *starts(model, rng, 1), {})
        assert not backend.step(random_controls(model, rng)).any()  # the restarted env is well again
        states.append((backend.rows.state.copy(), backend.rows.fields.copy()))
        results.append((flagged, states))
    (calm, expected), (broken, found) = results
    assert not calm.any()
    assert broken.tolist() == [False, True, False]
    for one, other in zip(expected, found, strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.tobytes() == y.tobytes()
    assert not list(tmp_path.iterdir())


def test_contact_forces_come_from_rne_post_constraint(model: mujoco.MjModel) -> None:
    """cfrc_ext and cacc are those of mj_rnePostConstraint after the last physics step, and after a reset."""
    rng = np.random.default_rng(5)
    backend, qpos, qvel = backend_of(model, ("cfrc_ext", "cacc")), *starts(model, rng)
    qpos[:, 2] = 0.09  # the box touches the floor
    backend.reset(np.arange(NUM_ENVS), qpos, qvel, {})
    env = Separate(model, {})
    env.reset(qpos[1], qvel[1])
    for t in range(4):
        mujoco.mj_rnePostConstraint(model, env.data)
        for name in ("cfrc_ext", "cacc"):
            np.testing.assert_array_equal(field(backend, name)[1], getattr(env.data, name).astype(np.float32), str(t))
        assert np.abs(env.data.cfrc_ext).max() > 1.0
        controls = random_controls(model, rng)
        backend.step(controls)
        env.step({name: value[1] for name, value in controls.items()})


def test_what_randomisation_leaves_alone_keeps_its_exact_value(model: mujoco.MjModel) -> None:
    """Entries that come back as the rounded nominal value keep the float64 nominal one, and so does what follows."""
    backend = backend_of(model, randomised=("body_mass", "geom_friction"))
    changes = {name: np.tile(getattr(model, name).astype(np.float32), (NUM_ENVS, *[1] * getattr(model, name).ndim))
               for name in ("body_mass", "geom_friction")}  # fmt: skip
    changes["body_mass"][1, 1] = 2.0
    backend.reset(np.arange(NUM_ENVS), *starts(model, np.random.default_rng(0)), changes)
    nominal = Separate(model, {"body_mass": model.body_mass}).model
    first, second = (model_of(backend, env) for env in (0, 1))
    for name in ("body_mass", "geom_friction", "body_subtreemass", "body_invweight0", "dof_M0", "tendon_invweight0"):
        np.testing.assert_array_equal(getattr(first, name), getattr(nominal, name), name)
    assert model.body_mass[1] != np.float32(model.body_mass[1])
    assert second.body_mass.tolist() == [*model.body_mass[:1], 2.0, *model.body_mass[2:]]
    assert model.body_mass[1] == 1.1  # the caller's model is never touched


def test_another_randomisation_starts_from_the_nominal_values(model: mujoco.MjModel) -> None:
    """Fields of an episode depend on its own values alone, not on those of the episodes before it."""
    rng = np.random.default_rng(6)
    first, second = random_model_fields(model, rng), random_model_fields(model, rng)
    qpos, qvel = starts(model, rng)
    rows = []
    for sequence in ((first, second), (second,)):
        backend = backend_of(model, randomised=tuple(first))
        for changes in sequence:
            backend.reset(np.arange(NUM_ENVS), qpos, qvel, changes)
        rows.append(backend.rows.model.tobytes())
    assert rows[0] == rows[1]
