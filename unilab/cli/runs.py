"""What the verbs about a run share: finding its folder, naming it in a command, and showing figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from unilab.cli.errors import UsageError
from unilab.cli.flags import Flag

POLICY_FLAGS = {
    "checkpoint": Flag(Literal["best", "latest"], "which of the run's checkpoints (default: best)", "NAME"),
    "fine-physics": Flag(bool, "use the task's most faithful physics instead of the one it was trained on"),
}


def run_folder(name: str) -> Path:
    """The run folder that a user named.

    Raises:
        UsageError: it is none; says what it holds instead.
    """
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if not folder.exists():
        raise UsageError(f"no run folder {name!r}: there is no such folder")
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        more = f" and {len(inner) - 3} more" if len(inner) > 3 else ""
        raise UsageError(f"{name} is not a run folder, but holds some: {', '.join(map(str, inner[:3]))}{more}")
    raise UsageError(f"{name} is not a run folder: it has no config.json; `unilab train` makes one")


def figures_table(figures: Mapping[str, Any], indent: str = "  ") -> str:
    """Figures of an evaluation, one a line; the spread stands beside the mean of the return."""
    from unilab.runtime.display import number

    shown = {name.removesuffix("_mean"): number(value) for name, value in figures.items() if _is_number(value)}
    if "return_std" in shown:
        shown["return"] += f" +- {shown.pop('return_std')}"
    order = ["return", "length", *(name for name in shown if name not in ("return", "length"))]
    width = max(map(len, shown), default=0) + 2
    return "\n".join(f"{indent}{name:<{width}}{shown[name]}" for name in order if name in shown)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
