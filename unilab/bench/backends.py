"""What each physics back end can do, and how far it agrees with the default one, found out by running.

    python -m unilab.bench.backends [--tasks TASK ...] [--into FILE]

prints Markdown tables, or puts them between the marks in FILE.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np

from unilab.bench.engines import make_engine
from unilab.envs.env import Env
from unilab.envs.physics.base import Demands, PhysicsBackend
from unilab.envs.physics.registry import DEFAULT, PHYSICS, can_do, physics_class
from unilab.envs.registry import TASKS, find_task
from unilab.envs.task import Delta
from unilab.runtime.metrics import versions

FIELDS = ("sensordata", "xpos", "site_xpos", "cvel", "actuator_force", "qfrc_constraint", "cfrc_ext")
RANDOMISED = ("geom_friction", "body_mass", "actuator_gainprm", "dof_damping", "jnt_axis")
CONTROLS = ("xfrc_applied", "qvel_kick")
STEPS = (1, 10, 100)
NUM_ENVS = 8
MARKS = ("<!-- backends: begin -->", "<!-- backends: end -->")

PROBE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body name="box" pos="0 0 1">
      <joint name="hinge"/>
      <geom name="box" size="0.1" mass="1"/>
      <site name="box"/>
    </body>
  </worldbody>
  <actuator><motor name="motor" joint="hinge"/></actuator>
  <sensor><jointpos name="hinge" joint="hinge"/></sensor>
</mujoco>
"""


def capabilities() -> str:
    """A Markdown table: one row a back end, what it can do."""
    envs = {name: Env(find_task(name)()) for name in TASKS}
    rows = []
    for name, entry in PHYSICS.items():
        if not entry.is_installed:
            rows.append([f"`{name}`", f"not installed: `{entry.install_command}`", *[""] * 5])
            continue
        missing = [task for task, env in envs.items() if not can_do(name, env.demands)]
        tasks = f"{len(TASKS) - len(missing)} of {len(TASKS)}" + (f"; not {', '.join(missing)}" if missing else "")
        rows.append(
            [
                f"`{name}`",
                "yes" if physics_class(name).exact_state else "no",
                "JAX's device" if entry.on_device else "workers",
                _able(name, {field: {"fields": ("qpos", "qvel", field)} for field in FIELDS}),
                _able(name, {field: {"randomised": (field,)} for field in RANDOMISED}),
                _able(name, {control: {"controls": ("ctrl", control)} for control in CONTROLS}),
                tasks,
            ]
        )
    titles = ("back end", "exact state", "runs in", "fields beside qpos, qvel", "randomisation", "controls", "tasks")
    return _table(titles, rows)


def agreement(tasks: Sequence[str]) -> str:
    """A Markdown table: one row a task, the distance of each back end from the default one."""
    others = [name for name, entry in PHYSICS.items() if name != DEFAULT and entry.is_installed]
    rows = []
    for task in tasks:
        distances = drift(Env(find_task(task)()), others)
        rows.append([task, *(_distances(distances.get(name)) for name in others)])
        print(f"{task}: {rows[-1][1:]}", file=sys.stderr, flush=True)
    return _table(("task", *(f"`{name}`" for name in others)), rows)


def drift(env: Env, names: Sequence[str]) -> dict[str, list[float]]:
    """Distances from the default back end after 1, 10 and 100 env steps from the same states with the same actions.

    A distance is the median over envs of the largest difference of an entry of qpos and qvel. The models are nominal
    and only positions and velocities are read, so that back ends which cannot do the whole task are compared too; those
    that cannot do even that are left out.
    """
    wanted = dataclasses.replace(env.demands, fields=("qpos", "qvel"), randomised=(), controls=("ctrl",))
    able = [DEFAULT, *(name for name in names if can_do(name, wanted))]
    backends = {name: make_engine(name, wanted, NUM_ENVS)[0] for name in able}
    ids = np.arange(NUM_ENVS, dtype=np.int32)
    key, curriculum = jax.random.key(0), jax.tree.map(np.asarray, env.task.curriculum())
    begin = jax.jit(jax.vmap(env.begin, in_axes=(None, 0, 0, None)))
    qpos, qvel, _, state = jax.tree.map(np.asarray, begin(key, ids, ids, curriculum))
    for backend in backends.values():
        backend.reset(ids, qpos, qvel, {})
    low, high = env.task.action_bounds(env.model) or (-np.ones(env.action_size), np.ones(env.action_size))
    actions = np.random.default_rng(0).uniform(low, high, (max(STEPS), NUM_ENVS, env.action_size)).astype(np.float32)
    control = jax.jit(jax.vmap(env.task.control))
    found: dict[str, list[float]] = {name: [] for name in able if name != DEFAULT}
    for step, action in enumerate(actions, start=1):
        controls = {"ctrl": np.asarray(control(state, action)["ctrl"])}
        for backend in backends.values():
            backend.step(controls)
        if step in STEPS:
            for name, distances in found.items():
                distances.append(_distance(backends[name], backends[DEFAULT]))
    return found


def _distance(one: PhysicsBackend, other: PhysicsBackend) -> float:
    differences = [np.abs(one.qpos - other.qpos), np.abs(one.qvel - other.qvel)]
    return float(np.median(np.concatenate(differences, axis=1).max(axis=1)))


def _able(name: str, probes: dict[str, dict[str, Any]]) -> str:
    """Those of the probes, changes of what a small model demands, that a back end can do."""
    spec = mujoco.MjSpec.from_string(PROBE)
    fields: tuple[str | Delta, ...] = ("qpos", "qvel")
    plain = Demands(spec.compile(), fields, 1, mjcf=spec.to_xml)
    able = [probe for probe, change in probes.items() if can_do(name, dataclasses.replace(plain, **change))]
    return "all" if len(able) == len(probes) else ", ".join(able) or "none"


def _distances(values: list[float] | None) -> str:
    if values is None:
        return "cannot"
    return "0 (bit-equal)" if not any(values) else " / ".join(f"{value:.0e}" if value else "0" for value in values)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def report(tasks: Sequence[str]) -> str:
    """The tables with the versions that they hold for."""
    engines = ", ".join(
        f"{entry.engine} {entry.version}" for entry in PHYSICS.values() if entry.engine and entry.version
    )
    head = f"mujoco {mujoco.__version__}, jax {versions()['jax']}, {engines}."
    probed = f"Fields tried: {', '.join(FIELDS)}. Randomisation tried: {', '.join(RANDOMISED)}."
    distance = "Distance from `mujoco` after 1 / 10 / 100 env steps, nominal models, the same random actions:"
    return "\n\n".join((f"{head} {probed}", capabilities(), distance, agreement(tasks)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m unilab.bench.backends", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=tuple(TASKS), choices=TASKS, metavar="TASK", help="to compare on")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables between the marks in this file")
    arguments = parser.parse_args()
    text = report(arguments.tasks)
    if arguments.into is None:
        print(text)
        return
    before, begin, rest = arguments.into.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (begin and end):
        parser.error(f"{arguments.into} has no marks {MARKS[0]} and {MARKS[1]}")
    arguments.into.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()
