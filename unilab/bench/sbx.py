"""SBX as a contender, in an interpreter of its own, with as many threads as our learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unilab.bench.other import OtherProgram

PROGRAM = Path(__file__).with_name("sbx_program.py")
INSTALL = "python -m venv sbx && sbx/bin/pip install sbx-rl 'gymnasium[mujoco]', then --sbx-python sbx/bin/python"


class Sbx:
    """A process that does shares of SBX's work.

    Args:
        name: of the contender.
        python: interpreter that has sbx-rl.
        settings: what `sbx_program.py` reads.
        threads: threads of XLA's CPU pool.
        platform: JAX's platform, such as "cpu".

    Raises:
        ValueError: the interpreter cannot be started, or has no SBX.
    """

    def __init__(
        self, name: str, python: str, settings: Mapping[str, Any], threads: int, platform: str = "cpu"
    ) -> None:  # fmt: skip
        self.name = name
        variables = {"NPROC": str(threads), "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": platform}
        self._program = OtherProgram(PROGRAM, python, "--sbx-python", settings, INSTALL, variables)
        self.versions = self._program.versions

    def run(self) -> float:
        """One share of work; returns its rate, 1/s."""
        self._program.begin()
        return self._program.rate()

    def close(self) -> None:
        self._program.close()
