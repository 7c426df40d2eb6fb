"""SBX as a contender, in an interpreter of its own, with as many threads as our learner."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"NPROC": str(threads), "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": platform}
        # -P: the program must not find the modules beside it.
        command = [python, "-P", str(PROGRAM), json.dumps(dict(settings))]
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ValueError(f"--sbx-python {python} cannot be started ({error.strerror}); {INSTALL}") from None
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except BaseException:
            self.close()
            raise

    def run(self) -> float:
        """One share of work; returns its rate, 1/s."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        answer = self._answer()
        return float(answer["count"] / answer["seconds"])

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"SBX's process ended; what it said stands above. To install it: {INSTALL}")
        return json.loads(line)
