"""`unilab resume`: go on with a run."""

from __future__ import annotations

from collections.abc import Sequence

from unilab.cli.flags import HELP, Flag, help_text, one_positional, parse, require_at_least
from unilab.cli.runs import run_folder

USAGE = "unilab resume RUN [flags]"
FLAGS = {
    "steps": Flag(int, "new total of env steps (default: as planned); schedules keep their horizon", "N"),
    "workers": Flag(int, "worker processes (default: as before); no effect on results", "N"),
    "quiet": Flag(bool, "show no progress"),
}
ABOUT = """Go on with a run from its last whole checkpoint, as if it had never stopped: with the same versions on
the same type of CPU the result is the same, bit for bit. RUN is a folder that `unilab train` left."""


def run(args: Sequence[str]) -> int:
    """The verb `resume`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, FLAGS))
        return 0
    arguments = parse(args, FLAGS, "unilab resume --help")
    require_at_least(arguments.values, steps=1, workers=0)
    folder = run_folder(one_positional(arguments, "run", USAGE))
    values = dict(arguments.values)

    from unilab.cli.train import show_result
    from unilab.runtime.display import QuietDisplay, make_display
    from unilab.runtime.resume import resume

    display = QuietDisplay() if values.pop("quiet", False) else make_display()
    show_result(resume(folder, display=display, **values))
    return 0
