"""The race to walk: our Go1 beside the reference program's published points.

    unilab train Go1JoystickFlat --out runs/defaults
    unilab train Go1JoystickFlat --out runs/reference --task.physics-dt 0.004 --task.no-noise --task.no-pushes \\
        --task.mass-scale 0 --task.gain-scale 0 --task.joint-offset 0 --num-envs 1024
    python benchmarks/race.py defaults=runs/defaults reference-settings=runs/reference --out docs/race.png

A level is a pair of scores exp(-error^2 / 0.25) for linear and yaw velocity, with exploration noise, as a mean over all
env steps of a rollout. It is reached when both scores, averaged over the last ten rollouts, are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from unilab.runtime.metrics import read_metrics

# The reference: PyTorch + C++, same robot, 2 cores: (linear, yaw) score, env steps in millions, seconds.
REFERENCE = (((0.51, 0.73), 3.9, 294), ((0.82, 0.81), 6.4, 478), ((0.87, 0.88), 8.9, 677), ((0.90, 0.91), 9.8, 756))
SMOOTHED = 10  # rollouts


def curve(run: Path) -> dict[str, np.ndarray]:
    """Env steps [M], wall time [s] and the smoothed scores of a run."""
    rows = [row for row in read_metrics(run) if row.get("metric/tracking_lin") is not None]
    kernel = np.ones(SMOOTHED) / SMOOTHED
    scores = {name: np.array([row[f"metric/tracking_{name}"] for row in rows]) for name in ("lin", "yaw")}
    smooth = {name: np.convolve(values, kernel, "valid") for name, values in scores.items()}
    steps, wall = (np.array([row[key] for row in rows])[SMOOTHED - 1 :] for key in ("env_steps", "wall_s"))
    return {"steps": steps / 1e6, "wall": wall, **smooth}


def reached(data: dict[str, np.ndarray], level: tuple[float, float]) -> tuple[float, float] | None:
    """Env steps [M] and seconds until both scores were reached."""
    there = np.flatnonzero((data["lin"] >= level[0]) & (data["yaw"] >= level[1]))
    return (float(data["steps"][there[0]]), float(data["wall"][there[0]])) if there.size else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="label=run folder")
    parser.add_argument("--out", type=Path, help="picture to write")
    args = parser.parse_args()
    curves = {label: curve(Path(folder)) for label, _, folder in (item.partition("=") for item in args.runs)}

    print(f"{'level lin/yaw':<14}{'reference':>20}" + "".join(f"{label:>28}" for label in curves))
    for level, steps, wall in REFERENCE:
        cells = f"{level[0]:.2f}/{level[1]:.2f}".ljust(14) + f"{steps:.1f}M {wall} s".rjust(20)
        for data in curves.values():
            hit = reached(data, level)
            text = "not reached" if hit is None else f"{hit[0]:.1f}M {hit[1]:.0f} s ({hit[1] / wall:.2f} x)"
            cells += text.rjust(28)
        print(cells)
    for label, _, folder in (item.partition("=") for item in args.runs):
        summary = json.loads((Path(folder) / "summary.json").read_text())
        print(f"{label}: {summary['env_steps_per_s']:,.0f} env steps/s end to end, evaluations and start included")
    if args.out is not None:
        draw(curves, args.out)


def draw(curves: dict[str, dict[str, np.ndarray]], out: Path) -> None:
    """Scores over wall time, ours as lines and the reference's as crosses."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, position, title in zip(
        panels, ("lin", "yaw"), (0, 1), ("linear velocity", "yaw rate"), strict=True
    ):
        for label, data in curves.items():
            axes.plot(data["wall"], data[name], label=label)
        points = [(wall, level[position]) for level, _, wall in REFERENCE]
        axes.plot(*zip(*points, strict=True), "kx--", linewidth=0.8, label="reference")
        axes.set(title=f"{title} tracking, exp(-error²/0.25)", xlabel="wall time [s]", ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("score with exploration noise")
    panels[1].legend(loc="lower right")
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
