"""What the user sees of an error: one line for what they can mend, a traceback for what they must debug."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

FAILED, REFUSED, INTERRUPTED = 1, 2, 130

_PACKAGE = Path(__file__).resolve().parents[1]


class UsageError(Exception):
    """The command line cannot be followed; the message is one line that names what was given and what is allowed."""


def report(error: BaseException) -> int:
    """Print an error to standard error and return the exit code; an error that is nobody's message is raised again.

    With UNILAB_TRACEBACK=1 in the environment all are.
    """
    if os.environ.get("UNILAB_TRACEBACK"):
        raise error
    if isinstance(error, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, UsageError):
        _say(_one_line(error))
        return REFUSED
    if _is_a(error, "unilab.runtime.errors", "RunError"):
        _say(str(error))  # a second part is the traceback of a worker
        return FAILED
    if isinstance(error, MemoryError) or (isinstance(error, ValueError) and _is_ours(error)):
        _say(_one_line(error))
        return REFUSED
    if isinstance(error, OSError) and error.strerror:
        _say(f"{error.strerror}: {error.filename}" if error.filename is not None else error.strerror)
        return FAILED
    raise error


def _is_a(error: BaseException, module: str, name: str) -> bool:
    """Whether `error` is of a class that lives in `module`; a module that was never imported raised nothing."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


def _is_ours(error: BaseException) -> bool:
    """Whether the toolkit itself raised it with a message for the user, rather than JAX or a task's code by mistake."""
    frames = traceback.extract_tb(error.__traceback__)
    origin = Path(frames[-1].filename).resolve() if frames else Path()
    return origin.is_relative_to(_PACKAGE) and not origin.is_relative_to(_PACKAGE / "envs" / "tasks")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _say(text: str) -> None:
    print(f"unilab: {text}", file=sys.stderr, flush=True)
