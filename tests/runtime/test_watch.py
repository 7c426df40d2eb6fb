from __future__ import annotations

import itertools

import numpy as np
import pytest

from unilab.runtime import watch as module
from unilab.runtime.watch import FIRST_JOB_FACTOR, POLL_S, Watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def polls_until_suspected(watch: Watch, clock: list[float], is_first: bool, gap: float = POLL_S) -> int:
    for count in itertools.count(1):
        clock[0] += gap
        if watch.suspects([(0, "job", is_first)]):
            return count
        assert count < 10_000
    raise AssertionError


def test_a_worker_without_progress_is_suspected_after_so_many_polls(clock: list[float]) -> None:
    """The patience is counted in polls; a job of a kind that is new to the worker, which compiles, gets more of it."""
    assert polls_until_suspected(Watch(np.zeros(1, np.uint64), 2.0), clock, False) == 11
    assert polls_until_suspected(Watch(np.zeros(1, np.uint64), 2.0), clock, True) == 10 * FIRST_JOB_FACTOR + 1


def test_a_sleeping_machine_condemns_nobody(clock: list[float]) -> None:
    """However much time passes between two polls, they are two polls."""
    assert polls_until_suspected(Watch(np.zeros(1, np.uint64), 2.0), clock, False, gap=3600.0) == 11


def test_many_looks_in_a_moment_are_one_poll(clock: list[float]) -> None:
    """Looking more often, as when other workers report, does not shorten the patience."""
    watch = Watch(np.zeros(1, np.uint64), 2.0)
    clock[0] += POLL_S
    assert not any(watch.suspects([(0, "job", False)]) for _ in range(1000))


def test_progress_or_another_job_restores_patience(clock: list[float]) -> None:
    """A worker that gets on, gets another job, or has none is not suspected."""
    progress = np.zeros(2, np.uint64)
    watch = Watch(progress, 1.0)
    for step in range(100):
        clock[0] += POLL_S
        progress[0] += 1
        assert watch.suspects([(0, "job", False), (1, f"job {step}", False)]) == []
    for _ in range(4):
        clock[0] += POLL_S
        assert watch.suspects([(0, "job", False)]) == []
    clock[0] += POLL_S
    assert watch.suspects([]) == []
    clock[0] += POLL_S
    assert watch.suspects([(0, "job", False)]) == []
