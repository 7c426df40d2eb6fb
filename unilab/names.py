"""Names that were mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the nearest valid names, or all of them."""
    names = list(allowed)
    lower = {each.lower(): each for each in names}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(names)}"
