"""A Unitree Go1 follows velocity commands on flat ground."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from unilab.envs.rewards import tracking
from unilab.envs.task import Mirror, Physics, Task

LEGS = ("FR", "FL", "RR", "RL")
HOME = np.tile(np.array([0.0, 0.9, -1.8], np.float32), 4)  # joint angles of the standing pose [rad]
HOME_HEIGHT = 0.278  # of the trunk above the floor in that pose [m]
WANTED_HEIGHT = 0.27  # of the trunk while walking [m]
SOLVER_OPTIONS = (
    "integrator", "cone", "solver", "iterations", "ls_iterations", "tolerance", "ls_tolerance", "impratio",
    "disableflags",
)  # fmt: skip
FOOT_RADIUS = 0.023  # [m]
TRUNK, LAST_FOOT = 1, -1  # numbers of a body and of a geom, the same in the coarse and the fine model
LEG_PHASE = np.array([0.0, np.pi, np.pi, 0.0], np.float32)  # trot: diagonal legs swing together
COMMAND_LIMITS = np.array([1.5, 0.8, 1.2], np.float32)  # |vx|, |vy| [m/s], |yaw rate| [rad/s]
RAMP_S = 1.0  # time in which the target goes from one end of the commands to the other [s]
SAFE_KNEE_HEIGHT = 0.08  # [m]
COMMAND_DRAWS = 5  # uniform numbers behind a command: its values, whether it is zero, and for how long it holds

MIRRORED_LEGS = [1, 0, 3, 2]
JOINT_MIRROR = Mirror.of([-1, 1, 1] * 4, [3 * leg + j for leg in MIRRORED_LEGS for j in range(3)])


class Go1State(NamedTuple):
    """What the task remembers between control steps."""

    command: jax.Array
    """vx, vy [m/s] in the body's frame, and yaw rate [rad/s]."""
    target: jax.Array
    """The command as it is to be followed: a change is spread over up to a second, so that no foot has to slip."""
    command_age: jax.Array
    """Env steps since the command was drawn, int32."""
    command_steps: jax.Array
    """Env steps for which the command holds, int32."""
    phase: jax.Array
    """Phase of the gait [rad]."""
    last_action: jax.Array
    kick: jax.Array
    """Change of the trunk's horizontal velocity before the next control step [2], m/s."""
    joint_offset: jax.Array
    """Error of the joint encoders in this episode [12], rad."""
    friction: jax.Array
    foot_pos: jax.Array
    """Feet in the world after the last control step [4, 3], m."""


OFF_POLICY = {
    "steps": 3_000_000, "num_envs": 512, "eval_every": 500_000, "algo.rollout_steps": 4,
    "algo.replay_steps": 262_144, "algo.warm_up_steps": 10_240, "algo.updates_per_env_step": 1 / 64,
    "algo.batch_size": 512, "algo.n_step": 3, "algo.discount": 0.97, "algo.polyak": 0.02,
    "algo.learning_rate": 3e-4, "algo.critic_learning_rate": 5e-4,
    "algo.critic_atoms": 101, "algo.value_range": (-6.0, 4.0),
    "algo.actor_hidden": (256, 128), "algo.critic_hidden": (256, 256), "algo.activation": "elu",
    "algo.layer_norm": True, "algo.mirror": "networks", "algo.normalize_obs": True,
}  # fmt: skip
"""What SAC and TD3 share."""


