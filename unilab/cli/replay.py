"""`unilab replay`: look again at the control step in which an env became unstable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from unilab.cli.flags import HELP, help_text, one_positional, parse

USAGE = "unilab replay FILE"
ABOUT = """Repeat the control step in which an env became unstable, one physics step a line. FILE is one of
RUN/unstable/*.npz."""


def run(args: Sequence[str]) -> int:
    """The verb `replay`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, {}))
        return 0
    path = Path(one_positional(parse(args, {}, "unilab replay --help"), "file", USAGE))

    from unilab.runtime.unstable import UnstableEnv, replay

    env = UnstableEnv.load(path)
    facts = env.facts
    print(
        f"{facts['task']}, seed {facts['seed']}: rollout {facts['rollout']}, step {facts['step']}, env {facts['env']}"
    )
    print(f"action  {_numbers(env.action)}\nctrl    {_numbers(env.ctrl)}\n")
    print(f"{'physics step':>12}{'max |qpos|':>13}{'max |qvel|':>13}{'max |qacc|':>13}{'contacts':>10}  fastest joint")
    for row in replay(env):
        figures = "".join(f"{value:>13.4g}" for value in (row.max_qpos, row.max_qvel, row.max_qacc))
        warnings = f"  <- {', '.join(row.warnings)}" if row.warnings else ""
        print(f"{row.number:>12}{figures}{row.contacts:>10}  {row.fastest}{warnings}")
    causes = facts["causes"]
    if causes == ["physics"]:
        print("\nThe physics broke. Common causes: a long physics step, stiff contacts or gains, huge controls.")
    else:
        broken = ", ".join(causes) or "the sum of the rewards"
        print(f"\nThe physics is finite; what the task computed is not: {broken}")
    return 0


def _numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
