"""`unilab bench`: measure speed beside what the machine allows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unilab.algos.registry import ALGORITHMS
from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, help_text, parse, require_at_least
from unilab.cli.runs import run_folder
from unilab.cli.tasks import config_and_own
from unilab.envs.registry import TASKS
from unilab.names import closest

USAGE = "unilab bench VERB [flags]"


def _numbers(help: str) -> Flag:
    return Flag(tuple[int, ...], help, "N ...")


BACKENDS = Flag(tuple[str, ...], "what to compare (default: all)", "NAME ...")
TASK_NAMES = Flag(tuple[str, ...], "names from `unilab list` (default: HalfCheetah-v5)", "TASK ...")
ALGO = Flag(tuple[str, ...], f"of {', '.join(ALGORITHMS)}", "NAME ...")
NUM_ENVS = _numbers("numbers of envs (default: 256)")
WORKERS = _numbers("numbers of processes or threads (default: one per core)")
SECONDS = Flag(float, "how long each is stepped at a time (default: 1)", "S")
SBX_PYTHON = Flag(str, "interpreter that has sbx-rl, to measure SBX beside it", "PATH")
SBX_VEC_ENV = Flag(tuple[Literal["dummy", "subproc"], ...], "SBX's vector envs (default: dummy)", "NAME ...")
ENVPOOL_MUJOCO_PYTHON = Flag(str, "interpreter that has EnvPool's MuJoCo, for EnvPool's own limit", "PATH")
COMMON = {
    "repeats": Flag(int, "rounds that count; medians are reported (default: 5)", "N"),
    "json": Flag(str, "write the figures to this file", "FILE"),
    "plot": Flag(str, "draw the figures into this file, such as figures.png", "FILE"),
}
STEPPING = {"backends": BACKENDS, "tasks": TASK_NAMES, "num-envs": NUM_ENVS, "workers": WORKERS, "seconds": SECONDS}


@dataclass(frozen=True)
class Measurement:
    """A verb of `unilab bench`: its line in the help, the function that measures, and its flags."""

    summary: str
    target: str
    flags: Mapping[str, Flag]


MEASUREMENTS: dict[str, Measurement] = {
    "physics": Measurement("raw stepping of the physics back ends", "unilab.bench.physics:bench_physics", STEPPING),
    "env": Measurement(
        "whole env steps without a policy, beside Gymnasium's and EnvPool's", "unilab.bench.env:bench_env",
        {**STEPPING, "envpool-mujoco-python": ENVPOOL_MUJOCO_PYTHON},
    ),
    "collect": Measurement(
        "rollouts collected by the workers with a policy, beside the very same physics alone",
        "unilab.bench.collect:bench_collect",
        {"run": Flag(str, "take the policy of this run (default: an untrained one)", "RUN")},
    ),
    "learner": Measurement(
        "gradient steps per second on each JAX device, beside SBX's",
        "unilab.bench.learner:bench_learner",
        {
            "algo": ALGO, "tasks": TASK_NAMES, "num-envs": _numbers("numbers of envs (default: 8)"),
            "updates-per-env-step": _numbers("of SAC and TD3 (default: 1 8)"),
            "sbx-python": SBX_PYTHON,
        },
    ),
    "train": Measurement(
        "collecting and learning together, beside SBX's, or the time to a target",
        "unilab.bench.train:bench_train",
        {
            "algo": ALGO, "tasks": TASK_NAMES,
            "num-envs": _numbers("numbers of envs (default: 32; to a target: the task's)"),
            "workers": WORKERS, "target": Flag(float, "train until an evaluation has this return", "RETURN"),
            "steps": Flag(int, "give a target up after so many env steps", "N"), "sbx-python": SBX_PYTHON,
            "sbx-vec-env": SBX_VEC_ENV,
        },
    ),
    "scaling": Measurement(
        "collecting with 1, 2, ... workers, and what the runtime itself costs at 16 and 64",
        "unilab.bench.scaling:bench_scaling",
        {
            "tasks": TASK_NAMES, "num-envs": _numbers("numbers of envs (default: 1024)"),
            "workers": _numbers("numbers of real workers (default: 1 2 4 ... up to the cores)"),
            "stub-workers": _numbers("numbers of workers that only sleep (default: 16 64)"),
            "physics-us": Flag(float, "microseconds of physics per env step that they sleep (default: measured)", "US"),
            "seconds": SECONDS,
        },
    ),
    "incline": Measurement(
        "blocks on slopes: when they slide and how fast, against the law of friction",
        "unilab.bench.incline:bench_incline",
        {"backends": BACKENDS},
    ),
}  # fmt: skip


def run(args: Sequence[str]) -> int:
    """The verb `bench`."""
    if not args or args[0] in HELP:
        print(_overview())
        return 0
    verb, rest = args[0], args[1:]
    if verb not in MEASUREMENTS:
        raise UsageError(f"unknown measurement {verb!r}; {closest(verb, MEASUREMENTS)}")
    measurement = MEASUREMENTS[verb]
    flags = {**measurement.flags, **({} if verb == "incline" else {"repeats": COMMON["repeats"]})}
    flags |= {name: COMMON[name] for name in ("json", "plot")}
    if set(rest) & set(HELP):
        print(help_text(_usage(verb), f"Measure {measurement.summary}.{_more(verb)}", flags))
        return 0
    options = _collect_options(rest, flags) if verb == "collect" else _options(verb, rest, flags)
    files: dict[str, str] = {name: options.pop(name) for name in ("json", "plot") if name in options}
    for path in files.values():
        _require_folder(path)
    _measure(measurement, options, files)
    return 0


def _measure(measurement: Measurement, options: Mapping[str, Any], files: Mapping[str, str]) -> None:
    from unilab.bench.plot import plot
    from unilab.bench.result import table
    from unilab.runtime.metrics import write_json

    module, _, name = measurement.target.partition(":")
    result = getattr(importlib.import_module(module), name)(tell=_tell, **options)
    print(table(result))
    if "json" in files:
        write_json(Path(files["json"]), result)
    if "plot" in files:
        plot(result, Path(files["plot"]))


def _options(verb: str, args: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Keyword arguments of a measurement.

    Raises:
        UsageError: a flag, task or algorithm is unknown, or a number too small.
    """
    arguments = parse(args, flags, f"unilab bench {verb} --help")
    if arguments.positional:
        given = arguments.positional[0]
        hint = f"; did you mean --tasks {given}?" if given in TASKS and "tasks" in flags else ""
        raise UsageError(f"unexpected argument {given!r}{hint or f'; usage: {_usage(verb)}'}")
    for flag, known in (("tasks", TASKS), ("algo", ALGORITHMS)):
        for name in arguments.values.get(flag, ()):
            if name not in known:
                raise UsageError(f"--{flag} is {name!r}; {closest(name, known)}")
    _require_positive(arguments.values)
    return {name.replace("-", "_"): value for name, value in arguments.values.items()}


