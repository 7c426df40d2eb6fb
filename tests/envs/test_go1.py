from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from unilab.envs.env import Env
from unilab.envs.physics.base import PhysicsRows
from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.envs.task import Delta, Mirror, ModelNames, Physics
from unilab.envs.tasks.go1_joystick import Go1JoystickFlat, Go1State

TASK = Go1JoystickFlat()
CALM = Go1JoystickFlat(randomisation=False, pushes=False, noise=False)
PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "go1.json").read_text())
LEGS = ("FR", "FL", "RR", "RL")
HOME = np.tile([0.0, 0.9, -1.8], 4)
KEYS = jax.random.split(jax.random.key(0), 2000)
SIGN = {"pos": [1, -1, 1], "spin": [-1, 1, -1], "quat": [1, -1, 1, -1]}
JOINTS = Mirror.of([-1, 1, 1] * 4, [3 * leg + joint for leg in (1, 0, 3, 2) for joint in range(3)])


@pytest.fixture(scope="module", params=["coarse", "fine"])
def model(request: pytest.FixtureRequest) -> mujoco.MjModel:
    return TASK.model(fine=request.param == "fine").compile()


@pytest.fixture(scope="module")
def coarse() -> mujoco.MjModel:
    return TASK.model().compile()


@pytest.fixture(scope="module")
def nominal(coarse: mujoco.MjModel) -> Any:
    """Nominal model fields as a task sees them."""

    class Nominal:
        def __getattr__(self, name: str) -> jax.Array:
            return jnp.asarray(getattr(coarse, name), jnp.float32)

    return Nominal()


@pytest.fixture(scope="module")
def resets(nominal: Any) -> tuple[jax.Array, jax.Array, Go1State, dict[str, jax.Array]]:
    """Many resets: qpos, qvel, state, randomised fields [2000, ...]."""

    def reset(key: jax.Array) -> Any:
        randomised = TASK.randomise(jax.random.fold_in(key, 1), nominal)
        return *TASK.reset(key, {}, randomised), randomised

    return jax.jit(jax.vmap(reset))(KEYS)


def physics_of(model: mujoco.MjModel, data: mujoco.MjData) -> Physics:
    """What the task would see of this MjData."""
    names = [f for f in TASK.fields if not isinstance(f, Delta)]
    return Physics({n: jnp.asarray(getattr(data, n), jnp.float32) for n in names}, ModelNames.of(model))


def calm_state(**changes: Any) -> Go1State:
    """The state after a reset without randomisation, with some parts replaced."""
    return CALM.reset(jax.random.key(0), {}, {})[2]._replace(**changes)


advance = jax.jit(lambda state, physics, action, key: CALM.advance(state, physics, action, key, {}))
observe = jax.jit(lambda state, physics: CALM.observe(state, physics, jax.random.key(0)))


# --- the robot, against the published figures -----------------------------------------------------------------------


def test_total_mass_is_published(model: mujoco.MjModel) -> None:
    """The robot weighs what the published model weighs."""
    assert model.body_mass.sum() == pytest.approx(PUBLISHED["total_mass"], abs=1e-9)
    assert model.nbody == 1 + len(PUBLISHED["bodies"])