@dataclass(frozen=True)
class Go1JoystickFlat(Task):
    """A Unitree Go1 follows velocity commands on flat ground.

    Actions are offsets of the joint targets from the standing pose, tracked by position motors (Kp 35, Kd 0.5). The
    actor sees what the robot has; the critic sees the same without noise, and contacts, heights and friction.

    Attributes:
        physics_dt: physics step while training [s].
        action_scale: joint target per unit of action [rad].
        gait_hz: steps per second and leg.
        swing_height: height of a foot in the middle of its swing [m].
        command_s: shortest and longest time for which a command holds [s].
        zero_command_share: share of commands that ask to stand still.
        randomisation: vary friction, mass, motor gains and joint offsets from episode to episode.
        friction: range of the feet's friction; its middle without randomisation.
        mass_scale: largest relative change of the trunk's mass.
        gain_scale: largest relative change of each motor's Kp and Kd.
        joint_offset: largest error of a joint encoder [rad].
        pushes: kick the trunk now and then.
        push_every_s: mean time between two pushes [s].
        push_speed: largest change of the trunk's velocity by a push [m/s].
        largest_offset: largest offset of a joint target for bounded policies [rad], if its range allows as much.
        noise: add noise to what the actor sees.
    """

    control_dt: float = 0.02
    episode_s: float = 10.0
    rewards: dict[str, float] = field(
        default_factory=lambda: {
            "tracking_lin_vel": 1.75,
            "tracking_yaw_rate": 1.25,
            "lin_vel_error": -0.9,
            "yaw_rate_error": -0.5,
            "lin_vel_z": -1.0,
            "ang_vel_xy": -0.05,
            "orientation": -2.0,
            "base_height": -100.0,
            "low_knee": -1.0,
            "torque": -2e-4,
            "action_rate": -0.01,
            "pose": -0.05,
            "gait": 0.5,
            "swing_height": -0.8,
            "slip": -0.05,
            "fall": -15.0,
        }
    )
    physics_dt: float = 0.01
    action_scale: float = 0.3
    gait_hz: float = 2.5
    swing_height: float = 0.08
    command_s: tuple[float, float] = (3.0, 6.0)
    zero_command_share: float = 0.15
    randomisation: bool = True
    friction: tuple[float, float] = (0.4, 1.0)
    mass_scale: float = 0.1
    gain_scale: float = 0.1
    joint_offset: float = 0.02
    pushes: bool = True
    push_every_s: float = 5.0
    push_speed: float = 0.5
    largest_offset: float = 0.9
    noise: bool = True

    fields: ClassVar = ("qpos", "qvel", "sensordata", "actuator_force")
    termination_metric: ClassVar = "fall_rate"
    train_defaults: ClassVar = {
        "ppo": {"steps": 8_000_000, "num_envs": 512, "eval_every": 2_000_000, "algo.entropy_weight": 0.002},
        "sac": OFF_POLICY | {"algo.critic_reduction": "mean", "algo.init_temperature": 1e-3, "algo.init_std": 0.17},
        "td3": OFF_POLICY | {
            "algo.exploration_std": (0.1, 0.6), "algo.target_noise": 0.2, "algo.target_noise_clip": 0.5,
        },
    }  # fmt: skip

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        """The Go1 on a plane; `fine` has 2 ms steps, MuJoCo's default options and every collision geom."""
        spec = mujoco.MjSpec.from_file(str(Path(__file__).with_name("go1.xml")))
        bodies = [geom for geom in spec.geoms if geom.classname.name == "collision"]
        if fine:
            default = mujoco.MjSpec().option
            for name in SOLVER_OPTIONS:
                setattr(spec.option, name, getattr(default, name))
            for geom in bodies:
                geom.contype = geom.conaffinity = 1
        else:
            for geom in bodies:  # nothing touches them: only the feet collide
                spec.delete(geom)
        spec.option.timestep = 0.002 if fine else self.physics_dt
        return spec

    def randomise(self, key: jax.Array, nominal: Any) -> dict[str, jax.Array]:
        if not self.randomisation:
            return {}
        friction_key, mass_key, gain_key = jax.random.split(key, 3)
        is_foot = nominal.geom_priority > 0  # by number, feet differ between the coarse and the fine model
        friction = jax.random.uniform(friction_key, minval=self.friction[0], maxval=self.friction[1])
        sliding = jnp.where(is_foot, friction, nominal.geom_friction[:, 0])
        fields = {"geom_friction": nominal.geom_friction.at[:, 0].set(sliding)}
        if self.mass_scale > 0:
            scale = 1.0 + self.mass_scale * jax.random.uniform(mass_key, minval=-1.0)
            fields["body_mass"] = nominal.body_mass.at[TRUNK].multiply(scale)
            fields["body_inertia"] = nominal.body_inertia.at[TRUNK].multiply(scale)
        if self.gain_scale > 0:
            scales = 1.0 + self.gain_scale * jax.random.uniform(gain_key, (12,), minval=-1.0)
            fields["actuator_gainprm"] = nominal.actuator_gainprm * scales[:, None]
            fields["actuator_biasprm"] = nominal.actuator_biasprm * scales[:, None]
        return fields

    def reset(
        self, key: jax.Array, curriculum: Any, randomised: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, Go1State]:
        # One draw for everything: on a CPU a call of the generator costs more than the numbers that it makes.
        yaw, phase, command, joints, velocity, offset = _split(
            jax.random.uniform(key, (1 + 1 + COMMAND_DRAWS + 12 + 6 + 12,)), 1, 1, COMMAND_DRAWS, 12, 6, 12
        )
        half_yaw = jnp.pi * (yaw[0] - 0.5)
        trunk = jnp.stack([0.0, 0.0, HOME_HEIGHT + 0.02, jnp.cos(half_yaw), 0.0, 0.0, jnp.sin(half_yaw)])
        qvel = jnp.zeros(18).at[:6].set(0.4 * velocity - 0.2)
        command, command_steps = self._make_command(command)
        middle = jnp.float32(sum(self.friction) / 2)
        state = Go1State(
            command=command,
            target=jnp.zeros(3),
            command_age=jnp.int32(0),
            command_steps=command_steps,
            phase=2 * jnp.pi * phase[0],
            last_action=jnp.zeros(12),
            kick=jnp.zeros(2),
            joint_offset=self.joint_offset * (2.0 * offset - 1.0) * float(self.randomisation),
            friction=randomised["geom_friction"][LAST_FOOT, 0] if randomised else middle,
            foot_pos=jnp.zeros((4, 3)),
        )
        return jnp.concatenate([trunk, HOME + 0.2 * joints - 0.1]), qvel, state

    def control(self, state: Go1State, action: jax.Array) -> dict[str, jax.Array]:
        controls = {"ctrl": jnp.asarray(HOME) + self.action_scale * action - state.joint_offset}
        if self.pushes:
            controls["qvel_kick"] = jnp.zeros(18).at[:2].set(state.kick)
        return controls

    def advance(
        self, state: Go1State, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any
    ) -> tuple[Go1State, dict[str, jax.Array], jax.Array, dict[str, Any]]:
        up, velocity, yaw_rate = _up(physics), _body_velocity(physics), physics.qvel[5]
        height, foot_pos, contact = physics.qpos[2], _foot_pos(physics), _contact(physics)
        knee_height = _knee_height(physics)
        fallen = (up[2] < 0.5) | (height < 0.14) | (jnp.min(knee_height) < 0.02)

        is_stepping = self._is_stepping(state)
        swing = jnp.sin(state.phase + LEG_PHASE) * is_stepping  # > 0: the foot should be in the air
        is_swing = swing > 0.0
        wanted_height = FOOT_RADIUS + self.swing_height * swing
        height_error = jnp.where(is_swing, (foot_pos[:, 2] - wanted_height) / self.swing_height, 0.0)
        foot_speed = jnp.linalg.norm(foot_pos[:, :2] - state.foot_pos[:, :2], axis=-1) / self.control_dt
        foot_speed = jnp.where(state.command_age > 0, foot_speed, 0.0)  # no earlier position right after a reset
        lin_error, yaw_error = state.target[:2] - velocity[:2], state.target[2] - yaw_rate
        terms = {
            "tracking_lin_vel": tracking(lin_error, 0.25),
            "tracking_yaw_rate": tracking(yaw_error, 0.25),
            "lin_vel_error": jnp.linalg.norm(lin_error),
            "yaw_rate_error": jnp.abs(yaw_error),
            "lin_vel_z": jnp.square(velocity[2]),
            "ang_vel_xy": jnp.sum(jnp.square(physics.qvel[3:5])),
            "orientation": jnp.sum(jnp.square(up[:2])),
            "base_height": jnp.square(height - WANTED_HEIGHT),
            "low_knee": jnp.sum(jnp.maximum(1.0 - knee_height / SAFE_KNEE_HEIGHT, 0.0)),
            "torque": jnp.sum(jnp.square(physics.actuator_force)),
            "action_rate": jnp.sum(jnp.square(action - state.last_action)),
            "pose": jnp.sum(jnp.square(physics.qpos[7:] - HOME)) * jnp.where(is_stepping > 0, 1.0, 10.0),
            "gait": jnp.mean((contact != is_swing).astype(jnp.float32)),
            "swing_height": jnp.sum(jnp.square(height_error)),
            "slip": jnp.sum(jnp.square(foot_speed) * contact),
            "fall": fallen.astype(jnp.float32) / self.control_dt,
        }
        terms = {name: value * self.control_dt for name, value in terms.items()}

        # The first second of a command is the time to get there; it does not count as error.
        counts = (state.command_age * self.control_dt >= 1.0).astype(jnp.float32)
        lin_miss, yaw_miss = state.command[:2] - velocity[:2], state.command[2] - yaw_rate
        metrics = {
            "lin_vel_error": (jnp.linalg.norm(lin_miss), counts),
            "ang_vel_error": (jnp.abs(yaw_miss), counts),
            "tracking_lin": tracking(lin_miss, 0.25),
            "tracking_yaw": tracking(yaw_miss, 0.25),
        }
        return self._next_state(state, action, foot_pos, key), terms, fallen, metrics

    def _next_state(self, state: Go1State, action: jax.Array, foot_pos: jax.Array, key: jax.Array) -> Go1State:
        draws, push, angle, speed = _split(jax.random.uniform(key, (COMMAND_DRAWS + 3,)), COMMAND_DRAWS, 1, 1, 1)
        command, command_steps = self._make_command(draws)
        largest_change = 2.0 * COMMAND_LIMITS * self.control_dt / RAMP_S
        is_over = state.command_age + 1 >= state.command_steps
        is_pushed = push[0] < self.control_dt / self.push_every_s
        angle = 2 * jnp.pi * angle[0]
        kick = self.push_speed * speed * jnp.stack([jnp.cos(angle), jnp.sin(angle)]) * is_pushed * float(self.pushes)
        return state._replace(
            command=jnp.where(is_over, command, state.command),
            target=state.target + jnp.clip(state.command - state.target, -largest_change, largest_change),
            command_age=jnp.where(is_over, 0, state.command_age + 1),
            command_steps=jnp.where(is_over, command_steps, state.command_steps),
            phase=jnp.mod(state.phase + 2 * jnp.pi * self.gait_hz * self.control_dt, 2 * jnp.pi),
            last_action=action,
            kick=kick,
            foot_pos=foot_pos,
        )

    def _is_stepping(self, state: Go1State) -> jax.Array:
        """1 while the gait goes on: under a command to move, and in the first second of one to stand still."""
        is_slowing = state.command_age * self.control_dt < RAMP_S
        return ((jnp.linalg.norm(state.command) > 0.1) | is_slowing).astype(jnp.float32)

    def _make_command(self, draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A command [3], and the env steps for which it holds, from uniform numbers [COMMAND_DRAWS]."""
        values, zero, time = _split(draws, 3, 1, 1)
        command = jnp.where(zero[0] < self.zero_command_share, 0.0, COMMAND_LIMITS * (2.0 * values - 1.0))
        shortest, longest = (s / self.control_dt for s in self.command_s)
        return command, jnp.round(shortest + (longest - shortest) * time[0]).astype(jnp.int32)

    def observe(self, state: Go1State, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        is_stepping = self._is_stepping(state)
        measured = jnp.concatenate([
            physics.qvel[3:6],
            _up(physics),
            _body_velocity(physics),
            physics.qpos[7:] - HOME + state.joint_offset,
            physics.qvel[6:],
        ])  # fmt: skip
        known = jnp.concatenate([
            state.last_action,
            state.command,
            state.target,
            jnp.stack([jnp.cos(state.phase), jnp.sin(state.phase)]) * is_stepping,
        ])  # fmt: skip
        hidden = jnp.concatenate([
            physics.qpos[2:3], state.friction[None], _contact(physics), _foot_pos(physics)[:, 2], state.kick,
        ])  # fmt: skip
        noisy = measured
        if self.noise:
            noisy = measured + NOISE * jax.random.uniform(key, (len(NOISE),), minval=-1.0)
        return {"actor": jnp.concatenate([noisy, known]), "critic": jnp.concatenate([measured, known, hidden])}

    def caption(self, state: Go1State) -> str:
        """The command, for the picture of a video."""
        vx, vy, yaw_rate = (float(x) for x in state.command)
        return f"command {vx:+.1f} m/s forward, {vy:+.1f} m/s left, {yaw_rate:+.1f} rad/s"

    def action_bounds(self, model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
        """Offsets to the farther end of each joint's range, at most `largest_offset` over `action_scale`; symmetric, so
        that the middle is the standing pose and left and right are mirror images."""
        low, high = model.actuator_ctrlrange.T
        offset = np.minimum(np.maximum(high - HOME, HOME - low), self.largest_offset)
        bound = (offset / self.action_scale).astype(np.float32)
        return -bound, bound

    def mirror(self) -> dict[str, Mirror]:
        measured = [Mirror.of([-1, 1, -1]), Mirror.of([1, -1, 1]), Mirror.of([1, -1, 1]), JOINT_MIRROR, JOINT_MIRROR]
        known = [
            JOINT_MIRROR,
            Mirror.of([1, -1, -1]),
            Mirror.of([1, -1, -1]),
            Mirror.of([-1, -1]),
        ]  # half a gait cycle exchanges the sides
        legs = Mirror.of([1, 1, 1, 1], MIRRORED_LEGS)
        hidden = [Mirror.of([1, 1]), legs, legs, Mirror.of([1, -1])]
        return {
            "actor": Mirror.concatenate(*measured, *known),
            "critic": Mirror.concatenate(*measured, *known, *hidden),
            "action": JOINT_MIRROR,
        }


# Half-widths of the uniform noise on gyro [rad/s], gravity, velocity estimate [m/s], joint angles [rad] and joint
# velocities [rad/s].
NOISE = np.array([0.2] * 3 + [0.05] * 3 + [0.1] * 3 + [0.03] * 12 + [0.5] * 12, np.float32)


def _split(x: jax.Array, *sizes: int) -> list[jax.Array]:
    """Parts of a vector, of the given sizes."""
    return jnp.split(x, np.cumsum(sizes)[:-1])


def _to_body(quat: jax.Array, vector: jax.Array) -> jax.Array:
    """A world vector in the frame of a body with orientation `quat` (w, x, y, z)."""
    w, xyz = quat[0], -quat[1:]
    return vector + 2.0 * jnp.cross(xyz, jnp.cross(xyz, vector) + w * vector)


def _up(physics: Physics) -> jax.Array:
    """The world's up direction in the trunk's frame [3]: (0, 0, 1) when level."""
    return _to_body(physics.qpos[3:7], jnp.array([0.0, 0.0, 1.0]))


def _body_velocity(physics: Physics) -> jax.Array:
    """Linear velocity of the trunk in its own frame [3], m/s."""
    return _to_body(physics.qpos[3:7], physics.qvel[:3])


def _contact(physics: Physics) -> jax.Array:
    """Which feet press on the floor with more than a newton [4]."""
    return jnp.concatenate([physics.sensor(f"{leg}_contact") for leg in LEGS]) > 1.0


def _foot_pos(physics: Physics) -> jax.Array:
    """Feet in the world [4, 3], m."""
    return jnp.stack([physics.sensor(f"{leg}_pos") for leg in LEGS])


def _knee_height(physics: Physics) -> jax.Array:
    """Height of the knees above the floor [4], m."""
    return jnp.stack([physics.sensor(f"{leg}_knee_pos")[2] for leg in LEGS])
