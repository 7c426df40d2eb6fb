"""What a person sees while a run trains: a live panel on a terminal, plain lines elsewhere, or nothing.

A display gets the rows that `unilab.runtime.metrics` records. Any key may be missing or None; it is then shown as a
dash, since an iteration in which no episode ended is no reason to stop.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live

DASH = "-"

_EVALUATION_BASICS = ("eval/return_mean", "eval/return_std", "eval/length_mean", "eval/episodes")
_LEARNER = {
    "train/kl": "kl", "train/entropy": "entropy", "train/learning_rate": "lr", "train/temperature": "temperature",
    "train/value_mean": "value", "train/loss_critic": "critic's loss",
}  # fmt: skip
"""What is shown of the learner, under which name: the first three that an algorithm has."""


class Display(Protocol):
    """Shows a run. Calls come in the order `start`, any number of `update` and `message`, `stop`."""

    def start(self, title: str, total_env_steps: int) -> None:
        """Begin to show a run; `title` names its task and algorithm."""

    def update(self, row: Mapping[str, Any]) -> None:
        """Show the numbers of one iteration."""

    def message(self, text: str) -> None:
        """Show one line of text, such as where the run folder is."""

    def warn(self, text: str) -> None:
        """Show one line of text that must not be missed."""

    def stop(self) -> None:
        """Show the last numbers and let the terminal go. Safe to call twice, and without `start`."""


def make_display(stream: TextIO | None = None) -> Display:
    """A `LiveDisplay` when `stream` (default: standard output) is a terminal that can move its cursor, else plain."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() or os.environ.get("TERM", "").lower() in ("", "dumb", "unknown"):
        return PlainDisplay(stream=stream)
    from rich.console import Console

    return LiveDisplay(Console(file=stream))


