"""Envs whose numbers broke: what is kept of them, and how one control step of theirs is looked at again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import mujoco
import numpy as np

from unilab.envs.env import EnvState
from unilab.envs.physics.base import NOBODY
from unilab.envs.physics.mujoco import STATE, UNSTABLE, MujocoPhysics

if TYPE_CHECKING:
    from unilab.runtime.job import JobRunner
    from unilab.runtime.messages import Job

FOLDER = "unstable"
FACTS = ("task", "seed", "rollout", "step", "env", "substeps", "causes")
ARRAYS = ("model", "state", "ctrl", "action", "advance_key", "obs_key", "facts")


@dataclass(frozen=True)
class UnstableEnv:
    """The control step in which an env broke.

    Attributes:
        facts: where it was (`rollout`, `step`, `env`), `seed`, `substeps`, and `causes`: "physics", or the names of the
            task's outputs that were not finite.
        model: the env's own model as MuJoCo saves it [bytes].
        state: `mjSTATE_INTEGRATION` before the control step, controls applied [n].
        ctrl: the controls [nu].
        action: the action [A].
        advance_key, obs_key: data of the random keys of that step.
    """

    facts: dict[str, Any]
    model: np.ndarray
    state: np.ndarray
    ctrl: np.ndarray
    action: np.ndarray
    advance_key: np.ndarray
    obs_key: np.ndarray

    def save(self, run: Path) -> Path:
        """Write it into a run folder; returns the file."""
        name = f"rollout{self.facts['rollout']:06d}-env{self.facts['env']:05d}-step{self.facts['step']:03d}.npz"
        path = run / FOLDER / name
        path.parent.mkdir(exist_ok=True)
        arrays = {name: getattr(self, name) for name in ARRAYS if name != "facts"}
        np.savez_compressed(path, facts=np.array(json.dumps(self.facts)), **arrays)
        return path

    @classmethod
    def load(cls, path: Path) -> UnstableEnv:
        """Read a file that `save` wrote.

        Raises:
            ValueError: it is not such a file.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                values = {name: file[name] for name in ARRAYS}
            facts = json.loads(str(values["facts"]))
            if missing := [name for name in FACTS if name not in facts]:
                raise ValueError(f"it lacks {', '.join(missing)}")
            return cls(**(values | {"facts": facts}))
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror or error})") from None
        except Exception as error:  # a damaged archive fails in many ways
            raise ValueError(f"{path} is not a file that a run left in its folder {FOLDER}/ ({error})") from None


@contextmanager
def recorded(physics: MujocoPhysics, record: Callable[[np.ndarray, np.ndarray], None]) -> Iterator[None]:
    """While entered, `record(before, unstable)` is called after every control step of a shard.

    `before` are the state rows [S, n] before the step, with the controls applied; `unstable` is what the step returned.
    """
    step = physics.step

    def recording_step(controls: Any, resting: np.ndarray = NOBODY) -> np.ndarray:
        physics.apply(controls)
        before = physics.rows.state.copy()
        unstable = step({}, resting)
        record(before, unstable)
        return unstable

    physics.step = recording_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        del physics.step


def describe(runner: JobRunner, job: Job, limit: int) -> tuple[UnstableEnv, ...]:
    """The first `limit` envs that broke in a rollout that `runner` has just collected.

    Nothing is recorded while collecting. The rollout is collected once more, which a job allows, and watched. Only
    back ends whose rows are MuJoCo's own state can be watched; of others nothing is described.
    """
    if not isinstance(runner.batch.physics, MujocoPhysics):
        return ()
    size = runner.plan.shard_size
    first = job.shard * size
    where = np.argwhere(runner.ring.columns(job.number, first, size)["weight"] == 0)[:limit]
    if not len(where):
        return ()
    batch, env, physics = runner.batch, runner.plan.env, runner.batch.physics
    found: list[UnstableEnv] = []
    last: dict[str, np.ndarray] = {}

    def record(before: np.ndarray, unstable: np.ndarray) -> None:
        rows = physics.rows
        last.update(before=before, unstable=unstable, fields=rows.fields.copy(), models=rows.model.copy())

    def on_step(t: int, states: EnvState, actions: jax.Array) -> None:
        for row in where[where[:, 0] == t][:, 1]:
            keys = batch.keys(t, row)
            state = jax.tree.map(lambda x: x[row], states)  # noqa: B023 - used at once
            causes = ["physics"]
            if not last["unstable"][row]:
                causes = env.non_finite(state, last["fields"][row], actions[row], *keys, batch.curriculum)
            facts: dict[str, Any] = {
                "rollout": job.number,
                "step": t,
                "env": first + int(row),
                "seed": runner.plan.config.seed,
            }
            facts |= {"task": type(env.task).__name__, "substeps": env.substeps, "causes": causes}
            model = copy.copy(physics.model)
            physics.write_model(model, last["models"][row])
            before = last["before"][row]
            advance_key, obs_key = (np.asarray(jax.random.key_data(key)) for key in keys)
            controls = before[physics.columns("ctrl")]
            found.append(
                UnstableEnv(facts, model_bytes(model), before, controls, np.asarray(actions[row]), advance_key, obs_key)
            )

    with recorded(physics, record):
        runner.rollout(job, on_step)
    return tuple(found)


@dataclass(frozen=True)
class Substep:
    """Figures of an env after one physics step of a replay."""

    number: int
    max_qpos: float
    max_qvel: float
    max_qacc: float
    fastest: str
    """Name of the joint whose velocity is the largest."""
    contacts: int
    warnings: tuple[str, ...]


def replay(unstable: UnstableEnv) -> list[Substep]:
    """The control step again, one physics step at a time, until its numbers break."""
    model = _model_of(unstable)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    data = mujoco.MjData(model)
    if (size := mujoco.mj_stateSize(model, STATE)) != unstable.state.size:
        raise ValueError(f"its state has {unstable.state.size} numbers, its model needs {size}")
    mujoco.mj_setState(model, data, unstable.state, STATE)
    rows = []
    for number in range(unstable.facts["substeps"]):
        mujoco.mj_step(model, data)
        warnings = [mujoco.mjtWarning(i) for i in UNSTABLE if data.warning.number[i]]
        names = tuple(warning.name.removeprefix("mjWARN_").lower() for warning in warnings)
        qpos, qvel, qacc = (float(np.abs(x).max(initial=0.0)) for x in (data.qpos, data.qvel, data.qacc))
        rows.append(Substep(number + 1, qpos, qvel, qacc, _fastest(model, data), int(data.ncon), names))
        if names or not np.isfinite(data.qvel).all():
            break
    return rows


def _fastest(model: mujoco.MjModel, data: mujoco.MjData) -> str:
    if not model.nv:
        return "-"
    dof = int(np.argmax(np.where(np.isfinite(data.qvel), np.abs(data.qvel), np.inf)))
    joint = int(model.dof_jntid[dof])
    return model.joint(joint).name or f"joint {joint}"


def model_bytes(model: mujoco.MjModel) -> np.ndarray:
    """A model as MuJoCo saves it [bytes]."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer


def _model_of(unstable: UnstableEnv) -> mujoco.MjModel:
    try:
        return mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": unstable.model.tobytes()})
    except Exception as error:
        raise ValueError(f"its model was saved by another version of MuJoCo ({error})") from None
