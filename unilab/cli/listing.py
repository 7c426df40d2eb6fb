"""`unilab list`: the tasks, algorithms and physics back ends there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from unilab.algos.registry import ALGORITHMS
from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, help_text, parse
from unilab.envs.physics.registry import PHYSICS
from unilab.envs.registry import TASKS

USAGE = "unilab list [--json]"
FLAGS = {"json": Flag(bool, "print one JSON object: descriptions of tasks, algorithms and physics by name")}


def run(args: Sequence[str]) -> int:
    """The verb `list`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, "The tasks, algorithms and physics back ends there are.", FLAGS))
        return 0
    arguments = parse(args, FLAGS, "unilab list --help")
    if arguments.positional:
        raise UsageError(f"unexpected argument {arguments.positional[0]!r}; usage: {USAGE}")
    tasks = {name: entry.description for name, entry in TASKS.items()}
    algorithms = {name: entry.description for name, entry in ALGORITHMS.items()}
    physics = {name: entry.description for name, entry in PHYSICS.items()}
    if arguments.values.get("json"):
        print(json.dumps({"tasks": tasks, "algorithms": algorithms, "physics": physics}, indent=2))
        return 0
    width = max(map(len, [*tasks, *algorithms, *physics])) + 2
    for name, entry in PHYSICS.items():
        physics[name] += "" if entry.is_installed else f" [not installed: {entry.install_command}]"
    print(f"Tasks\n{_lines(tasks, width)}\n\nAlgorithms\n{_lines(algorithms, width)}\n\nPhysics")
    print(_lines(physics, width))
    print("\nA task of your own: file.py:Class. To begin: unilab train CartpoleSwingup")
    return 0


def _lines(descriptions: Mapping[str, str], width: int) -> str:
    return "\n".join(f"  {name:<{width}}{text}" for name, text in descriptions.items())
