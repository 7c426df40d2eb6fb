"""Train for a while with a worker killed every minute, and watch what parent and workers hold.

    python benchmarks/long_run.py --minutes 30 --out docs/long_run.png

Prints a table and draws a plot of memory, descriptors and shared memory over time; fails if any of them grows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from matplotlib.figure import Figure

SAMPLE_S = 5.0
ALLOWED_GROWTH = {"parent_mib": 40.0, "workers_mib": 60.0, "parent_fds": 2.0, "workers_fds": 2.0, "shared_mib": 1.0}


def sample(parent: psutil.Process) -> dict[str, float] | None:
    """What parent and workers hold now, or None while a worker is being replaced."""
    try:
        workers = [child for child in parent.children() if "unilab.runtime.worker" in " ".join(child.cmdline())]
        shared = sum(
            os.stat(f"/proc/{parent.pid}/fd/{fd}").st_size
            for fd in os.listdir(f"/proc/{parent.pid}/fd")
            if os.readlink(f"/proc/{parent.pid}/fd/{fd}").startswith("/memfd:unilab")
        )
        return {
            "parent_mib": parent.memory_full_info().uss / 2**20,
            "workers_mib": sum(worker.memory_full_info().uss for worker in workers) / 2**20,
            "parent_fds": parent.num_fds(),
            "workers_fds": sum(worker.num_fds() for worker in workers),
            "shared_mib": shared / 2**20,
            "workers": len(workers),
        }
    except (psutil.Error, OSError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartpoleSwingup")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="picture to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "unilab", "train", args.task, "--steps", "1e12", "--digest", "--eval-every"]
        command += ["2e6", "--workers", str(args.workers), "--out", str(run), "--checkpoint-every-s", "30"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        times, rows, kills = watch(psutil.Process(process.pid), args)
        process.send_signal(signal.SIGTERM)
        process.wait()
        summary = json.loads((run / "summary.json").read_text())
    print(f"{kills} workers killed, {summary['replaced_workers']} replaced, {summary['env_steps']:,} env steps")
    is_sound = summary["replaced_workers"] >= kills > 0
    # Maxima, since a young worker holds less: means would tell how fast the machine starts new ones.
    third = np.minimum(np.array(times) // (args.minutes * 20), 2)
    for name, allowed in ALLOWED_GROWTH.items():
        values = np.array([row[name] for row in rows])
        middle, last = (values[third == part].max() for part in (1, 2))
        is_sound &= bool(last - middle <= allowed)
        print(
            f"{name:<14} largest in the middle third {middle:>7.1f}, in the last {last:>7.1f}; allowed {allowed:>+6.1f}"
        )
    if args.out:
        plot(times, rows, args)
    return 0 if is_sound else 1


def watch(parent: psutil.Process, args: argparse.Namespace) -> tuple[list[float], list[dict[str, float]], int]:
    """Sample until the time is over, killing a worker now and then."""
    start, next_kill, kills = time.monotonic(), args.kill_every, 0
    chooser = random.Random(0)
    times: list[float] = []
    rows: list[dict[str, float]] = []
    while (now := time.monotonic() - start) < args.minutes * 60:
        row = sample(parent)
        if row is not None and row["workers"] == args.workers:
            times.append(now)
            rows.append(row)
        if now > next_kill:
            workers = [child for child in parent.children() if "unilab.runtime.worker" in " ".join(child.cmdline())]
            chooser.choice(workers).kill()
            kills += 1
            next_kill += args.kill_every
        time.sleep(SAMPLE_S)
    return times, rows, kills


def plot(times: list[float], rows: list[dict[str, float]], args: argparse.Namespace) -> None:
    figure = Figure(figsize=(8, 6), layout="constrained")
    memory, descriptors = figure.subplots(2, 1, sharex=True)
    minutes = np.array(times) / 60
    for axes, names in (
        (memory, ("parent_mib", "workers_mib", "shared_mib")),
        (descriptors, ("parent_fds", "workers_fds")),
    ):
        for name in names:
            axes.plot(minutes, [row[name] for row in rows], label=name.replace("_mib", "").replace("_fds", ""))
        axes.legend()
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    memory.set_ylabel("memory of their own [MiB]")
    descriptors.set_ylabel("file descriptors")
    descriptors.set_xlabel(f"minutes; a worker is killed every {args.kill_every:g} s")
    figure.suptitle(f"{args.task}, {args.workers} workers")
    figure.savefig(args.out, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
