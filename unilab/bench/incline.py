"""`unilab bench incline`: blocks on slopes, against what friction's law says.

A block slides where tan(angle) exceeds the friction coefficient, with g (sin(angle) - friction cos(angle)). All slopes
stand in one model: block i touches slope i alone, so one simulation serves every angle on every back end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from unilab.bench.engines import make_engine
from unilab.bench.measure import Tell
from unilab.bench.result import Row, make_result, model_options
from unilab.envs.physics.base import Demands
from unilab.envs.physics.registry import PHYSICS, physics_entry

FRICTION = 0.5
THRESHOLD_DEG = math.degrees(math.atan(FRICTION))
OFFSETS_DEG = (-12.0, -6.0, -3.0, -1.5, -0.7, -0.2, 0.2, 0.7, 1.5, 3.0, 6.0, 12.0)
"""Angles of the slopes, from the one at which sliding begins."""
STEEP = slice(-3, None)
"""The slopes on which the acceleration is judged, as a share of the analytic one: on the others that is small."""
PHYSICS_DT = 0.002
SUBSTEPS = 10
SETTLE_S, END_S = 0.2, 1.0
SLIDES = 0.01
"""Speed at the end from which a block counts as sliding, m/s; the slowest that slides reaches 0.04."""


def bench_incline(tell: Tell, backends: Sequence[str] = tuple(PHYSICS)) -> dict[str, Any]:
    """Sliding threshold and acceleration of each physics back end, beside the analytic ones.

    Raises:
        ValueError: a back end is unknown.
    """
    rows, skipped = [], []
    for name in backends:
        entry = physics_entry(name)
        if entry.is_installed:
            tell(f"incline: {name}")
            rows.append(_row(name))
        else:
            install = entry.install_command
            skipped.append({"backend": name, "reason": f"not installed; {install}", "install": install})
    options = {"friction": FRICTION, "angles_deg": angles_deg(), "model": model_options(slopes(), SUBSTEPS)}
    return make_result("incline", options, rows, skipped)


def angles_deg() -> list[float]:
    """Angles of the slopes, degrees."""
    return [THRESHOLD_DEG + offset for offset in OFFSETS_DEG]


def slopes() -> mujoco.MjModel:
    """The model: a block at rest on each slope."""
    return slopes_spec().compile()


def slopes_spec() -> mujoco.MjSpec:
    """The model as it is built."""
    spec = mujoco.MjSpec()
    spec.option.timestep = PHYSICS_DT
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0  # friction as hard as the contact's normal force, so that a block at rest hardly creeps
    for i, angle in enumerate(np.radians(angles_deg())):
        tilt = [math.cos(angle / 2), 0.0, math.sin(angle / 2), 0.0]  # about y: downhill is +x of the slope
        pair = {"contype": 1 << i, "conaffinity": 1 << i, "friction": [FRICTION, 0.005, 0.0001]}
        place = np.array([0.0, 2.0 * i, 0.0])
        normal = np.array([math.sin(angle), 0.0, math.cos(angle)])
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.0, 0.0, 1.0], pos=place.tolist(), quat=tilt, **pair
        )
        body = spec.worldbody.add_body(pos=(place + 0.05 * normal).tolist(), quat=tilt)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.1, 0.1, 0.05], mass=1.0, **pair)
    return spec


def downhill(engine_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Speeds down each slope [T, slopes], m/s, and their times [T], s, as a back end simulates them from rest."""
    model = slopes()
    demands = Demands(model, ("qpos", "qvel"), SUBSTEPS, mjcf=slopes_spec().to_xml)
    engine, rows = make_engine(engine_name, demands, 1)
    engine.reset(np.arange(1), model.qpos0[None], np.zeros((1, model.nv)), {})
    angles = np.radians(angles_deg())
    along = np.stack([np.cos(angles), np.zeros_like(angles), -np.sin(angles)], axis=1)
    qvel_at = next(spec.start for spec in engine.field_specs if spec.name == "qvel")
    speeds = []
    for _ in range(round(END_S / (PHYSICS_DT * SUBSTEPS))):
        engine.step({"ctrl": np.zeros((1, 0), np.float32)})
        velocity = rows.fields[0, qvel_at : qvel_at + model.nv].reshape(-1, 6)[:, :3]
        speeds.append(np.sum(velocity * along, axis=1))
    times = PHYSICS_DT * SUBSTEPS * np.arange(1, len(speeds) + 1)
    return np.array(speeds), times


def analytic_acceleration() -> np.ndarray:
    """Acceleration down each slope [slopes], m/s^2."""
    angles = np.radians(angles_deg())
    return np.maximum(9.81 * (np.sin(angles) - FRICTION * np.cos(angles)), 0.0)


def _row(name: str) -> Row:
    speeds, times = downhill(name)
    late = times > SETTLE_S
    acceleration = np.polyfit(times[late], speeds[late], 1)[0]
    slides, analytic = speeds[-1] > SLIDES, analytic_acceleration()
    angles = np.array(angles_deg())
    bracket = (max(angles[~slides], default=math.nan), min(angles[slides], default=math.nan))
    error = np.abs(acceleration - analytic)[STEEP] / analytic[STEEP]
    return {
        "backend": name, "task": "incline", "num_envs": 1, "workers": 0, "env_steps_per_s": None, "spread": None,
        "ratio_to_default": None, "ratio_to_limit": None,
        "sliding_from_deg": list(map(float, bracket)), "analytic_deg": THRESHOLD_DEG,
        "acceleration_error": float(error.max()), "creep_m_per_s": float(np.abs(speeds[-1][~slides]).max(initial=0.0)),
        "acceleration": acceleration.tolist(), "analytic_acceleration": analytic.tolist(),
    }  # fmt: skip
