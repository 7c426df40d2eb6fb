"""`unilab list`: the tasks and algorithms there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from unilab.algos.registry import ALGORITHMS
from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, help_text, parse
from unilab.envs.registry import TASKS

USAGE = "unilab list [--json]"
FLAGS = {"json": Flag(bool, "print one JSON object: descriptions of tasks and algorithms by name")}


def run(args: Sequence[str]) -> int:
    """The verb `list`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, "The tasks and algorithms there are.", FLAGS))
        return 0
    arguments = parse(args, FLAGS, "unilab list --help")
    if arguments.positional:
        raise UsageError(f"unexpected argument {arguments.positional[0]!r}; usage: {USAGE}")
    tasks = {name: entry.description for name, entry in TASKS.items()}
    algorithms = {name: entry.description for name, entry in ALGORITHMS.items()}
    if arguments.values.get("json"):
        print(json.dumps({"tasks": tasks, "algorithms": algorithms}, indent=2))
        return 0
    width = max(map(len, [*tasks, *algorithms])) + 2
    print(f"Tasks\n{_lines(tasks, width)}\n\nAlgorithms\n{_lines(algorithms, width)}")
    print("\nA task of your own: file.py:Class. To begin: unilab train CartpoleSwingup")
    return 0


def _lines(descriptions: Mapping[str, str], width: int) -> str:
    return "\n".join(f"  {name:<{width}}{text}" for name, text in descriptions.items())
