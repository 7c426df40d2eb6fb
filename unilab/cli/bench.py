"""`unilab bench`: measure speed beside what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, help_text, require_at_least
from unilab.cli.runs import run_folder
from unilab.cli.tasks import config_and_own
from unilab.names import closest

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
    config, own = config_and_own(args, FLAGS, USAGE, "unilab bench --help")
    require_at_least(own, repeats=1)

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
