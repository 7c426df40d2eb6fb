"""What the verbs about a task share: from a command line to a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unilab.algos.registry import ALGORITHMS
from unilab.cli.errors import UsageError
from unilab.cli.flags import Flag, flags_of, parse
from unilab.envs.registry import TASKS
from unilab.names import closest

if TYPE_CHECKING:
    from unilab.config import Config

ALGO_FLAG = Flag(str, f"the algorithm: {', '.join(ALGORITHMS)} (default: ppo)", "NAME")


def split_task(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task and the other arguments: what looks like a task, else what comes first unless it is a flag."""
    for position, arg in enumerate(args):
        if arg in TASKS or ".py:" in arg or (position == 0 and not arg.startswith("-")):
            return arg, [*args[:position], *args[position + 1 :]]
    return None, list(args)


def config_and_own(args: Sequence[str], own: Mapping[str, Flag], usage: str, see: str) -> tuple[Config, dict[str, Any]]:
    """The configuration that "TASK [flags]" asks for, and the values of the command's `own` flags.

    Args:
        own: the command's flags; "algo" among them if one may be chosen.
        usage: line that shows how the command is used.
        see: command that shows the help.

    Raises:
        UsageError: something is missing, unknown or not allowed.
    """
    task_name, rest = split_task(args)
    if task_name is None:
        raise UsageError(f"which task? usage: {usage}; TASK is one of {', '.join(TASKS)}, or file.py:Class")
    defaults = default_config(task_name, rest)
    flags = {**own, **flags_of(defaults)}
    arguments = parse(rest, flags, see.replace("TASK", task_name))
    if arguments.positional:
        raise UsageError(f"unexpected argument {arguments.positional[0]!r}; usage: {usage}")
    mine = {name: arguments.values.pop(name) for name in own if name in arguments.values}
    overrides = {flags[name].field: value for name, value in arguments.values.items()}
    return _config(task_name, mine.get("algo", "ppo"), overrides), mine


def default_config(task_name: str, rest: Sequence[str]) -> Config:
    """The task's own configuration for the algorithm that the other arguments name.

    Raises:
        UsageError: the task or the algorithm is unknown, or the task refuses its own settings.
    """
    algo = _peek(rest, "algo") or "ppo"
    if algo not in ALGORITHMS and not algo.startswith("-"):
        raise UsageError(f"unknown algorithm {algo!r}; {closest(algo, ALGORITHMS)}")

    from unilab.runtime.xla import set_deterministic, set_learner_threads

    # The first array starts XLA, and a task's file may make arrays when it is imported.
    threads = _peek(rest, "learner-threads") or ""
    set_learner_threads(int(threads) if threads.isdecimal() and int(threads) > 0 else None)
    if "--deterministic" in rest or (_peek(rest, "deterministic") or "").lower() == "true":
        set_deterministic()
    return _config(task_name, algo, {})


def _peek(args: Sequence[str], name: str) -> str | None:
    """The text that will be the value of a flag, which decides how the rest is to be read."""
    found = None
    for position, arg in enumerate(args):
        spelled, equals, attached = arg.partition("=")
        if spelled.startswith("--") and spelled.removeprefix("--").replace("_", "-") == name:
            found = attached if equals else next(iter(args[position + 1 :]), None)
    return found


def _config(task_name: str, algo: str, overrides: Mapping[str, Any]) -> Config:
    from unilab.config import make_config
    from unilab.envs.registry import find_task

    task_class = find_task(task_name)
    try:
        return make_config(task_class(), algo, **overrides)
    except ValueError as error:  # also from a task's own checks
        raise UsageError(str(error)) from error
