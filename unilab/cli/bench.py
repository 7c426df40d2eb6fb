"""`unilab bench`: measure speed beside what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, closest, flags_of, help_text, one_positional, parse, require_at_least
from unilab.cli.runs import run_folder

MEASUREMENTS = {"collect": "env steps per second that the workers collect, beside the physical limit of the same run"}
USAGE = "unilab bench collect TASK [flags]"
FLAGS = {
    "run": Flag(
        str, "take the policy of this run (default: an untrained one, under which a robot mostly falls)", "RUN"
    ),
    "repeats": Flag(int, "rollouts that are measured (default: 5)", "N"),
    "json": Flag(str, "write the figures to this file", "FILE"),
}
ABOUT = """Collect rollouts, then replay the very same physics with nothing but `mj_step` timed, in turn; print medians.
Every setting of `unilab train TASK` is a flag too, such as --num-envs 1024 --workers 2 --task.physics-dt 0.004."""


def run(args: Sequence[str]) -> int:
    """The verb `bench`."""
    if not args or set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, FLAGS))
        return 0
    if args[0] not in MEASUREMENTS:
        raise UsageError(f"unknown measurement {args[0]!r}; {closest(args[0], MEASUREMENTS)}")
    return _collect(args[1:])


def _collect(args: Sequence[str]) -> int:
    from unilab.runtime.threads import set_learner_threads

    set_learner_threads(None)
    from unilab.config import make_config
    from unilab.envs.registry import find_task

    task_name = next((arg for arg in args if not arg.startswith("-")), None)
    if task_name is None:
        raise UsageError(f"which task? usage: {USAGE}")
    defaults = make_config(find_task(task_name)())
    flags = {**FLAGS, **flags_of(defaults)}
    arguments = parse(args, flags, "unilab bench --help")
    one_positional(arguments, "task", USAGE)
    require_at_least(arguments, repeats=1)
    own = {name: arguments.values.pop(name) for name in FLAGS if name in arguments.values}
    overrides: dict[str, Any] = {flags[name].field: value for name, value in arguments.values.items()}
    try:
        config = make_config(find_task(task_name)(), **overrides)
    except ValueError as error:
        raise UsageError(str(error)) from error

    from unilab.bench.collect import bench_collect
    from unilab.runtime.metrics import write_json

    folder = run_folder(own["run"]) if "run" in own else None
    figures = bench_collect(config, folder, own.get("repeats", 5))
    substeps = f"{figures['substeps']} x {1000 * figures['physics_dt']:g} ms"
    varied = "randomised models" if figures["randomised"] else "one model"
    print(
        f"{figures['task']}, {figures['num_envs']} envs in shards of {figures['shard_size']}, "
        f"{figures['workers']} workers, {substeps}, {varied}, policy: {figures['policy']}"
    )
    print(f"  collected        {figures['env_steps_per_s']:>10,.0f} env steps/s")
    print(f"  physical limit   {figures['limit_env_steps_per_s']:>10,.0f} env steps/s")
    print(f"  ratio            {figures['ratio']:>10.3f}")
    print(f"  overhead         {figures['overhead_us_per_env_step']:>10.1f} us per env step")
    if "json" in own:
        write_json(Path(own["json"]), figures)
    return 0
