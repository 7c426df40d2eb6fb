"""Going on with a run from its last checkpoint, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unilab.config import Config
from unilab.envs.physics.registry import DEFAULT
from unilab.envs.registry import stop_if_importing
from unilab.envs.task import Task
from unilab.names import in_shell
from unilab.runtime.checkpoint import Checkpoint, CheckpointError, drop_newer, load_checkpoint
from unilab.runtime.digest import Trace
from unilab.runtime.display import Display, QuietDisplay
from unilab.runtime.metrics import devices, versions
from unilab.runtime.run import held, read_config, read_settings, spaces_to_json, write_config
from unilab.runtime.train import Callback, Result, Training, ready_plan, stoppable
from unilab.runtime.xla import set_deterministic, set_learner_threads

FREE = {
    "steps", "workers", "job_order", "eval_every", "checkpoint_every_s", "hang_after_s",
    "max_unstable_share", "digest", "init_from", "save_replay",
}  # fmt: skip
"""Settings that may change between a checkpoint and its resumption: what was computed does not depend on them."""


def resume(
    run: str | Path,
    steps: int | None = None,
    workers: int | None = None,
    callback: Callback | None = None,
    display: Display | None = None,
    trace: Trace | None = None,
    task_class: type[Task] | None = None,
) -> Result:
    """Go on with a run from its last whole checkpoint; the result is, bit for bit, that of a run that never stopped.

    Args:
        run: the run folder.
        steps: env steps to train for in total, if other than planned. Schedules keep the horizon they had.
        workers: worker processes, if other than before; no effect on results.
        callback, display, trace: as for `train`.
        task_class: class of the task, for one that was defined in a notebook.

    Raises:
        ValueError: the folder is no run, its checkpoints are damaged or of something else, or the run is finished.
        MemoryError, RunError, KeyboardInterrupt, SystemExit: as for `train`.
    """
    stop_if_importing()
    folder, display = Path(run), display or QuietDisplay()
    _set_up_xla(read_settings(folder))
    old = read_config(folder, task_class)
    config = old if workers is None else replace(old, workers=workers)
    if steps is not None:
        config = replace(config, steps=steps, horizon_steps=old.horizon_steps or old.steps)
    with stoppable() as stop, held(folder):
        checkpoint = load_checkpoint(folder, "latest")
        iteration = checkpoint.manifest["iteration"]
        _require_work(folder, config, iteration)
        _require_same(checkpoint, config.to_json())
        plan = ready_plan(config)
        if not plan.exact_state:
            raise ValueError(
                f"{folder} cannot be resumed: its physics back end, {config.physics}, does not give its full state. "
                f"Begin a new run from its policy: `unilab train TASK --init-from {in_shell(folder)}`"
            )
        _require_same_spaces(checkpoint, spaces_to_json(plan.spaces))
        training = Training(plan, folder, display, trace, checkpoint)
        _tell(display, checkpoint, config, old)
        drop_newer(folder, iteration, checkpoint.manifest["best"]["iteration"])
        write_config(folder, plan.config)
        (folder / "summary.json").unlink(missing_ok=True)  # it tells of an end that is none
        return training.run(stop, callback or (lambda row: None))


def _set_up_xla(settings: Any) -> None:
    """Set what a run asks of XLA before its task's file is imported, which may make the first array."""
    if isinstance(settings, Mapping):
        threads = settings.get("learner_threads")
        set_learner_threads(threads if isinstance(threads, int) and threads > 0 else None)
        if settings.get("deterministic") is True:
            set_deterministic()


def _require_work(folder: Path, config: Config, iteration: int) -> None:
    """Refuse a run that is finished; one that was killed at its very end still lacks its summary."""
    done = iteration * config.env_steps_per_iteration
    if iteration > config.iterations or (iteration == config.iterations and (folder / "summary.json").exists()):
        raise ValueError(
            f"steps is {config.steps}, but the run has done {done} already; give the new total, "
            f"for instance --steps {2 * done}"
        )


def _require_same(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another task or configuration; names the first difference."""
    there, here = (_with_horizon(each) for each in (checkpoint.manifest["config"], config))
    if difference := _first_difference(there, here):
        name, old, new = difference
        raise CheckpointError(
            f"{checkpoint.folder} was made with {name} = {old!r}, but config.json says {new!r}; restore config.json, "
            "or train anew"
        )


def _with_horizon(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the horizon of its schedules spelled out, which `steps` decides unless it is given.

    And with its physics, of which there was one kind before it was a setting.
    """
    return {"physics": DEFAULT, **config, "horizon_steps": config["horizon_steps"] or config["steps"]}


def _require_same_spaces(checkpoint: Checkpoint, spaces: Mapping[str, Any]) -> None:
    if difference := _first_difference(checkpoint.manifest["spaces"], spaces):
        name, old, new = difference
        raise CheckpointError(
            f"{checkpoint.folder} was made when the task had {name} = {old!r}, now it is {new!r}; the task's code "
            "has changed: restore it, or train anew"
        )


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Name and values of the first entry that differs and must not."""
    old, new = _flat(there), _flat(here)
    for name in sorted(old.keys() | new.keys()):
        if name not in FREE and old.get(name) != new.get(name):
            return name, old.get(name), new.get(name)
    return None


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dotted names; tuples as lists, as in JSON."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _tell(display: Display, checkpoint: Checkpoint, config: Config, old: Config) -> None:
    """Say from where the run goes on, and what may make its bits differ from an undisturbed one."""
    for text in checkpoint.damaged:
        display.warn(f"{text}; the checkpoint before it is used")
    done = checkpoint.manifest["iteration"] * config.env_steps_per_iteration
    display.message(f"going on after {done:,} of {config.steps:,} env steps")
    if config.steps != old.steps:
        display.message(f"schedules keep their horizon of {config.horizon_steps:,} env steps")
    if config.digest and checkpoint.manifest["digest"] is None:
        display.warn("the digest begins here; it is not that of a run with --digest from its start")
    now, then = {**versions(), **devices()}, {**checkpoint.manifest["versions"], **checkpoint.manifest["devices"]}
    changed = [f"{name} {then.get(name)} -> {now[name]}" for name in now if then.get(name) != now[name]]
    if changed:
        display.warn(f"results may differ in the last bits from an undisturbed run: {', '.join(changed)}")
