"""Ctrl-C and SIGTERM during a training: noticed at the next safe point, so that a checkpoint can still be saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop. `exit_code` is the shell's convention: 130 or 143."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number

    def exit(self) -> BaseException:
        """What ends the process with the exit code."""
        return KeyboardInterrupt() if self.exit_code == 130 else SystemExit(self.exit_code)


class StopRequest:
    """Catches the signals while it is entered; `check` raises once one has come. A second signal acts at once."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_deferred = False
        self._previous: dict[int, Any] = {}

    def check(self) -> None:
        if self._number is not None and not self._is_deferred:
            raise Stopped(self._number)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """While entered, `check` raises nothing; what came meanwhile is noticed at the next one."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
