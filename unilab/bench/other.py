"""Programs in other interpreters, for what does not fit into this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class OtherProgram:
    """A process that prints a line of JSON with its `versions`, and one with `count` and `seconds` for each share.

    Args:
        program: the file to run; it imports nothing of unilab.
        python: the interpreter.
        flag: the option that names the interpreter, for errors.
        settings: what the program reads, as JSON, from its command line.
        install: how to get an interpreter that can run it.
        variables: of its environment, beside those of this process.

    Attributes:
        versions: of its packages, by name.

    Raises:
        ValueError: the interpreter cannot be started, or the program ended.
    """

    def __init__(
        self, program: Path, python: str, flag: str, settings: Mapping[str, Any], install: str,
        variables: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | dict(variables)
        command = [python, "-P", str(program), json.dumps(dict(settings))]  # -P: not the modules beside the program
        self._what, self._install = f"{program.name} on {python}", install
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ValueError(f"{flag} {python} cannot be started ({error.strerror}); {install}") from None
        try:
            self.versions: dict[str, str] = self._read()["versions"]
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Let it do a share of work."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)

    def rate(self) -> float:
        """Wait for the share; returns its rate, 1/s."""
        answer = self._read()
        return float(answer["count"] / answer["seconds"])

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"{self._what} ended; what it said stands above. {self._install}")
        return json.loads(line)