class QuietDisplay:
    """Shows nothing but warnings, on standard error."""

    def start(self, title: str, total_env_steps: int) -> None:
        pass

    def update(self, row: Mapping[str, Any]) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        print(f"unilab: {text}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        pass


class PlainDisplay:
    """One line of ASCII at most every `interval_s` seconds and for each evaluation, for log files and pipes."""

    def __init__(
        self,
        interval_s: float = 5.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._stream = stream
        self._clock = clock
        self._pace = Pace(0)
        self._printed_at = -math.inf
        self._unprinted: Mapping[str, Any] | None = None

    def start(self, title: str, total_env_steps: int) -> None:
        self._pace = Pace(total_env_steps)
        self._print(f"{title}: {integer(total_env_steps)} env steps")

    def update(self, row: Mapping[str, Any]) -> None:
        self._pace.update(row)
        if has_evaluation(row) or self._clock() - self._printed_at >= self._interval_s:
            self._print_row(row)
        else:
            self._unprinted = row

    def message(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(text)

    def stop(self) -> None:
        if self._unprinted is not None:
            self._print_row(self._unprinted)

    def _print_row(self, row: Mapping[str, Any]) -> None:
        self._print(plain_line(row, self._pace))
        self._printed_at = self._clock()
        self._unprinted = None

    def _print(self, text: str) -> None:
        # Standard output is looked up at each line, since a notebook or a test may have replaced it.
        stream = sys.stdout if self._stream is None else self._stream
        # When the reader of a pipe or the terminal is gone, the training need not go with it.
        with contextlib.suppress(OSError):
            print(text, file=stream, flush=True)


class LiveDisplay:
    """A panel that is redrawn in place, for terminals. Lines printed meanwhile scroll by above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._panel: _Panel | None = None

    def start(self, title: str, total_env_steps: int) -> None:
        from rich.console import Console
        from rich.live import Live

        self.stop()
        self._panel = _Panel(title, total_env_steps)
        console = Console() if self._console is None else self._console
        self._live = Live(self._panel, console=console, refresh_per_second=4, vertical_overflow="ellipsis")
        self._live.start()

    def update(self, row: Mapping[str, Any]) -> None:
        if self._panel is not None:
            self._panel.update(row)

    def message(self, text: str) -> None:
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def warn(self, text: str) -> None:
        self.message(text)

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class Pace:
    """How far a run is and how long the rest will take, from the rows seen so far."""

    def __init__(self, total_env_steps: int) -> None:
        self.total_env_steps = total_env_steps
        self.env_steps = 0.0
        self.eta_s: float | None = None
        self._first: tuple[float, float] | None = None

    @property
    def fraction(self) -> float:
        """Env steps done of all, from 0 to 1."""
        return min(1.0, self.env_steps / self.total_env_steps) if self.total_env_steps > 0 else 0.0

    def update(self, row: Mapping[str, Any]) -> None:
        env_steps, wall_s = value(row, "env_steps"), value(row, "wall_s")
        if env_steps is None:
            return
        self.env_steps = env_steps
        rate = value(row, "env_steps_per_s")
        if wall_s is not None:
            # Counted from the first row seen here: compilation and the part before a resume tell nothing of the rest.
            self._first = self._first or (env_steps, wall_s)
            steps, seconds = env_steps - self._first[0], wall_s - self._first[1]
            if steps > 0 and seconds > 0:
                rate = steps / seconds
        remaining = max(0.0, self.total_env_steps - env_steps)
        self.eta_s = remaining / rate if rate else None


class _Panel:
    """The rich renderable of `LiveDisplay`; laid out anew at each refresh, so it follows the terminal's width."""

    def __init__(self, title: str, total_env_steps: int) -> None:
        self._title = title
        self._pace = Pace(total_env_steps)
        self._row: Mapping[str, Any] = {}
        self._evaluation: Mapping[str, Any] | None = None

    def update(self, row: Mapping[str, Any]) -> None:
        self._pace.update(row)
        # Replaced whole, never changed in place: the refresh thread may be reading.
        self._row = dict(row)
        if has_evaluation(row):
            self._evaluation = self._row

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = min(options.max_width, 100)
        pace, row = self._pace, self._row
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(width=6, justify="right", no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=pace.fraction), percent(pace.fraction))
        lines = [
            f"{integer(pace.env_steps)} of {integer(pace.total_env_steps)} env steps",
            f"{integer(value(row, 'env_steps_per_s'))} env steps/s",
            f"{duration(value(row, 'wall_s'))} elapsed",
            f"{duration(pace.eta_s)} left",
        ]
        if sum(len(line) + 2 for line in lines) <= width - 2:
            lines = ["  ".join(lines)]
        head = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        sections = [_section(heading, cells, width - 4) for heading, cells in self._sections()]
        yield Panel(Group(bar, *head, *sections), title=Text(self._title, overflow="ellipsis"), width=width)

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        row = self._row
        episodes = [
            ("return", number(value(row, "episode/return_mean"))),
            ("length", number(value(row, "episode/length_mean"))),
            ("ended", integer(value(row, "episode/count"))),
        ]
        sections = [
            ("wall time", list(zip(("collect", "learn", "wait"), time_shares(row), strict=True))),
            ("episodes", episodes),
            ("learner", learner_cells(row)),
        ]
        metrics = [(short(key), number(value(row, key))) for key in row if key.startswith("metric/")]
        if metrics:
            sections.append(("task", metrics))
        if self._evaluation is None:
            return [*sections, ("evaluation", [("none yet", "")])]
        at = ("at", integer(value(self._evaluation, "env_steps")))
        return [*sections, ("evaluation", [at, *evaluation_cells(self._evaluation)])]


def _section(heading: str, cells: Sequence[tuple[str, str]], width: int) -> RenderableType:
    """A heading and name-value pairs in as many columns as fit into `width` characters.

    The heading stands to the left of its pairs, or above them where the terminal is narrow.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = Text(heading, style="cyan", no_wrap=True, overflow="ellipsis")
    is_wide = width >= 70
    room = width - 14 if is_wide else width
    columns = max(1, min(3, room // 26))
    pairs = Table.grid(padding=(0, 2))
    for _ in range(columns):
        pairs.add_column(width=max(4, room // columns - 2), no_wrap=True, overflow="ellipsis")
    texts = [Text.assemble((f"{name} ", "dim"), (shown, "bold")) for name, shown in cells]
    for begin in range(0, len(texts), columns):
        pairs.add_row(*texts[begin : begin + columns])
    if not is_wide:
        return Group(title, pairs)
    beside = Table.grid(padding=(0, 2))
    beside.add_column(width=12, no_wrap=True)
    beside.add_column()
    beside.add_row(title, pairs)
    return beside


def plain_line(row: Mapping[str, Any], pace: Pace) -> str:
    """The line of `PlainDisplay` for one row."""
    collect, learn, wait = time_shares(row)
    parts = [
        f"{integer(value(row, 'env_steps')):>13} {percent(pace.fraction):>6}",
        f"{integer(value(row, 'env_steps_per_s')):>7}/s",
        f"eta {duration(pace.eta_s)}",
        f"collect/learn/wait {collect}/{learn}/{wait}",
        f"return {number(value(row, 'episode/return_mean'))}",
        f"length {number(value(row, 'episode/length_mean'))}",
        *(f"{name} {shown}" for name, shown in learner_cells(row)),
    ]
    parts += [f"{short(key)} {number(value(row, key))}" for key in row if key.startswith("metric/")]
    line = "  ".join(parts)
    if has_evaluation(row):
        line += " | eval " + "  ".join(f"{name} {shown}" for name, shown in evaluation_cells(row))
    return line


def has_evaluation(row: Mapping[str, Any]) -> bool:
    return any(key.startswith("eval/") and row[key] is not None for key in row)


def evaluation_cells(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and shown values of an evaluation: return, length, then the task's own success metrics."""
    spread = f"{number(value(row, 'eval/return_mean'))} +- {number(value(row, 'eval/return_std'))}"
    own = [key for key in row if key.startswith("eval/") and key not in _EVALUATION_BASICS]
    return [
        ("return", spread),
        ("length", number(value(row, "eval/length_mean"))),
        *((short(key), number(value(row, key))) for key in own),
    ]


def learner_cells(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and shown values of what tells most about an algorithm's updates."""
    return [(name, number(value(row, key))) for key, name in _LEARNER.items() if key in row][:3]


def time_shares(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Collecting, learning and waiting in percent of their sum, each a dash if there is nothing to divide."""
    seconds = [value(row, f"time/{part}_s") for part in ("collect", "learn", "wait")]
    total = sum(second for second in seconds if second is not None)
    collect, learn, wait = (
        DASH if second is None or total <= 0 else f"{100 * second / total:.0f}%" for second in seconds
    )
    return collect, learn, wait


def value(row: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`, or None if there is none or it is not finite."""
    try:
        found = float(row[key])
    except (KeyError, TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def short(key: str) -> str:
    """`train/learning_rate` as `learning_rate`."""
    return key.partition("/")[2]


def integer(x: float | None) -> str:
    """1234567 as `1,234,567`."""
    return DASH if x is None else f"{round(x):,}"


def number(x: float | None) -> str:
    """Four significant digits, or all before the point: `12,345`, `12.35`, `0.0003`, `3.142e-05`."""
    if x is None:
        return DASH
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e7 else f"{x:.4g}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def duration(seconds: float | None) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    if seconds is None:
        return DASH
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
