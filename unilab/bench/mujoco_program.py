"""Bare `mj_step` of another MuJoCo: a program for an interpreter that has it. It imports nothing of unilab.

    python mujoco_program.py SETTINGS_AS_JSON

It prints one line of JSON when it is ready. For each line that it reads it steps recorded states for a while, and
prints one line with their `count` and the `seconds` that `mj_step` took.
"""

import json
import sys
import time
from typing import Any

import mujoco
import numpy as np


def main() -> None:
    settings = json.loads(sys.argv[1])
    step_all = make_pass(settings)
    print(json.dumps({"versions": {"mujoco": mujoco.__version__}}), flush=True)
    for _ in sys.stdin:
        count, seconds, end = 0, 0.0, time.perf_counter() + settings["seconds"]
        while time.perf_counter() < end:
            steps, taken = step_all()
            count, seconds = count + steps, seconds + taken
        print(json.dumps({"count": count, "seconds": seconds}), flush=True)


def make_pass(settings: dict[str, Any]) -> Any:
    """A function that steps each recorded state once; returns how many, and the seconds in `mj_step`."""
    model = mujoco.MjModel.from_xml_string(settings["mjcf"])
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    data, substeps, clock = mujoco.MjData(model), settings["substeps"], time.perf_counter
    with np.load(settings["states"]) as arrays:
        rows = [dict(zip(arrays, values, strict=True)) for values in zip(*arrays.values(), strict=True)]

    def step_all() -> tuple[int, float]:
        seconds = 0.0
        for row in rows:
            for name, value in row.items():
                getattr(data, name)[:] = value
            start = clock()
            mujoco.mj_step(model, data, substeps)
            if settings["needs_rne_post"]:
                mujoco.mj_rnePostConstraint(model, data)
            seconds += clock() - start
        return len(rows), seconds

    return step_all


if __name__ == "__main__":
    main()