@pytest.mark.parametrize("body", PUBLISHED["bodies"], ids=lambda body: body["name"])
def test_links_are_published(model: mujoco.MjModel, body: dict[str, Any]) -> None:
    """Each link has the published parent, frame, mass, centre of mass and inertia."""
    found = model.body(body["name"])
    assert model.body(found.parentid[0]).name == body["parent"]
    for name, value in (("pos", found.pos), ("mass", found.mass[0]), ("com", found.ipos), ("inertia", found.inertia)):
        np.testing.assert_allclose(value, body[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert_same_rotation(found.quat, body["quat"])
    assert_same_rotation(found.iquat, body["iquat"])


@pytest.mark.parametrize("joint", PUBLISHED["joints"], ids=lambda joint: joint["name"])
def test_joints_are_published(model: mujoco.MjModel, joint: dict[str, Any]) -> None:
    """Each joint has the published body, type, axis, position and range."""
    found = model.joint(joint["name"])
    assert model.body(found.bodyid[0]).name == joint["body"]
    assert found.type[0] == getattr(mujoco.mjtJoint, f"mjJNT_{joint['type'].upper()}")
    np.testing.assert_allclose(found.axis, joint["axis"], atol=1e-9)
    np.testing.assert_allclose(found.pos, joint["pos"], atol=1e-9)
    if joint["range"] is None:
        assert not model.jnt_limited[found.id]
    else:
        assert model.jnt_limited[found.id]
        np.testing.assert_allclose(found.range, joint["range"], atol=1e-6)


def test_sites_are_published(model: mujoco.MjModel) -> None:
    """Each published site is there, on its body and at its place."""
    for site in PUBLISHED["sites"]:
        found = model.site(site["name"])
        assert model.body(found.bodyid[0]).name == site["body"]
        np.testing.assert_allclose(found.pos, site["pos"], atol=1e-9)


def test_collision_geoms_are_published(model: mujoco.MjModel) -> None:
    """The fine model has the published collision geoms and the floor; the coarse one only the feet's and the floor."""
    is_fine = model.opt.timestep < 0.005
    names = {g["name"] for g in PUBLISHED["collision_geoms"]}
    feet = {f"{leg}_foot_collision" for leg in LEGS}
    assert feet < names
    colliding = {model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]}
    assert colliding == (names if is_fine else feet) | {"floor"}
    for geom in PUBLISHED["collision_geoms"]:
        if geom["name"] not in colliding:
            continue
        found = model.geom(geom["name"])
        used = {"sphere": 1, "capsule": 2}.get(geom["type"], 3)  # sizes that the type has
        assert model.body(found.bodyid[0]).name == geom["body"]
        assert found.type[0] == getattr(mujoco.mjtGeom, f"mjGEOM_{geom['type'].upper()}")
        np.testing.assert_allclose(found.size[:used], geom["size"][:used], rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(found.pos, geom["pos"], atol=1e-9)
        if geom["type"] != "sphere":
            assert_same_rotation(found.quat, geom["quat"])


def assert_same_rotation(quat: Any, published: Any) -> None:
    """Quaternions are given with seven digits, and q and -q are one rotation."""
    a, b = (np.asarray(q) / np.linalg.norm(q) for q in (quat, published))
    assert abs(a @ b) == pytest.approx(1.0, abs=1e-10)


def test_the_fine_model_has_mujocos_own_options() -> None:
    """The fine model's solver is MuJoCo's default, with 2 ms steps."""
    option, default = TASK.model(fine=True).compile().opt, mujoco.MjModel.from_xml_string("<mujoco/>").opt
    assert option.timestep == 0.002
    for name in (
        "integrator",
        "cone",
        "solver",
        "iterations",
        "ls_iterations",
        "tolerance",
        "impratio",
        "disableflags",
    ):
        assert getattr(option, name) == getattr(default, name), name


# --- physics --------------------------------------------------------------------------------------------------------


def stand(model: mujoco.MjModel, seconds: float) -> mujoco.MjData:
    """The robot after standing in the home pose."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    np.testing.assert_array_equal(data.qpos[7:], HOME)
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)
    return data


def test_the_home_pose_stands(model: mujoco.MjModel) -> None:
    """With the home pose as target the robot stands for 2 s: not terminated, hardly moving, on four feet."""
    data = stand(model, 2.0)
    _, terms, terminated, _ = advance(calm_state(), physics_of(model, data), jnp.zeros(12), jax.random.key(0))
    assert not terminated
    assert terms["fall"] == 0
    assert data.qpos[2] == pytest.approx(0.27, abs=0.02)
    assert np.abs(data.qvel).max() < 0.05
    assert {model.geom(g).name for g in data.contact.geom[:, 1]} == {f"{leg}_foot_collision" for leg in LEGS}


@pytest.mark.parametrize("attitude", ["on its back", "on its side", "on its belly"])
def test_a_fallen_robot_terminates(coarse: mujoco.MjModel, attitude: str) -> None:
    """Lying on the back, the side or the belly ends the episode, and is what the reward term "fall" counts."""
    data = mujoco.MjData(coarse)
    mujoco.mj_resetDataKeyframe(coarse, data, 0)
    angle = {"on its back": np.pi, "on its side": np.pi / 2, "on its belly": 0.0}[attitude]
    data.qpos[2:7] = [0.1, np.cos(angle / 2), np.sin(angle / 2), 0, 0]
    mujoco.mj_forward(coarse, data)
    _, terms, terminated, _ = advance(calm_state(), physics_of(coarse, data), jnp.zeros(12), jax.random.key(0))
    assert terminated
    assert terms["fall"] > 0


@pytest.mark.parametrize("fine", [False, True])
def test_a_foots_friction_is_its_own_randomised_value(fine: bool) -> None:
    """A robot whose episode drew a friction of 0.4 touches the floor with 0.4, not with the floor's larger value."""
    env = Env(dataclasses.replace(TASK, friction=(0.4, 0.4)), fine)
    backend = MujocoPhysics(env.demands, 1)
    sizes = (backend.state_size, backend.model_size, backend.last_size)
    backend.attach(PhysicsRows(*(np.zeros((1, n)) for n in sizes), np.zeros((1, backend.field_size), np.float32)))
    qpos, qvel, randomised, state = env.begin(jax.random.key(0), jnp.int32(0), jnp.int32(0), {})
    backend.reset(
        np.array([0]),
        np.asarray(qpos)[None],
        np.asarray(qvel)[None],
        {k: np.asarray(v)[None] for k, v in randomised.items()},
    )
    backend.step({"ctrl": HOME[None]})
    for _ in range(20):
        backend.step({"ctrl": HOME[None]})
    contacts = backend.data.contact
    assert len(contacts) >= 3
    np.testing.assert_allclose(contacts.friction[:, :2], 0.4, rtol=1e-6)
    assert state.friction == pytest.approx(0.4)


def mirrored_data(model: mujoco.MjModel, data: mujoco.MjData) -> mujoco.MjData:
    """The mirror image of a robot in its vertical plane."""
    image = mujoco.MjData(model)
    image.qpos[:] = np.concatenate([SIGN["pos"] * data.qpos[:3], SIGN["quat"] * data.qpos[3:7], JOINTS(data.qpos[7:])])
    image.qvel[:] = np.concatenate([SIGN["pos"] * data.qvel[:3], SIGN["spin"] * data.qvel[3:6], JOINTS(data.qvel[6:])])
    return image


def mirrored_state(state: Go1State) -> Go1State:
    """The mirror image of the task's state: half a gait cycle exchanges the sides."""
    return state._replace(
        command=state.command * jnp.array([1, -1, -1]),
        target=state.target * jnp.array([1, -1, -1]),
        phase=state.phase + jnp.pi,
        last_action=JOINTS(state.last_action),
        kick=state.kick * jnp.array([1, -1]),
        joint_offset=JOINTS(state.joint_offset),
        foot_pos=state.foot_pos[jnp.array([1, 0, 3, 2])] * jnp.array([1, -1, 1]),
    )


def test_a_mirrored_robot_behaves_like_the_mirror_image(coarse: mujoco.MjModel) -> None:
    """Mirrored state and action give the mirrored next observation through physics, and the same reward terms.

    The published trunk and calves are not quite symmetric (their centres of mass are 1 to 2 mm off), so here they are
    made so; what is left is the rounding of the published figures.
    """
    coarse = copy.copy(coarse)
    for name in ("trunk", *(f"{leg}_calf" for leg in LEGS)):
        coarse.body(name).ipos[1], coarse.body(name).iquat[:] = 0.0, [1, 0, 0, 0]
    mujoco.mj_setConst(coarse, mujoco.MjData(coarse))
    rng, mirror = np.random.default_rng(0), TASK.mirror()
    for _ in range(4):
        data = mujoco.MjData(coarse)
        data.qpos[:3] = [*rng.uniform(-0.2, 0.2, 2), rng.uniform(0.25, 0.3)]
        data.qpos[3:7] = [1, *rng.uniform(-0.1, 0.1, 3)]
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qpos[7:] = HOME + rng.uniform(-0.2, 0.2, 12)
        data.qvel[:] = rng.uniform(-0.3, 0.3, 18)
        state = calm_state(
            command=jnp.array([0.5, 0.3, -0.4]), target=jnp.array([0.4, 0.1, -0.3]), command_age=jnp.int32(10),
            last_action=jnp.asarray(rng.uniform(-1, 1, 12), jnp.float32),
            foot_pos=jnp.asarray(rng.uniform(-0.2, 0.2, (4, 3)), jnp.float32),
        )  # fmt: skip
        action = jnp.asarray(rng.uniform(-0.5, 0.5, 12), jnp.float32)
        results = []
        for robot, memory, act in (
            (data, state, action),
            (mirrored_data(coarse, data), mirrored_state(state), mirror["action"](action)),
        ):
            robot.ctrl[:] = CALM.control(memory, act)["ctrl"]
            for _ in range(round(CALM.control_dt / coarse.opt.timestep)):
                mujoco.mj_step(coarse, robot)
            physics = physics_of(coarse, robot)
            new_state, terms, _, _ = advance(memory, physics, act, jax.random.key(0))
            results.append((observe(new_state, physics), terms))
        (obs, terms), (image_obs, image_terms) = results
        for group in ("actor", "critic"):
            np.testing.assert_allclose(image_obs[group], mirror[group](obs[group]), rtol=1e-3, atol=1e-3)
        for name in terms:
            np.testing.assert_allclose(image_terms[name], terms[name], rtol=1e-3, atol=1e-4, err_msg=name)


# --- the task -------------------------------------------------------------------------------------------------------


def test_commands_fill_their_range(resets: Any) -> None:
    """Commands are uniform within +-1.5 m/s, +-0.8 m/s and +-1.2 rad/s; the wanted share is exactly zero."""
    command = np.asarray(resets[2].command)
    is_zero = ~command.any(axis=1)
    share = TASK.zero_command_share
    assert abs(is_zero.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(command))
    limits = np.array([1.5, 0.8, 1.2])
    moving = command[~is_zero] / limits
    assert np.abs(moving).max() <= 1.0
    for column in moving.T:
        assert column.max() > 0.98
        assert column.min() < -0.98
        assert abs(column.mean()) < 0.06
        assert column.std() == pytest.approx(1 / np.sqrt(3), abs=0.03)


def test_commands_are_drawn_anew_within_an_episode(coarse: mujoco.MjModel) -> None:
    """A command holds for 3 to 6 s and is then replaced, so that an episode of 10 s sees two to four."""
    physics = physics_of(coarse, stand(coarse, 0.1))

    def step(state: Go1State, key: jax.Array) -> tuple[Go1State, jax.Array]:
        return CALM.advance(state, physics, jnp.zeros(12), key, {})[0], state.command

    def episode(key: jax.Array) -> jax.Array:
        state = CALM.reset(key, {}, {})[2]
        return jax.lax.scan(step, state, jax.random.split(key, CALM.episode_steps))[1]

    for commands in np.asarray(jax.jit(jax.vmap(episode))(KEYS[:20])):
        changes = np.flatnonzero((commands[1:] != commands[:-1]).any(axis=1)) + 1
        held = np.diff([0, *changes]) * CALM.control_dt
        assert 1 <= len(changes) <= 3
        assert held.min() >= 3.0 - 1e-6
        assert held.max() <= 6.0 + 1e-6


def test_randomised_fields_stay_in_their_ranges(resets: Any, coarse: mujoco.MjModel) -> None:
    """Friction, trunk mass and inertia, gains and encoder errors fill their ranges, and nothing else changes."""
    state, randomised = resets[2], {name: np.asarray(value) for name, value in resets[3].items()}
    feet = [coarse.geom(f"{leg}_foot_collision").id for leg in LEGS]
    friction = randomised["geom_friction"][:, feet, 0]
    assert_fills(friction[:, 0], 0.4, 1.0)
    assert (friction == friction[:, :1]).all()
    np.testing.assert_array_equal(state.friction, friction[:, 0])
    trunk = coarse.body("trunk").id
    mass = randomised["body_mass"] / np.maximum(coarse.body_mass, 1e-9)
    assert_fills(mass[:, trunk], 0.9, 1.1)
    np.testing.assert_allclose(
        randomised["body_inertia"][:, trunk] / coarse.body_inertia[trunk], mass[:, [trunk] * 3], rtol=1e-5
    )
    np.testing.assert_allclose(np.delete(mass, [0, trunk], axis=1), 1.0, rtol=1e-6)
    gain, bias = (randomised[f"actuator_{n}prm"] for n in ("gain", "bias"))
    assert_fills(gain[:, :, 0] / coarse.actuator_gainprm[:, 0], 0.9, 1.1)
    np.testing.assert_allclose(bias[:, :, 1], -gain[:, :, 0], rtol=1e-6)  # the spring pulls to the target
    assert_fills(bias[:, :, 2] / coarse.actuator_biasprm[:, 2], 0.9, 1.1)
    assert_fills(np.asarray(state.joint_offset), -0.02, 0.02)
    untouched = np.delete(randomised["geom_friction"], feet, axis=1)
    np.testing.assert_allclose(
        untouched, np.broadcast_to(np.delete(coarse.geom_friction, feet, axis=0), untouched.shape), rtol=1e-6
    )


def assert_fills(values: np.ndarray, low: float, high: float) -> None:
    """All values lie in [low, high], and they come within a fiftieth of both ends."""
    margin = (high - low) / 50
    assert low - 1e-6 <= values.min() < low + margin
    assert high - margin < values.max() <= high + 1e-6


def test_first_poses_stand(resets: Any, coarse: mujoco.MjModel) -> None:
    """Resets put the robot near the home pose above the floor, with any heading, unit quaternions and legal joints."""
    qpos, qvel = (np.asarray(x, np.float64) for x in resets[:2])
    np.testing.assert_allclose(np.linalg.norm(qpos[:, 3:7], axis=1), 1.0, atol=1e-6)
    yaw = 2 * np.arctan2(qpos[:, 6], qpos[:, 3])
    assert np.ptp(np.mod(yaw, 2 * np.pi)) > 6.2
    assert (np.abs(qpos[:, 7:] - HOME) < 0.101).all()
    low, high = coarse.jnt_range[1:].T
    assert ((qpos[:, 7:] > low) & (qpos[:, 7:] < high)).all()
    assert np.abs(qvel).max() < 0.21


def test_switches_switch_off(nominal: Any, coarse: mujoco.MjModel) -> None:
    """Without randomisation, pushes and noise nothing is varied, kicked or blurred."""
    assert CALM.randomise(KEYS[0], nominal) == {}
    state = CALM.reset(KEYS[0], {}, {})[2]
    assert not state.joint_offset.any()
    assert state.friction == pytest.approx(0.7)
    assert set(CALM.control(state, jnp.zeros(12))) == {"ctrl"}
    np.testing.assert_allclose(CALM.control(state, jnp.zeros(12))["ctrl"], HOME, rtol=1e-6)
    physics = physics_of(coarse, stand(coarse, 0.1))
    obs = observe(state, physics)
    np.testing.assert_array_equal(obs["actor"], obs["critic"][: len(obs["actor"])])


def test_noise_blurs_only_what_the_actor_measures(coarse: mujoco.MjModel) -> None:
    """The actor's measurements have centred noise; the rest of what it sees and the critic's view are exact."""
    physics, state = physics_of(coarse, stand(coarse, 0.1)), calm_state()
    noisy = dataclasses.replace(CALM, noise=True)
    obs = jax.jit(jax.vmap(lambda key: noisy.observe(state, physics, key)))(KEYS)
    exact = observe(state, physics)
    np.testing.assert_array_equal(obs["critic"], np.broadcast_to(exact["critic"], obs["critic"].shape))
    error = np.asarray(obs["actor"] - exact["actor"])
    measured = 3 + 3 + 3 + 12 + 12
    assert (error[:, :measured].std(axis=0) > 0.01).all()
    assert (np.abs(error[:, :measured].mean(axis=0)) < 0.1 * error[:, :measured].std(axis=0)).all()
    assert not error[:, measured:].any()


def test_pushes_come_now_and_then(coarse: mujoco.MjModel) -> None:
    """About one control step in 250 kicks the trunk sideways by up to 0.5 m/s; the kick is added to its velocity."""
    physics, state = physics_of(coarse, stand(coarse, 0.1)), calm_state()
    pushing = dataclasses.replace(CALM, pushes=True)
    many = jax.random.split(jax.random.key(1), 20_000)
    kick = np.asarray(
        jax.jit(jax.vmap(lambda key: pushing.advance(state, physics, jnp.zeros(12), key, {})[0].kick))(many)
    )
    speed = np.linalg.norm(kick, axis=1)
    expected = pushing.control_dt / pushing.push_every_s
    assert abs((speed > 0).mean() - expected) < 4 * np.sqrt(expected / len(many))
    assert 0.4 < speed.max() <= 0.5 + 1e-6
    controls = pushing.control(state._replace(kick=jnp.array([0.3, -0.2])), jnp.zeros(12))
    np.testing.assert_allclose(controls["qvel_kick"], [0.3, -0.2] + [0] * 16, rtol=1e-6)


def test_bounded_actions_stay_near_the_joints_ranges(coarse: mujoco.MjModel) -> None:
    """The bounds are symmetric, at most 0.9 rad, and no larger than to the farther end of a joint's range."""
    task = Go1JoystickFlat()
    low, high = task.action_bounds(coarse)
    np.testing.assert_array_equal(low, -high)
    farther = np.abs(coarse.jnt_range[1:] - HOME[:, None]).max(axis=1)
    np.testing.assert_allclose(task.action_scale * high, np.minimum(farther, 0.9), rtol=1e-6)


def test_actions_move_joint_targets(nominal: Any) -> None:
    """A unit of action moves one joint's target by `action_scale`, in the actuators' order."""
    state = calm_state()
    for joint in range(12):
        ctrl = np.asarray(CALM.control(state, jnp.zeros(12).at[joint].set(1.0))["ctrl"])
        np.testing.assert_allclose(ctrl - HOME, np.eye(12)[joint] * CALM.action_scale, atol=1e-6)


def test_early_steps_of_a_command_do_not_count_as_error(coarse: mujoco.MjModel) -> None:
    """Tracking errors count from one second after a command on, and are distances from the body's own velocity."""
    data = stand(coarse, 0.1)
    data.qvel[:6] = [0.0, 0.5, 0.0, 0.0, 0.0, 0.3]
    data.qpos[3:7] = [np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)]  # heads along +y, and so moves forward
    for age, expected in ((10, 0.0), (50, 1.0)):
        state = calm_state(
            command=jnp.array([0.8, 0.0, -0.1]), command_age=jnp.int32(age), command_steps=jnp.int32(300)
        )
        metrics = advance(state, physics_of(coarse, data), jnp.zeros(12), jax.random.key(0))[3]
        assert metrics["lin_vel_error"][0] == pytest.approx(0.3, abs=1e-5)
        assert metrics["ang_vel_error"][0] == pytest.approx(0.4, abs=1e-5)
        assert metrics["lin_vel_error"][1] == metrics["ang_vel_error"][1] == expected
