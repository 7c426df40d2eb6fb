"""`unilab train`: train a policy on a task, with one seed or several."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unilab.cli.errors import UsageError
from unilab.cli.flags import HELP, Flag, help_text, require_at_least
from unilab.cli.runs import figures_table
from unilab.cli.tasks import ALGO_FLAG, config_and_own, default_config, split_task
from unilab.names import in_shell

if TYPE_CHECKING:
    from unilab.config import Config
    from unilab.runtime.train import Result

USAGE = "unilab train TASK [flags]"
FLAGS = {
    "algo": ALGO_FLAG,
    "seeds": Flag(int, "train so many seeds, one after the other, into OUT/seed0, ... (default: 1)", "N"),
    "out": Flag(str, "the run folder (default: a new one under runs/)", "DIR"),
    "quiet": Flag(bool, "show no progress"),
    "video": Flag(bool, "film the best policy at the end, as `unilab video` does"),
}
ABOUT = """Train a policy and leave a run folder with checkpoints, metrics and a learning curve. TASK is a name from
`unilab list` or your own file.py:Class."""
MORE = """
Every setting of the training, the algorithm and the task is a flag too, for instance:
  unilab train CartpoleSwingup --seed 1 --steps 2e6 --num-envs 256 --algo.learning-rate 3e-4
`unilab train TASK --help` shows them all, with the task's own defaults."""


def run(args: Sequence[str]) -> int:
    """The verb `train`."""
    if set(args) & set(HELP):
        task_name, rest = split_task(args)
        return _print_all_flags(task_name, default_config(task_name, rest)) if task_name else _print_help()
    config, own = config_and_own(args, FLAGS, USAGE, "unilab train TASK --help")
    require_at_least(own, seeds=1)
    out, is_quiet, wants_video = own.get("out"), own.get("quiet", False), own.get("video", False)
    out = None if out is None else Path(out)
    if own.get("seeds", 1) == 1:
        result = _train(config, out, is_quiet)
        show_result(result, wants_video)
    else:
        _train_seeds(config, own["seeds"], out, is_quiet, wants_video)
    return 0


def _train(config: Config, out: Path | None, is_quiet: bool) -> Result:
    from unilab.runtime.display import QuietDisplay, make_display
    from unilab.runtime.train import train

    return train(config, out, display=QuietDisplay() if is_quiet else make_display())


def _train_seeds(config: Config, seeds: int, out: Path | None, is_quiet: bool, wants_video: bool) -> None:
    """Train with seeds `config.seed`, `config.seed` + 1, ... into folders below one, and compare them."""
    from unilab.config import replace
    from unilab.runtime.curve import plot_curves
    from unilab.runtime.run import default_folder

    numbers = range(config.seed, config.seed + seeds)
    configs = [replace(config, seed=number) for number in numbers]
    if out is None:
        single = default_folder(config)
        out = single.with_name(single.name.replace(f"-seed{config.seed}-", f"-seeds{numbers[0]}to{numbers[-1]}-"))
    folders = [out / f"seed{number}" for number in numbers]
    for folder in folders:
        if (folder / "config.json").exists():
            raise UsageError(f"{folder} already holds a run; choose another --out, or remove it")
    results = []
    for each, folder in zip(configs, folders, strict=True):
        results.append(_train(each, folder, is_quiet))
        print(f"seed {each.seed}: return {results[-1].evaluation['return_mean']:.4g}{_digest(results[-1])}", flush=True)
    plot_curves(folders, out / "curve.png")
    print(f"\n{_seeds_table(results)}\n\nruns    {in_shell(out)}\ncurve   {in_shell(out / 'curve.png')}")
    for folder in folders if wants_video else ():
        _film(folder)
    print(f"next    unilab eval {in_shell(folders[0])}\n        unilab video {in_shell(folders[0])}")


def _seeds_table(results: Sequence[Result]) -> str:
    """Mean, smallest and largest figure of the last evaluations."""
    from unilab.runtime.display import number

    names = [name for name in results[0].evaluation if name not in ("return_std", "episodes")]
    width = max(map(len, names))
    lines = [f"{f'evaluation of {len(results)} seeds':<{width + 2}}{'mean':>12}{'min':>12}{'max':>12}"]
    for name in names:
        values = [result.evaluation[name] for result in results]
        cells = (number(statistics.fmean(values)), number(min(values)), number(max(values)))
        lines.append(f"  {name.removesuffix('_mean'):<{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def show_result(result: Result, wants_video: bool = False) -> None:
    """Print what a training reached and where it is."""
    from unilab.runtime.display import duration, integer

    summary = result.summary
    figures = {name: value for name, value in result.evaluation.items() if name != "episodes"}
    what = f"{summary['task']}, {summary['algo']}, seed {summary['seed']}"
    pace = f"{duration(summary['wall_s'])}, {integer(summary['env_steps_per_s'])} a second"
    print(f"\n{what}: {integer(summary['env_steps'])} env steps in {pace}{_digest(result)}")
    print(f"last evaluation, {result.evaluation['episodes']} episodes\n{figures_table(figures)}")
    run = in_shell(result.run)
    print(f"run     {run}\ncurve   {in_shell(result.run / 'curve.png')}")
    if wants_video:
        _film(result.run)
    print(f"next    unilab eval {run}\n        unilab video {run}")


def _film(folder: Path) -> None:
    """Film a policy; a training does not fail because there is no OpenGL."""
    from unilab.runtime.video import record_video

    result = record_video(folder)
    print(f"video   {in_shell(folder / result.path.name)}" if result.path is not None else result.message, flush=True)


def _digest(result: Result) -> str:
    return f", digest {result.summary['digest']}" if "digest" in result.summary else ""


def _print_help() -> int:
    print(help_text(USAGE, ABOUT, FLAGS), MORE, sep="\n")
    return 0


def _print_all_flags(task_name: str, config: Config) -> int:
    """The help of `unilab train TASK`: tyro reads the names, types, defaults and docstrings."""
    import tyro

    own = {"algo": config.algo_name, "seeds": 1, "out": None, "quiet": False, "video": False}
    fields: list[Any] = []
    for name, default in own.items():
        hint: Any = FLAGS[name].hint if default is not None else FLAGS[name].hint | None
        text = FLAGS[name].help.partition(" (default")[0]  # tyro adds its own
        option = tyro.conf.arg(name=name, help=text, metavar=FLAGS[name].metavar or None)
        fields.append((f"own_{name}", Annotated[hint, option], default))
    fields.append(("config", Annotated[type(config), tyro.conf.arg(name="")], config))
    command = dataclasses.make_dataclass("Train", fields)
    with contextlib.suppress(SystemExit):
        tyro.cli(command, args=["--help"], prog=f"unilab train {task_name}", description=ABOUT.replace("\n", " "))
    return 0
