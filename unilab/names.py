"""Names as people type them."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path


def closest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the nearest valid names, or all of them."""
    names = list(allowed)
    lower = {each.lower(): each for each in names}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(names)}"


def in_shell(path: Path) -> str:
    """A path as one word of a shell command."""
    return shlex.quote(str(path))
