"""Which workers hang: judged by what they say of their progress, counted in the parent's own polls."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

POLL_S = 0.2
FIRST_JOB_FACTOR = 10  # a worker's first job of a kind compiles, which may take minutes on a crowded machine


class Watch:
    """Counts, for each busy worker, the polls since its progress word last changed.

    A clock would condemn every worker of a machine that was asleep for an hour. Polls do not: the parent sleeps with
    its workers, and however long it slept, the next poll is one poll.

    Args:
        progress: a word per worker number that grows while the worker gets on [W].
        hang_after_s: time without progress after which a worker is taken to hang, s.
    """

    def __init__(self, progress: np.ndarray, hang_after_s: float) -> None:
        self._progress = progress
        self._patience = math.ceil(hang_after_s / POLL_S)
        self._seen: dict[int, tuple[Any, int]] = {}  # worker number -> (what it was doing and how far, polls)
        self._next_poll = -math.inf

    def suspects(self, busy: Iterable[tuple[int, Any, bool]]) -> list[int]:
        """Poll once, unless that was done a moment ago; returns the numbers of the workers that hang.

        Args:
            busy: for each worker with a job: its number, a token of what it does, and whether that is new to it.
        """
        now = time.monotonic()
        if now < self._next_poll:
            return []
        self._next_poll = now + POLL_S
        seen, self._seen = self._seen, {}
        found = []
        for number, token, is_first in busy:
            state = (token, int(self._progress[number]))
            before, polls = seen.get(number, (None, 0))
            polls = polls + 1 if state == before else 0
            self._seen[number] = (state, polls)
            if polls >= self._patience * (FIRST_JOB_FACTOR if is_first else 1):
                found.append(number)
        return found
