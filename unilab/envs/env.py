"""One environment as pure functions: a task plus what every task needs around it.

The functions here know nothing of batches or processes. They add to a task: random keys, the time limit, the reward's
weighted sum, running totals, and the rule for envs whose numbers broke.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from unilab.envs.packing import Packing
from unilab.envs.physics.base import Demands, FieldSpec, field_specs
from unilab.envs.task import ModelNames, Physics, Task

# Streams of random numbers. A key is fold_in(fold_in(fold_in(seed, stream), env), counter); the counter is the episode
# for the first three and the env step for the others, so no number depends on the order in which anything ran.
RANDOMISE, RESET, RESET_OBSERVATION, ADVANCE, OBSERVATION, ACTION, AGE = range(7)


def stream_key(seed_key: jax.Array, stream: int, env: jax.Array, counter: jax.Array) -> jax.Array:
    """Key of one env at one count in one stream."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(seed_key, stream), env), counter)


class EnvState(NamedTuple):
    """All that lives in JAX between the control steps of one env."""

    task: Any
    """The task's own state."""
    obs: dict[str, jax.Array]
    """The observation that the next action answers."""
    episode: jax.Array
    """Number of the current episode of this env, int32."""
    age: jax.Array
    """Env steps since the episode began, int32; a first episode may begin at a random age."""
    episode_totals: jax.Array
    """Sums over this episode so far [columns]."""
    ended_totals: jax.Array
    """Sums over the episodes that ended since the rollout began [columns]."""
    step_totals: jax.Array
    """Sums over the steps since the rollout began [columns]."""


class Outcome(NamedTuple):
    """What one env step produced for the learner. All float32 scalars but `final_obs`."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    weight: jax.Array
    """1, or 0 for the step in which the env's numbers broke: it must count in nothing."""
    final_obs: dict[str, jax.Array]
    """The true successor observation, also where the episode ended."""


@dataclass(frozen=True)
class Columns:
    """Meaning of the columns of the totals."""

    terms: tuple[str, ...]
    metrics: tuple[str, ...]
    termination_metric: str

    COMMON = ("episodes", "steps", "return", "terminated", "unstable")

    @property
    def names(self) -> tuple[str, ...]:
        weights = tuple(f"weight:{name}" for name in self.metrics)
        return (*self.COMMON, *(f"reward:{t}" for t in self.terms), *(f"metric:{m}" for m in self.metrics), *weights)

    def episode_means(self, totals: np.ndarray) -> dict[str, float]:
        """Means per episode from summed totals [columns]; NaN where no episode ended."""
        column = dict(zip(self.names, totals.astype(np.float64), strict=True))
        episodes = column["episodes"]
        means = {
            "return_mean": _ratio(column["return"], episodes),
            "length_mean": _ratio(column["steps"], episodes),
            self.termination_metric: _ratio(column["terminated"], episodes),
        }
        return means | {m: _ratio(column[f"metric:{m}"], column[f"weight:{m}"]) for m in self.metrics}

    def step_means(self, totals: np.ndarray) -> dict[str, float]:
        """Means per env step from summed totals [columns]: `reward/<term>` (weighted) and `metric/<name>`."""
        column = dict(zip(self.names, totals.astype(np.float64), strict=True))
        rewards = {f"reward/{t}": _ratio(column[f"reward:{t}"], column["steps"]) for t in self.terms}
        return rewards | {f"metric/{m}": _ratio(column[f"metric:{m}"], column[f"weight:{m}"]) for m in self.metrics}


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count > 0 else float("nan")


