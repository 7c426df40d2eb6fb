"""Learning curves of the standard tasks beside published ones.

    unilab train HalfCheetah-v5 --algo sac --out runs/cheetah-sac
    python benchmarks/learning_curves.py runs/cheetah-sac runs/hopper-td3 --out docs/learning_curves

Adds what the run folders hold to OUT/curves.json, one entry for each task, algorithm and seed, prints a table, and
draws one picture per task: a line for each of our runs, and the published mean and standard deviation over seeds
(OUT/published.json), where there are any.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unilab.runtime.metrics import read_metrics, write_json

COLOURS = {"sac": "tab:blue", "td3": "tab:orange", "ppo": "tab:green"}


def curve(run: Path) -> dict[str, Any]:
    """Evaluations of a run, and what they cost."""
    config = json.loads((run / "config.json").read_text())
    rows = [row for row in read_metrics(run) if row.get("eval/return_mean") is not None]
    summary = json.loads((run / "summary.json").read_text())
    return {
        "task": config["task"]["source"],
        "algo": config["algo"]["name"],
        "seed": config["seed"],
        "env_steps": [row["env_steps"] for row in rows],
        "return_mean": [round(row["eval/return_mean"], 1) for row in rows],
        "return_std": [round(row["eval/return_std"], 1) for row in rows],
        "episodes": config["eval_episodes"],
        "wall_s": round(summary["wall_s"]),
        "versions": summary["versions"],
    }


def published_at(published: list[dict[str, Any]], entry: dict[str, Any]) -> str:
    """Published return at the number of env steps where a run ended, or at the largest one before."""
    for other in published:
        if (other["task"], other["algo"]) == (entry["task"], entry["algo"]):
            i = int(np.searchsorted(other["env_steps"], entry["env_steps"][-1] * 1.03, side="right")) - 1
            if i >= 0:
                steps, mean, std = (other[name][i] for name in ("env_steps", "return_mean", "return_std"))
                return f"{mean:,} +- {std:,} at {steps / 1e3:,.0f}k"
    return "-"


def draw(task: str, ours: list[dict[str, Any]], published: list[dict[str, Any]], path: Path) -> None:
    """One picture: our runs as lines, published curves as dashed lines with bands."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for other in published:
        steps, mean, std = (np.array(other[name]) for name in ("env_steps", "return_mean", "return_std"))
        colour = COLOURS[other["algo"]]
        axes.plot(steps / 1e3, mean, "--", color=colour, label=f"{other['algo'].upper()}, published")
        axes.fill_between(steps / 1e3, mean - std, mean + std, color=colour, alpha=0.12)
    for entry in ours:
        label = f"{entry['algo'].upper()}, unilab, seed {entry['seed']}"
        axes.plot(np.array(entry["env_steps"]) / 1e3, entry["return_mean"], color=COLOURS[entry["algo"]], label=label)
    axes.set(title=task, xlabel="env steps [thousands]", ylabel="evaluation return")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, required=True, help="folder of curves.json, published.json and pictures")
    args = parser.parse_args()
    path = args.out / "curves.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    for entry in map(curve, args.runs):
        entries = [e for e in entries if any(e[k] != entry[k] for k in ("task", "algo", "seed"))] + [entry]
    entries.sort(key=lambda entry: (entry["task"], entry["algo"], entry["seed"]))
    write_json(path, entries)
    published = json.loads((args.out / "published.json").read_text())["curves"]
    print("| task | algorithm | seed | env steps | return | published | wall time |\n|---|---|---|---|---|---|---|")
    for entry in entries:
        last = f"{entry['return_mean'][-1]:,.0f} +- {entry['return_std'][-1]:,.0f}"
        print(
            f"| {entry['task']} | {entry['algo']} | {entry['seed']} | {entry['env_steps'][-1]:,} | {last} "
            f"| {published_at(published, entry)} | {entry['wall_s']:,} s |"
        )
    for task in sorted({entry["task"] for entry in entries}):
        same = [[e for e in group if e["task"] == task] for group in (entries, published)]
        draw(task, *same, args.out / f"{task}.png")


if __name__ == "__main__":
    main()
