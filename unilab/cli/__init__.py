"""The command `unilab`. Nothing here imports jax or mujoco, so that help and lists answer at once."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unilab.cli.errors import UsageError, report
from unilab.names import closest


@dataclass(frozen=True)
class Verb:
    """A command of `unilab`: its line in the help, and the module with its `run(args) -> exit code`."""

    summary: str
    module: str
    usage: str

    def run(self, args: Sequence[str]) -> int:
        """Import the module and do what the command line says."""
        function: Callable[[Sequence[str]], int] = importlib.import_module(self.module).run
        return function(args)


VERBS: dict[str, Verb] = {
    "list": Verb("the tasks, algorithms and physics there are", "unilab.cli.listing", "list"),
    "train": Verb("train a policy on a task", "unilab.cli.train", "train TASK"),
    "resume": Verb("go on with a run, as if it had never stopped", "unilab.cli.resume", "resume RUN"),
    "eval": Verb("measure a trained policy on fresh episodes", "unilab.cli.evaluate", "eval RUN"),
    "video": Verb("film a trained policy", "unilab.cli.video", "video RUN"),
    "determinism": Verb("prove that a run depends on its seed alone", "unilab.cli.determinism", "determinism TASK"),
    "replay": Verb("look again at an env that became unstable", "unilab.cli.replay", "replay FILE"),
    "bench": Verb("measure speed beside what the machine allows", "unilab.cli.bench", "bench VERB"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code: 0, 1 (it failed), 2 (what was asked cannot be), 130 (Ctrl-C)."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough, as in `unilab list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, Exception) as error:
        return report(error)


def _dispatch(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if args[0] == "--version":
        import unilab

        print(unilab.__version__)
        return 0
    if args[0] not in VERBS:
        raise UsageError(f"unknown command {args[0]!r}; {closest(args[0], VERBS)}")
    return VERBS[args[0]].run(args[1:])


def help_text() -> str:
    """What `unilab --help` shows."""
    width = max(len(verb.usage) for verb in VERBS.values())
    verbs = "\n".join(f"  unilab {verb.usage:<{width}}  {verb.summary}" for verb in VERBS.values())
    return f"""unilab trains robot policies with MuJoCo on the CPU's cores and a JAX learner.

{verbs}

A TASK is a name from `unilab list` or your own file.py:Class; a RUN is a folder that `unilab train` left.
`unilab train --help` and so on tell more; `unilab train TASK --help` shows every setting. `unilab --version`."""
