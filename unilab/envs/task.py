"""The contract of a task: one robot, one environment, pure functions.

A task is a frozen dataclass in one file. Its fields are its configuration (each becomes a flag of the command line);
its methods are pure JAX for *one* env, without a batch axis. The framework vmaps them over the envs of a shard:

    reset    key                              -> qpos, qvel, state         an episode begins
    control  state, action                    -> ctrl, pushes              before the physics of a control step
    advance  state, physics, action           -> state, reward terms, ...  after it
    observe  state, physics                   -> {"actor": ..., "critic": ...}

    reset -> observe -> [ policy -> control -> physics -> advance -> observe ] -> ... -> reset
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import mujoco
import numpy as np

Scalar = jax.Array
Tree = Any  # a pytree of arrays with fixed shapes


@dataclass(frozen=True)
class Delta:
    """A field read as its change over the control step: a float64 difference, rounded to float32 once.

    Positions far from the origin lose their small differences in float32; `delta("xpos")` does not.
    """

    name: str


def delta(name: str) -> Delta:
    """Declare that a task reads the change of the mjData field `name` over each control step (zero after a reset)."""
    return Delta(name)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Physics:
    """What a task sees of the simulation of one env: the fields that it declared, by MuJoCo's names.

    `physics.qpos` [nq], `physics.xpos` [nbody, 3], ... ; `physics.delta("xpos")`; `physics.sensor("gyro")` is a static
    slice of `sensordata`; `physics.row("xpos", "trunk")` one named row of a field.

    After a control step `sensordata`, `xpos` and other derived fields belong to the state *before* the last physics
    step, while `qpos` and `qvel` belong to the state after it (MuJoCo integrates last). Right after a reset all agree.
    """

    fields: Mapping[str, jax.Array]
    names: ModelNames

    def __getattr__(self, name: str) -> jax.Array:
        fields = object.__getattribute__(self, "fields")
        if name.startswith("__") or name not in fields:
            raise AttributeError(f"this task does not read the field {name!r}; it declares {sorted(fields)}")
        return fields[name]

    def delta(self, name: str) -> jax.Array:
        """Change of field `name` over the control step, in the units and shape of the field."""
        return self.__getattr__(f"delta:{name}")

    def sensor(self, name: str) -> jax.Array:
        """Values of the sensor `name` [dim]."""
        return self.sensordata[self.names.sensor(name)]

    def row(self, field_name: str, name: str) -> jax.Array:
        """The row of a body, geom, site or joint field that belongs to the object called `name`."""
        return self.__getattr__(field_name)[self.names.row(field_name, name)]

    def tree_flatten(self) -> tuple[tuple[Mapping[str, jax.Array]], ModelNames]:
        return (dict(self.fields),), self.names

    @classmethod
    def tree_unflatten(cls, names: ModelNames, children: tuple[Mapping[str, jax.Array]]) -> Physics:
        return cls(children[0], names)


@dataclass(frozen=True)
class ModelNames:
    """Names of a compiled model and where their values lie; hashable, so that it can be static under `jit`."""

    sensors: tuple[tuple[str, int, int], ...]
    objects: tuple[tuple[str, tuple[str, ...]], ...]

    OBJECTS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "body": (
            "xpos",
            "xquat",
            "xmat",
            "xipos",
            "ximat",
            "cvel",
            "subtree_com",
            "cfrc_ext",
            "cinert",
            "xfrc_applied",
        ),
        "geom": ("geom_xpos", "geom_xmat"),
        "site": ("site_xpos", "site_xmat"),
        "actuator": ("actuator_force", "actuator_length", "actuator_velocity", "ctrl"),
    }

    @classmethod
    def of(cls, model: mujoco.MjModel) -> ModelNames:
        sensors = tuple(
            (model.sensor(i).name, int(model.sensor_adr[i]), int(model.sensor_adr[i] + model.sensor_dim[i]))
            for i in range(model.nsensor)
        )
        counts = {"body": model.nbody, "geom": model.ngeom, "site": model.nsite, "actuator": model.nu}
        objects = tuple((kind, tuple(getattr(model, kind)(i).name for i in range(n))) for kind, n in counts.items())
        return cls(sensors, objects)

    def sensor(self, name: str) -> slice:
        for sensor, start, stop in self.sensors:
            if sensor == name:
                return slice(start, stop)
        raise KeyError(f"no sensor {name!r} in the model; it has {[s[0] for s in self.sensors]}")

    def row(self, field_name: str, name: str) -> int:
        for kind, names in self.objects:
            if field_name in self.OBJECTS[kind]:
                if name in names:
                    return names.index(name)
                raise KeyError(f"no {kind} {name!r} in the model; it has {list(names)}")
        raise KeyError(
            f"rows of {field_name!r} have no names; allowed: {[f for v in self.OBJECTS.values() for f in v]}"
        )


@dataclass(frozen=True)
class Mirror:
    """Left-right symmetry of a vector: its mirror image is `sign * x[perm]`.

    Attributes:
        perm: index of the entry that each entry is exchanged with [n].
        sign: +1 or -1 for each entry [n].
    """

    perm: np.ndarray
    sign: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.perm)
        if self.sign.shape != (n,) or not np.array_equal(self.perm[self.perm], np.arange(n)):
            raise ValueError(f"a mirror exchanges entries pairwise: perm {self.perm.tolist()} is not its own inverse")
        if not np.array_equal(self.sign[self.perm], self.sign) or not np.all(np.abs(self.sign) == 1):
            raise ValueError(f"mirrored entries share one sign of +-1, given {self.sign.tolist()}")

    @classmethod
    def concatenate(cls, *parts: Mirror) -> Mirror:
        starts = np.cumsum([0] + [len(p.perm) for p in parts])
        perm = np.concatenate([p.perm + start for p, start in zip(parts, starts, strict=False)])
        return cls(perm.astype(np.int32), np.concatenate([p.sign for p in parts]).astype(np.float32))

    @classmethod
    def of(cls, sign: list[float], perm: list[int] | None = None) -> Mirror:
        """Mirror from lists; without `perm` every entry is its own partner."""
        return cls(np.array(perm if perm is not None else range(len(sign)), np.int32), np.array(sign, np.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x[..., self.perm] * self.sign


@dataclass(frozen=True)
class Task:
    """One robot and what it should do. Subclass it as a frozen dataclass; see the module's text for the order of calls.

    Attributes:
        control_dt: time between two actions [s]; a multiple of the model's timestep.
        episode_s: time limit of an episode [s]; reaching it truncates, it does not terminate.
        rewards: weight of each reward term; its names must be exactly those that `advance` returns.
    """

    control_dt: float = 0.02
    episode_s: float = 10.0
    rewards: dict[str, float] = field(default_factory=dict)

    fields: ClassVar[tuple[str | Delta, ...]] = ("qpos", "qvel", "sensordata")
    """mjData fields that the task reads, by MuJoCo's names; wrap one in `delta(...)` for its change."""

    termination_metric: ClassVar[str] = "termination_rate"
    """Name under which the share of terminated episodes is reported, e.g. "fall_rate"."""

    train_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Configuration that suits this task, by algorithm: {"ppo": {"num_envs": 256, "algo.learning_rate": 1e-3}}."""

    def model(self, fine: bool = False) -> mujoco.MjSpec | mujoco.MjModel:
        """The model to simulate; `fine` asks for the most faithful physics, used to check a policy, not to train it."""
        raise NotImplementedError(f"{type(self).__name__} must define model()")

    def curriculum(self) -> Tree:
        """Initial values of what grows with skill (a pytree of arrays); the default has none."""
        return {}

    def next_curriculum(self, curriculum: Tree, metrics: Mapping[str, float]) -> Tree:
        """Curriculum after an iteration whose metrics (as in metrics.jsonl) are given; runs on the host."""
        return curriculum

    def randomise(self, key: jax.Array, nominal: Any) -> dict[str, jax.Array]:
        """Model fields of one episode, by mjModel's names, from `nominal.<field>`, never from earlier ones."""
        return {}

    def reset(
        self, key: jax.Array, curriculum: Tree, randomised: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, Tree]:
        """Begin an episode: (qpos [nq], qvel [nv], state). `randomised` is what `randomise` returned for it."""
        raise NotImplementedError(f"{type(self).__name__} must define reset()")

    def control(self, state: Tree, action: jax.Array) -> dict[str, jax.Array]:
        """What acts on the robot during the control step: "ctrl" [nu].

        If wanted also "xfrc_applied" [nbody, 6] (force, torque), and "qvel_kick" [nv], added to qvel before the first
        physics step.
        """
        return {"ctrl": action}

    def advance(
        self, state: Tree, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Tree
    ) -> tuple[Tree, dict[str, Scalar], Scalar, dict[str, Any]]:
        """After the physics: (state, reward terms, terminated, metrics).

        A metric is a number, reported as its mean over env steps, or a pair (value, weight), reported as the weighted
        mean (weight 0: this step does not count).
        """
        raise NotImplementedError(f"{type(self).__name__} must define advance()")

    def observe(self, state: Tree, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        """Observations: "actor" [n], and "critic" [m] if the critic sees something else."""
        raise NotImplementedError(f"{type(self).__name__} must define observe()")

    def action_size(self, model: mujoco.MjModel) -> int:
        """Number of entries of an action; as many as the model has actuators unless overridden."""
        return int(model.nu)

    def action_bounds(self, model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray] | None:
        """Smallest and largest sensible action [A], for policies that are bounded; None stands for -1 and 1."""
        return None

    def mirror(self) -> dict[str, Mirror] | None:
        """Left-right symmetry of "actor", "critic" (if observed) and "action", or None where the task has none."""
        return None

    def evaluation(self) -> Task:
        """The task on which policies are evaluated; by default this one."""
        return self

    @property
    def episode_steps(self) -> int:
        """Time limit in env steps."""
        return max(1, round(self.episode_s / self.control_dt))
