from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from unilab.runtime.display import (
    Display,
    LiveDisplay,
    Pace,
    PlainDisplay,
    QuietDisplay,
    _Panel,
    duration,
    integer,
    make_display,
    number,
)

ROW: dict[str, Any] = {
    "iteration": 9,
    "env_steps": 1_234_567,
    "wall_s": 100.0,
    "env_steps_per_s": 4321.0,
    "time/collect_s": 3.0,
    "time/learn_s": 1.0,
    "time/wait_s": 0.0,
    "episode/return_mean": 12.3456,
    "episode/length_mean": 512.0,
    "episode/count": 31,
    "reward/alive": 0.5,
    "metric/tracking_error": 0.234,
    "train/kl": 0.0123,
    "train/entropy": -3.25,
    "train/learning_rate": 3e-4,
}
EVALUATION: dict[str, Any] = {"eval/return_mean": 23.5, "eval/return_std": 3.5, "eval/fall_fraction": 0.125}
BROKEN_ROWS: list[dict[str, Any]] = [
    {},
    dict.fromkeys([*ROW, *EVALUATION]),
    dict.fromkeys([*ROW, *EVALUATION], float("nan")),
    {"env_steps": 0, "wall_s": 0.0, "env_steps_per_s": 0.0},
    {"env_steps": "many", "train/kl": "text"},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_live(width: int) -> tuple[LiveDisplay, io.StringIO]:
    stream = io.StringIO()
    return LiveDisplay(Console(file=stream, force_terminal=True, width=width, height=60)), stream


def panel_lines(width: int, *rows: dict[str, Any]) -> list[str]:
    panel = _Panel("go1 with ppo", 10_000_000)
    for row in rows:
        panel.update(row)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(panel)
    return capture.get().splitlines()


@pytest.mark.parametrize("kind", ["live", "plain", "quiet"])
def test_missing_numbers_never_stop_training(kind: str) -> None:
    """Rows with missing, null, NaN, zero or wrong values are shown by every display."""
    stream = io.StringIO()
    displays: dict[str, Display] = {
        "live": make_live(80)[0],
        "plain": PlainDisplay(interval_s=0.0, stream=stream),
        "quiet": QuietDisplay(),
    }
    display = displays[kind]
    for total in (0, 1000):
        display.start("title", total)
        for row in BROKEN_ROWS:
            display.update(row)
        display.message("text")
        display.stop()
        display.stop()
    for row in BROKEN_ROWS:
        assert panel_lines(80, row)


def test_plain_lines_are_rare_but_every_evaluation_is_shown() -> None:
    """Within the interval only rows with an evaluation are printed, and the last row is printed at the end."""
    clock = {"now": 0.0}
    stream = io.StringIO()
    display = PlainDisplay(interval_s=5.0, stream=stream, clock=lambda: clock["now"])
    display.start("title", 2000)
    for now, env_steps in ((0.0, 1), (1.0, 2), (2.0, 3), (7.5, 4), (8.0, 5)):
        clock["now"] = now
        display.update({"env_steps": env_steps} | (EVALUATION if env_steps == 3 else {}))
    display.stop()
    display.stop()
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "3", "4", "5"]


def test_a_plain_line_has_the_numbers() -> None:
    """A line shows progress, speed, shares of time, return, and the evaluation with its own metrics, in ASCII."""
    stream = io.StringIO()
    display = PlainDisplay(stream=stream)
    display.start("title", 10_000_000)
    display.update(ROW | EVALUATION)
    line = stream.getvalue().splitlines()[-1]
    expected = ("1,234,567", "12.3%", "4,321/s", "75%/25%/0%", "return 12.35", "tracking_error 0.234")
    for text in (*expected, "eval return 23.5 +- 3.5", "fall_fraction 0.125"):
        assert text in line
    assert line.isascii()


def test_a_closed_pipe_does_not_stop_training() -> None:
    """A reader that went away is no error."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    display = PlainDisplay(stream=Closed())
    display.start("title", 100)
    display.update(ROW)
    display.stop()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_panel_fits_any_width(width: int) -> None:
    """No line of the panel is wider than the terminal, and all lines are equally wide."""
    widths = {cell_len(line) for line in panel_lines(width, ROW | EVALUATION | {"metric/" + "long_name_" * 9: 1.0})}
    assert widths == {min(width, 100)}


def test_the_panel_keeps_the_last_evaluation() -> None:
    """An evaluation stays visible, with the env steps it belongs to, while later rows have none."""
    later = ROW | {"env_steps": 2_000_000}
    text = "\n".join(panel_lines(100, ROW | EVALUATION, later))
    for expected in ("go1 with ppo", "2,000,000 of 10,000,000", "at 1,234,567", "23.5 +- 3.5", "collect 75%"):
        assert expected in text


def test_messages_scroll_by_above_the_live_panel() -> None:
    """A message is printed as it is, square brackets included, and the cursor is given back at the end."""
    display, stream = make_live(80)
    display.start("title", 1000)
    display.update(ROW)
    display.message("saved [bold]checkpoint[/bold]")
    display.stop()
    assert "saved [bold]checkpoint[/bold]" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")


def test_the_display_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets the live display; a file, a pipe or a dumb terminal gets lines."""
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(make_display(Terminal()), LiveDisplay)
    assert isinstance(make_display(io.StringIO()), PlainDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(Terminal()), PlainDisplay)


def test_pace_leaves_out_what_came_before_the_first_row() -> None:
    """The remaining time follows from the rows seen, not from slow compilation or the part before a resume."""
    pace = Pace(1000)
    pace.update({"env_steps": 500, "wall_s": 1000.0})
    assert pace.eta_s is None
    pace.update({"env_steps": 600, "wall_s": 1010.0})
    assert pace.eta_s == pytest.approx(40.0)
    assert pace.fraction == pytest.approx(0.6)


def test_numbers_are_short_and_readable() -> None:
    """Thousands have separators, small numbers four digits, durations minutes, and nothing is a dash."""
    assert [integer(1234567), integer(None)] == ["1,234,567", "-"]
    assert [number(x) for x in (0.0, 12.34567, -12345.6, 3e-5, None)] == ["0", "12.35", "-12,346", "3e-05", "-"]
    assert [duration(x) for x in (None, 0, 59.6, 3661)] == ["-", "0:00", "1:00", "1:01:01"]