class Env:
    """A task together with its compiled model: shapes, layouts and the functions of one env.

    Args:
        task: the task.
        fine: use the task's most faithful physics.
        model: the compiled model, if it is at hand already (a worker gets it from the parent).
        episode_steps: time limit of an episode in env steps, instead of the task's own.

    Attributes:
        has_critic_obs: whether the critic sees something else than the actor.

    Raises:
        ValueError, TypeError: the task breaks the contract; the message names the method and what was expected.
    """

    def __init__(
        self, task: Task, fine: bool = False, model: mujoco.MjModel | None = None, episode_steps: int | None = None
    ) -> None:
        self.task, self._fine = task, fine
        self.episode_steps = task.episode_steps if episode_steps is None else episode_steps
        self.model = model if model is not None else compile_model(task, fine)
        self.substeps = _substeps(task, self.model)
        self.names = ModelNames.of(self.model)
        self.field_specs: tuple[FieldSpec, ...] = field_specs(self.model, task.fields)
        self.field_size = self.field_specs[-1].stop if self.field_specs else 0
        self.action_size = task.action_size(self.model)
        if self.action_size < 1:
            raise ValueError(f"{type(task).__name__} has {self.action_size} actions; a task needs at least one")
        self._check_contract()

    # --- functions of one env -----------------------------------------------------------------------------------

    def begin(self, seed_key: jax.Array, env: jax.Array, episode: jax.Array, curriculum: Any) -> tuple[Any, ...]:
        """An episode's start: (qpos, qvel, randomised model fields, task state)."""
        nominal = _Nominal(self.model)
        randomised = self.task.randomise(stream_key(seed_key, RANDOMISE, env, episode), nominal)
        key = stream_key(seed_key, RESET, env, episode)
        qpos, qvel, state = self.task.reset(key, curriculum, randomised)
        return qpos, qvel, randomised, state

    def first_state(
        self, seed_key: jax.Array, env: jax.Array, episode: jax.Array, task_state: Any, fields: jax.Array
    ) -> EnvState:
        """State of an env whose physics has just been reset; `fields` [F] were read after that."""
        key = stream_key(seed_key, RESET_OBSERVATION, env, episode)
        obs = self._observe(task_state, fields, key)
        zeros = jnp.zeros(len(self.columns.names), jnp.float32)
        return EnvState(task_state, obs, episode, jnp.int32(0), zeros, zeros, zeros)

    def random_age(self, seed_key: jax.Array, env: jax.Array) -> jax.Array:
        """Age at which the first episode of an env begins, so that time limits do not fall together."""
        return jax.random.randint(stream_key(seed_key, AGE, env, jnp.int32(0)), (), 0, self.episode_steps)

    def control(self, state: EnvState, action: jax.Array) -> dict[str, jax.Array]:
        """Controls of the physics under `action` [A]."""
        return self.task.control(state.task, action)

    def advance(
        self, state: EnvState, fields: jax.Array, unstable: jax.Array, action: jax.Array,
        advance_key: jax.Array, obs_key: jax.Array, curriculum: Any,
    ) -> tuple[EnvState, Outcome]:  # fmt: skip
        """What follows from the physics of a control step. An `unstable` env has its last good fields here."""
        task_state, terms, terminated, metrics = self.task.advance(
            state.task, self.physics(fields), action, advance_key, curriculum
        )
        obs = self._observe(task_state, fields, obs_key)
        weighted = {name: self.task.rewards[name] * terms[name] for name in self.columns.terms}
        reward = sum(weighted.values(), jnp.float32(0.0))

        numbers = jnp.concatenate([jnp.ravel(x) for x in [reward, *obs.values(), *_floats(task_state)]])
        weight = jnp.where(unstable | ~jnp.isfinite(numbers).all(), 0.0, 1.0)
        is_good = weight > 0
        reward = jnp.where(is_good, reward, 0.0)
        obs = {name: jnp.where(is_good, value, 0.0) for name, value in obs.items()}
        terminated = jnp.where(is_good, terminated, True)
        truncated = (state.age + 1 >= self.episode_steps) & ~terminated
        ended = terminated | truncated

        step = self._step_totals(reward, terminated & is_good, weighted, metrics)
        step = jnp.where(is_good, step, 0.0).at[self.columns.names.index("unstable")].set(1.0 - weight)
        episode_totals = state.episode_totals + step
        # An episode that broke is not an episode: it leaves only its mark in the column "unstable".
        finished = jnp.where(is_good, episode_totals.at[0].set(1.0), step)
        new_state = EnvState(
            task=task_state,
            obs=obs,
            episode=state.episode,
            age=state.age + 1,
            episode_totals=episode_totals,
            ended_totals=state.ended_totals + jnp.where(ended, finished, 0.0),
            step_totals=state.step_totals + step,
        )
        f32 = jnp.float32
        return new_state, Outcome(reward, terminated.astype(f32), truncated.astype(f32), weight.astype(f32), obs)

    def non_finite(
        self, state: EnvState, fields: jax.Array, action: jax.Array, advance_key: jax.Array, obs_key: jax.Array,
        curriculum: Any,
    ) -> list[str]:  # fmt: skip
        """Names of the outputs of the task's functions that are not finite after a control step."""
        task_state, terms, _, _ = self.task.advance(state.task, self.physics(fields), action, advance_key, curriculum)
        obs = self._observe(task_state, fields, obs_key)
        outputs = {"state": task_state, "reward": dict(terms), "observe": obs}
        leaves, _ = jax.tree_util.tree_flatten_with_path(outputs)
        names = ((jax.tree_util.keystr(path, simple=True, separator="/"), jnp.asarray(leaf)) for path, leaf in leaves)
        return [n for n, x in names if jnp.issubdtype(x.dtype, jnp.floating) and not jnp.isfinite(x).all()]

    def physics(self, fields: jax.Array) -> Physics:
        """The task's view of one row of fields [F]."""
        named = {s.key: jnp.reshape(fields[s.start : s.stop], s.shape) for s in self.field_specs}
        return Physics(named, self.names)

    # --- layouts ------------------------------------------------------------------------------------------------

    @cached_property
    def state_packing(self) -> Packing:
        """How an `EnvState` lies in a row of the bank."""
        return Packing.of(self._abstract[0])

    @property
    def columns(self) -> Columns:
        """Meaning of the columns of the totals."""
        return self._columns

    @property
    def obs_sizes(self) -> dict[str, int]:
        """Length of each group of observations; "critic" always exists."""
        return {name: value.shape[0] for name, value in self._abstract[0].obs.items()}

    @property
    def control_names(self) -> tuple[str, ...]:
        """What `control` returns."""
        return tuple(self._abstract[1])

    @property
    def randomised(self) -> tuple[str, ...]:
        """Model fields that differ from env to env."""
        return self._randomised

    @property
    def demands(self) -> Demands:
        """What the task asks of its physics."""
        return Demands(
            self.model, self.task.fields, self.substeps, self.randomised, self.control_names, lambda: self.mjcf
        )

    @property
    def mjcf(self) -> str:
        """The model as MJCF text, with the mass and inertia of each body written out: engines infer them differently.

        Raises:
            ValueError: the task's model() returns a compiled model, of which there is none.
        """
        spec = self.task.model(self._fine)
        if not isinstance(spec, mujoco.MjSpec):
            raise ValueError(f"{type(self.task).__name__}.model() returns an MjModel; an MJCF text needs an MjSpec")
        model = spec.compile()
        spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
        for body in spec.bodies[1:]:
            body.explicitinertial = True
            body.mass, body.inertia = model.body_mass[body.id], model.body_inertia[body.id]
            body.ipos, body.iquat = model.body_ipos[body.id], model.body_iquat[body.id]
        spec.compile()
        return spec.to_xml()

    def _observe(self, task_state: Any, fields: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        obs = self.task.observe(task_state, self.physics(fields), key)
        obs = {name: jnp.asarray(value, jnp.float32) for name, value in obs.items()}
        return {"actor": obs["actor"], "critic": obs.get("critic", obs["actor"])}

    def _step_totals(
        self, reward: jax.Array, terminated: jax.Array, terms: Mapping[str, jax.Array], metrics: Mapping[str, Any]
    ) -> jax.Array:
        pairs = [metrics[m] if isinstance(metrics[m], tuple) else (metrics[m], 1.0) for m in self.columns.metrics]
        values = [
            0.0, 1.0, reward, terminated, 0.0,
            *(terms[t] for t in self.columns.terms),
            *(jnp.asarray(value, jnp.float32) * weight for value, weight in pairs),
            *(weight for _, weight in pairs),
        ]  # fmt: skip
        return jnp.stack([jnp.asarray(v, jnp.float32) for v in values])

    # --- the contract, checked once on shapes alone ---------------------------------------------------------------

    def _check_contract(self) -> None:
        task, name = self.task, type(self.task).__name__
        curriculum = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, task.curriculum()))
        key = jax.eval_shape(lambda: jax.random.key(0))
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        fields = jax.ShapeDtypeStruct((self.field_size,), jnp.float32)
        action = jax.ShapeDtypeStruct((self.action_size,), jnp.float32)

        qpos, qvel, randomised, state = jax.eval_shape(self.begin, key, scalar, scalar, curriculum)
        _expect(f"{name}.reset() qpos", qpos.shape, (self.model.nq,))
        _expect(f"{name}.reset() qvel", qvel.shape, (self.model.nv,))
        for field_name, value in randomised.items():
            nominal = getattr(self.model, field_name, None)
            if not isinstance(nominal, np.ndarray) or nominal.dtype != np.float64:
                raise ValueError(
                    f"{name}.randomise() returned {field_name!r}, which is not a real-valued mjModel array"
                )
            _expect(f"{name}.randomise() {field_name}", value.shape, nominal.shape)
        self._randomised = tuple(randomised)

        controls = jax.eval_shape(task.control, state, action)
        allowed = {"ctrl": (self.model.nu,), "xfrc_applied": (self.model.nbody, 6), "qvel_kick": (self.model.nv,)}
        for control_name, value in controls.items():
            if control_name not in allowed:
                raise ValueError(f"{name}.control() returned {control_name!r}; allowed are {sorted(allowed)}")
            _expect(f"{name}.control() {control_name}", value.shape, allowed[control_name])

        def advance(state: Any, fields: jax.Array, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
            return task.advance(state, self.physics(fields), action, key, curriculum)

        new_state, terms, terminated, metrics = jax.eval_shape(advance, state, fields, action, key, curriculum)
        if jax.tree.map(_signature, new_state) != jax.tree.map(_signature, state):
            raise TypeError(
                f"{name}.advance() returned a state of other keys, shapes or dtypes than reset():\n"
                f"  reset:   {jax.tree.map(_signature, state)}\n  advance: {jax.tree.map(_signature, new_state)}"
            )
        if set(terms) != set(task.rewards):
            missing, unknown = sorted(set(terms) - set(task.rewards)), sorted(set(task.rewards) - set(terms))
            raise ValueError(f"{name}: reward terms without a weight: {missing}; weights without a term: {unknown}")
        for term, value in terms.items():
            _expect(f"{name}.advance() reward term {term!r}", value.shape, ())
        _expect(f"{name}.advance() terminated", terminated.shape, ())
        self._columns = Columns(tuple(sorted(terms)), tuple(sorted(metrics)), task.termination_metric)

        obs = jax.eval_shape(lambda s, f, k: task.observe(s, self.physics(f), k), state, fields, key)
        if "actor" not in obs or not set(obs) <= {"actor", "critic"}:
            raise ValueError(f"{name}.observe() returned {sorted(obs)}; allowed are 'actor' and, if wanted, 'critic'")
        for group, value in obs.items():
            if len(value.shape) != 1 or value.shape[0] == 0:
                raise ValueError(
                    f"{name}.observe() {group!r} has shape {value.shape}; expected a vector of at least one entry"
                )
        self.has_critic_obs = "critic" in obs
        self._abstract = (jax.eval_shape(self.first_state, key, scalar, scalar, state, fields), controls)


def compile_model(task: Task, fine: bool = False) -> mujoco.MjModel:
    """The task's model, compiled.

    Raises:
        ValueError: it does not compile, or uses a feature whose state cannot be continued exactly.
    """
    name = type(task).__name__
    try:
        spec_or_model = task.model(fine)
        model = spec_or_model.compile() if isinstance(spec_or_model, mujoco.MjSpec) else spec_or_model
    except ValueError as error:
        raise ValueError(f"{name}.model() does not compile: {error}") from error
    if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        raise ValueError(f"{name}.model() enables sleep, whose state cannot be continued exactly; remove the flag")
    return model


class _Nominal:
    """Nominal model fields as float32 constants, by mjModel's names."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> jax.Array:
        return jnp.asarray(getattr(self._model, name), jnp.float32)


def _substeps(task: Task, model: mujoco.MjModel) -> int:
    substeps = round(task.control_dt / model.opt.timestep)
    if substeps < 1 or abs(substeps * model.opt.timestep - task.control_dt) > 1e-9:
        raise ValueError(
            f"{type(task).__name__}: control_dt {task.control_dt} s is not a multiple of the physics step "
            f"{model.opt.timestep} s; choose control_dt = n * physics step"
        )
    return substeps


def _floats(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _signature(x: Any) -> tuple[tuple[int, ...], str]:
    return tuple(x.shape), str(x.dtype)


def _expect(what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(expected):
        raise ValueError(f"{what} has shape {tuple(shape)}, expected {tuple(expected)}")
