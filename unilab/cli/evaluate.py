"""`unilab eval`: measure a trained policy on fresh episodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from unilab.cli.flags import HELP, Flag, help_text, one_positional, parse, require_at_least
from unilab.cli.runs import POLICY_FLAGS, figures_table, run_folder
from unilab.envs.physics.registry import PHYSICS

USAGE = "unilab eval RUN [flags]"
FLAGS = {
    "episodes": Flag(int, "number of episodes, each in an env of its own (default: 256)", "N"),
    "seed": Flag(int, "seed of the episodes (default: one that the training never used)", "N"),
    **POLICY_FLAGS,
    "physics": Flag(str, f"the physics back end: {', '.join(PHYSICS)} (default: that of the training)", "NAME"),
    "workers": Flag(int, "worker processes; 0 runs in this one (default: one per core)", "N"),
    "json": Flag(bool, "print one JSON object"),
}
ABOUT = """Play whole episodes with the policy of a run, without exploration, and print their mean return and the task's
own figures. RUN is a folder that `unilab train` left."""


def run(args: Sequence[str]) -> int:
    """The verb `eval`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, FLAGS))
        return 0
    arguments = parse(args, FLAGS, "unilab eval --help")
    require_at_least(arguments.values, episodes=1, seed=0, workers=0)
    folder = run_folder(one_positional(arguments, "run", USAGE))
    values = {name.replace("-", "_"): value for name, value in arguments.values.items()}
    as_json, fine = values.pop("json", False), values.pop("fine_physics", False)

    from unilab.runtime.evaluate import evaluate
    from unilab.runtime.metrics import to_plain

    episodes = values.setdefault("episodes", 256)
    print(f"playing {episodes} episodes ...", file=sys.stderr, flush=True)
    figures = evaluate(folder, fine=fine, **values)
    if as_json:
        print(json.dumps(to_plain(figures)))
        return 0
    accuracy = "fine physics" if figures.pop("fine_physics") else "the training's physics step"
    which = values.get("checkpoint", "best")
    print(f"{folder}, {which} checkpoint (iteration {figures.pop('checkpoint')})")
    print(f"{figures.pop('episodes')} episodes, seed {figures.pop('seed')}, {accuracy} ({figures.pop('physics')})")
    print(figures_table(figures))
    return 0
