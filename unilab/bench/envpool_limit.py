"""The physical limit of EnvPool: bare `mj_step` of the MuJoCo that it brings along."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from unilab.bench.measure import close_all
from unilab.bench.other import OtherProgram
from unilab.bench.recording import Recording

ENVPOOL_LIMIT = "envpool-limit"
PROGRAM = Path(__file__).with_name("mujoco_program.py")
INSTALL = "python -m venv old && old/bin/pip install mujoco==3.6.0, then --envpool-mujoco-python old/bin/python"
STATE = {"qpos": "qpos", "qvel": "qvel", "warmstart": "qacc_warmstart", "ctrl": "ctrl"}
"""What is recorded and set again: name of the part, and of the array of an MjData."""


class EnvpoolLimit:
    """Processes that step a recording's states with another MuJoCo, as `RawStepping` does with this one.

    Args:
        python: interpreter that has EnvPool's version of MuJoCo.
        recording: states and controls.
        num_envs: envs of all workers together.
        workers: processes.
        seconds: how long one `run` takes.

    Attributes:
        settings: the version of MuJoCo, for the record.

    Raises:
        ValueError: the interpreter cannot be started, or has no MuJoCo.
    """

    name = ENVPOOL_LIMIT

    def __init__(self, python: str, recording: Recording, num_envs: int, workers: int, seconds: float) -> None:
        self.num_envs, self.workers = num_envs, workers
        arrays = {target: np.concatenate(recording.part(name)) for name, target in STATE.items()}
        self._programs: list[OtherProgram] = []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "states.npz"
            np.savez(path, allow_pickle=False, **arrays)
            settings = {
                "mjcf": recording.env.mjcf, "states": str(path), "substeps": recording.env.substeps,
                "needs_rne_post": recording.needs_rne_post, "seconds": seconds,
            }  # fmt: skip
            try:
                for _ in range(max(workers, 1)):
                    program = OtherProgram(PROGRAM, python, "--envpool-mujoco-python", settings, INSTALL)
                    self._programs.append(program)
            except BaseException:
                self.close()
                raise
        self.settings = {"mujoco": self._programs[0].versions["mujoco"]}

    def run(self) -> float:
        for program in self._programs:
            program.begin()
        return sum(program.rate() for program in self._programs)

    def close(self) -> None:
        close_all(self._programs)
