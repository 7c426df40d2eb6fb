"""`unilab video`: film a trained policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from unilab.cli.errors import FAILED
from unilab.cli.flags import HELP, Flag, help_text, one_positional, parse
from unilab.cli.runs import POLICY_FLAGS, run_folder

USAGE = "unilab video RUN [flags]"
FLAGS = {
    "out": Flag(str, "the video, ending in .mp4 (default: RUN/video.mp4)", "FILE"),
    "seconds": Flag(float, "length of the episode (default: the task's own)", "S"),
    "seed": Flag(int, "seed of the episode (default: 0)", "N"),
    **POLICY_FLAGS,
}
ABOUT = """Film one episode of the policy of a run, without exploration, and put eight of its frames into a PNG
beside the video. RUN is a folder that `unilab train` left."""


def run(args: Sequence[str]) -> int:
    """The verb `video`."""
    if set(args) & set(HELP):
        print(help_text(USAGE, ABOUT, FLAGS))
        return 0
    arguments = parse(args, FLAGS, "unilab video --help")
    folder = run_folder(one_positional(arguments, "run", USAGE))
    values = {name.replace("-", "_"): value for name, value in arguments.values.items()}
    fine = values.pop("fine_physics", False)

    from unilab.runtime.video import record_video

    result = record_video(folder, fine=fine, **values)
    if not result.ok:
        print(f"unilab: {result.message}", file=sys.stderr)
        return FAILED
    print(f"video   {result.path}\nframes  {result.sheet}")
    return 0
