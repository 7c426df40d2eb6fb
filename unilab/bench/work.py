"""What a benchmark's workers get in place of a `Plan`. Nothing here imports jax, so that they need not either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unilab.runtime.memory import FieldShapes


@dataclass(frozen=True)
class Work:
    """As much of a plan as a worker needs to start.

    Attributes:
        runner: "module:class" of what runs the jobs.
        layout: shapes of the shared memories by name.
        settings: what that runner wants to know.
    """

    runner: str
    layout: dict[str, FieldShapes]
    settings: Any
