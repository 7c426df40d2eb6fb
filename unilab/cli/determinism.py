"""`unilab determinism`: prove that nothing but the configuration and the seed decides a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from unilab.cli.errors import FAILED, UsageError
from unilab.cli.flags import HELP, Flag, help_text
from unilab.cli.tasks import ALGO_FLAG, config_and_own

USAGE = "unilab determinism TASK [flags]"
FLAGS = {
    "algo": ALGO_FLAG,
    "iterations": Flag(int, "passes of the main loop in each training (default: 5)", "N"),
    "json": Flag(bool, "print one JSON object"),
}
SET_HERE = ("workers", "lag", "steps", "job-order", "eval-every", "eval-episodes")
ABOUT = """Train for a few iterations under every condition that must not matter, and compare all rollouts and weights
bit for bit; then measure how far equal simulations drift apart. Exit code 1 if anything differs.
Every setting of `unilab train TASK` is a flag too."""


def run(args: Sequence[str]) -> int:
    """The verb `determinism`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, FLAGS))
        return 0
    config, own = config_and_own(args, FLAGS, USAGE, "unilab determinism --help")
    for flag in SET_HERE:
        if any(arg.partition("=")[0].replace("_", "-") == f"--{flag}" for arg in args):
            raise UsageError(f"--{flag} cannot be chosen: this command goes through its values, or needs its own")

    from unilab.runtime.determinism import Row, determinism, variability
    from unilab.runtime.metrics import machine, versions
    from unilab.runtime.xla import set_learner_threads

    shard_size = config.resolved().shard_size
    assert shard_size is not None
    stream = sys.stderr if own.get("json") else sys.stdout

    def verdict(row: Row) -> str:
        if row.name == row.reference:
            return "reference"
        if row.difference is None:
            return "equal"
        shard = "" if row.difference.env is None else f", shard {row.difference.env // shard_size}"
        return f"DIFFERS from {row.reference!r}: {row.difference}{shard}"

    def show(row: Row) -> None:
        print(f"{row.name:<28}{row.digest:<18}{verdict(row)}", file=stream, flush=True)

    threads = set_learner_threads(config.learner_threads)
    size = f"{config.num_envs} envs in shards of {shard_size}, {threads} learner threads"
    print(f"{type(config.task).__name__}, {config.algo_name}, {size}", file=stream, flush=True)
    rows = determinism(config, own.get("iterations", 5), show)
    drift = variability(config.task)
    print(f"largest distance of equal simulations: {drift['between_runs']:g} between runs, "
          f"{drift['between_envs']:g} between envs", file=stream)  # fmt: skip
    is_exact = all(row.is_equal for row in rows) and not any(drift.values())
    if own.get("json"):
        table = [
            {"name": row.name, "digest": row.digest, "equal": row.is_equal, "verdict": verdict(row)} for row in rows
        ]
        facts = {"task": type(config.task).__name__, "algo": config.algo_name, "learner_threads": threads}
        print(json.dumps({**facts, "exact": is_exact, "rows": table, "variability": drift, "machine": machine(),
                          "versions": versions()}))  # fmt: skip
    return 0 if is_exact else FAILED