def _collect_options(args: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    config, own = config_and_own(args, flags, _usage("collect"), "unilab bench collect --help")
    require_at_least(own, repeats=1)
    run = {"run": run_folder(own.pop("run"))} if "run" in own else {}
    return {"config": config, **run, **own}


def _require_positive(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int | float) and name != "target" and each <= 0:
                raise UsageError(f"--{name} is {each}; allowed: greater than 0")


def _require_folder(path: str) -> None:
    """Complain before the measurement, not after it."""
    if not Path(path).resolve().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {Path(path).parent}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _usage(verb: str) -> str:
    return f"unilab bench {verb} {'TASK ' if verb == 'collect' else ''}[flags]"


def _more(verb: str) -> str:
    if verb != "collect":
        return ""
    return "\nEvery setting of `unilab train TASK` is a flag too, such as --num-envs 1024 --task.physics-dt 0.004."


def _overview() -> str:
    width = max(map(len, MEASUREMENTS))
    verbs = "\n".join(f"  {name:<{width}}  {each.summary}" for name, each in MEASUREMENTS.items())
    return f"""usage: {USAGE}

What is compared is measured in turn, A B A B: compare ratios rather than rates. VERB is one of

{verbs}

`unilab bench VERB --help` shows the flags of each; all take --json FILE and --plot FILE."""
