"""The form of every benchmark's figures: one JSON object with the machine, versions, options, and rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from unilab.bench.measure import median_ratio, spread
from unilab.runtime.metrics import machine, versions
from unilab.runtime.worker import ENVIRONMENT
from unilab.runtime.xla import learner_threads

COLUMNS = (
    "backend", "task", "num_envs", "workers", "env_steps_per_s", "spread", "ratio_to_default", "ratio_to_limit",
)  # fmt: skip
"""What every row has. `spread` is (largest - smallest) / median of the repeats; ratios are medians of the ratios within
a round, and None where there is nothing to compare with."""
COMPARED = ("envpool", "mjbatch", "mujoco-uni-runtime", "motrixsim-core", "mujoco-mjx", "sbx-rl")

Row = dict[str, Any]


def make_row(
    backend: str, task: str, num_envs: int, workers: int, rates: Sequence[float],
    default: Sequence[float] | None = None, limit: Sequence[float] | None = None, **more: Any,
) -> Row:  # fmt: skip
    """A row from the rates of the repeats [env steps/s], those of the default back end and of the physical limit."""
    return {
        "backend": backend,
        "task": task,
        "num_envs": num_envs,
        "workers": workers,
        "env_steps_per_s": statistics.median(rates),
        "spread": spread(rates),
        "ratio_to_default": median_ratio(rates, default),
        "ratio_to_limit": median_ratio(rates, limit),
        **more,
        "repeats": list(rates),
    }


def make_result(
    verb: str, options: Mapping[str, Any], rows: Sequence[Row], skipped: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """The JSON object of a benchmark."""
    return {
        "verb": verb,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine() | {"threads": threads()},
        "versions": versions() | _compared_versions(),
        "options": dict(options),
        "results": list(rows),
        "skipped": list(skipped),
    }


def threads() -> dict[str, int]:
    """Threads of XLA's pool in a worker and in this process, where the learner is; rows have those of EnvPool."""
    return {"worker": int(ENVIRONMENT["NPROC"]), "learner": learner_threads()}


def model_options(model: Any, substeps: int) -> dict[str, Any]:
    """What decides the cost of a physics step, and how many of them are in an env step."""
    import mujoco

    option = model.opt
    return {
        "substeps": substeps,
        "physics_dt": option.timestep,
        "integrator": mujoco.mjtIntegrator(option.integrator).name.removeprefix("mjINT_"),
        "solver": mujoco.mjtSolver(option.solver).name.removeprefix("mjSOL_"),
        "cone": mujoco.mjtCone(option.cone).name.removeprefix("mjCONE_"),
        "iterations": option.iterations,
        "ls_iterations": option.ls_iterations,
    }


def table(result: Mapping[str, Any]) -> str:
    """The rows of a result for a terminal, and what was skipped."""
    shown = [name for name in COLUMNS if any(row[name] is not None for row in result["results"])]
    extra = [name for name in _EXTRA if any(name in row for row in result["results"])]
    cells = [[*shown, *extra], *([_text(row.get(name)) for name in [*shown, *extra]] for row in result["results"])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    skipped = [f"skipped {reason}" for reason in skip_reasons(result)]
    return "\n".join([*(lines if result["results"] else []), *skipped])


def skip_reasons(result: Mapping[str, Any]) -> list[str]:
    """What was skipped, on which task if not on all, and why."""
    reasons = []
    for each in result["skipped"]:
        where = f" on {each['task']}" if "task" in each else ""
        reasons.append(f"{each['backend']}{where}: {each['reason']}")
    return list(dict.fromkeys(reasons))


_EXTRA = (
    "algo", "device", "updates_per_env_step", "updates_per_s", "sliding_from_deg", "analytic_deg",
    "acceleration_error", "overhead_ms_per_rollout", "efficiency", "projected_efficiency", "seconds_to_target",
)  # fmt: skip
"""Further columns that are worth a person's while, in this order."""


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return " to ".join(f"{each:.2f}" for each in value) if isinstance(value, list | tuple) else str(value)


def _compared_versions() -> dict[str, str]:
    found = {}
    for package in COMPARED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
