"""Errors that end a run."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run ended early; the message says why, and what to do."""

    can_resume = False
    """Whether going on from the last checkpoint may end otherwise."""


class WorkerError(RunError):
    """A job failed, or workers died and could not be replaced."""

    can_resume = True


class NonFiniteError(RunError):
    """A loss or a weight is not a number."""


class UnstableError(RunError):
    """Too many envs became unstable."""


class SaveError(RunError):
    """A checkpoint could not be written."""
