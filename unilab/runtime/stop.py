"""Ctrl-C and SIGTERM during a training: noticed at the next safe point, so that a checkpoint can still be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop. `exit_code` is the shell's convention: 130 or 143."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopRequest:
    """Catches the signals while it is entered; `check` raises once one has come. A second signal acts at once."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._previous: dict[int, Any] = {}

    def check(self) -> None:
        if self._number is not None:
            raise Stopped(self._number)

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
