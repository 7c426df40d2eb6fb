"""Learning curves of one or more runs as one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unilab.runtime.metrics import Row, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_METRIC_PANELS = 4

_NOT_SUCCESS_METRICS = ("eval/return_mean", "eval/return_std", "eval/length_mean", "eval/episodes")
_EVALUATION_COLOUR = "#1f5fa8"
_TRAINING_COLOUR = "#d98324"
_METRIC_COLOUR = "#2b7a4b"
_GRID_COLOUR = "#e3e3e3"


@dataclass(frozen=True)
class _Series:
    """One key of one run: `x` in millions of env steps, ascending, and `y`, both [points] and finite."""

    x: np.ndarray
    y: np.ndarray


def plot_curves(runs: list[Path], out: Path) -> None:
    """Draw the learning curves of `runs` into the PNG file `out`.

    Left: evaluation return with a band of one standard deviation over episodes, and training return. Right: up to
    four success metrics, the keys that begin with `eval/`. Several runs (seeds of one experiment) become one thin
    line each and their mean over the env steps that all have reached, without bands. Wall time is shown at the top.

    Raises:
        ValueError: `runs` is empty, or a metrics file is broken.
    """
    if not runs:
        raise ValueError("plot_curves needs at least one run folder, got none")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tables = [read_metrics(run) for run in runs]
    metrics = success_metrics(tables)
    columns = (len(metrics) + 1) // 2 if len(metrics) > 1 else len(metrics)
    figure = Figure(figsize=(6.4 + 3.1 * columns, 4.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)  # type: ignore[union-attr, call-arg]
    grid = figure.add_gridspec(2, 1 + columns, width_ratios=[6.0] + [3.1] * columns)

    returns = figure.add_subplot(grid[:, 0])
    _draw_returns(returns, tables)
    for index, metric in enumerate(metrics):
        rows = slice(None) if len(metrics) == 1 else index // columns
        panel = figure.add_subplot(grid[rows, 1 + index % columns], sharex=returns)
        _draw_seeds(panel, [_series(table, metric) for table in tables], _METRIC_COLOUR, label=None, marker="o")
        panel.set_title(readable(metric), fontsize=9)
        panel.tick_params(labelsize=8)
        panel.set_xlabel("env steps [M]", fontsize=8)
        _style(panel)
    # Last, because it needs the final limits of the x axis that all panels share.
    _draw_wall_time(returns, tables[0], runs[0].name if len(runs) > 1 else None)
    _title(figure, runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def success_metrics(tables: Sequence[Sequence[Row]]) -> list[str]:
    """The first `MAX_METRIC_PANELS` keys, in order of appearance, that tell of success in an evaluation."""
    found: dict[str, None] = {}
    for table in tables:
        for row in table:
            found.update(
                (key, None)
                for key, value in row.items()
                if key.startswith("eval/") and key not in _NOT_SUCCESS_METRICS and isinstance(value, int | float)
            )
    return list(found)[:MAX_METRIC_PANELS]


def readable(key: str) -> str:
    """`eval/tracking_error_rad` as `tracking error rad`."""
    return key.partition("/")[2].replace("_", " ").replace("/", " · ")


def _series(table: Sequence[Row], key: str) -> _Series:
    points = [(row["env_steps"], row[key]) for row in table if _has_numbers(row, "env_steps", key)]
    xy = np.array(points, dtype=np.float64).reshape(-1, 2)
    return _Series(xy[:, 0] / 1e6, xy[:, 1])


def _has_numbers(row: Row, *keys: str) -> bool:
    return all(isinstance(row.get(key), int | float) for key in keys)


def _mean(seeds: Sequence[_Series]) -> _Series:
    """Mean over seeds, each interpolated linearly, where all of them have points."""
    first, last = max(seed.x[0] for seed in seeds), min(seed.x[-1] for seed in seeds)
    x = np.unique(np.concatenate([seed.x for seed in seeds]))
    x = x[(x >= first) & (x <= last)]
    return _Series(x, np.mean([np.interp(x, seed.x, seed.y) for seed in seeds], axis=0))


def _draw_returns(axes: Axes, tables: Sequence[Sequence[Row]]) -> None:
    evaluations = [_series(table, "eval/return_mean") for table in tables]
    trainings = [_series(table, "episode/return_mean") for table in tables]
    _draw_seeds(axes, trainings, _TRAINING_COLOUR, label="training", width=1.0)
    _draw_seeds(axes, evaluations, _EVALUATION_COLOUR, label="evaluation", width=2.2, marker="o")
    if len(tables) == 1:
        rows = [row for row in tables[0] if _has_numbers(row, "env_steps", "eval/return_mean", "eval/return_std")]
        mean, std = _series(rows, "eval/return_mean"), _series(rows, "eval/return_std")
        axes.fill_between(
            mean.x, mean.y - std.y, mean.y + std.y, color=_EVALUATION_COLOUR, alpha=0.15, linewidth=0, zorder=1
        )
    axes.set_xlabel("env steps [M]")
    axes.set_ylabel("return of an episode")
    if any(seed.x.size for seed in evaluations + trainings):
        axes.legend(loc="best", frameon=False, fontsize=9)
    else:
        axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
        axes.text(0.5, 0.5, "no episodes recorded yet", transform=axes.transAxes, ha="center", backgroundcolor="white")
    _style(axes)


def _draw_seeds(
    axes: Axes,
    seeds: Sequence[_Series],
    colour: str,
    label: str | None,
    width: float = 1.8,
    marker: str | None = None,
) -> None:
    """One strong line for one seed; for several, thin pale lines and a strong mean."""
    seeds = [seed for seed in seeds if seed.x.size]
    if not seeds:
        return
    strong = seeds[0]
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(seed.x, seed.y, color=colour, linewidth=0.8, alpha=0.4, zorder=2)
        strong = _mean(seeds)
        label = label and f"{label}, mean of {len(seeds)} runs"
    # Dots show how few evaluations there are; many of them would only thicken the line.
    marks: dict[str, Any] = {"marker": marker, "markersize": 3.5} if marker and strong.x.size <= 40 else {}
    axes.plot(strong.x, strong.y, color=colour, linewidth=width, label=label, zorder=3, **marks)


def _draw_wall_time(axes: Axes, table: Sequence[Row], run: str | None) -> None:
    """A second axis at the top: the minutes after which `table`'s run had collected the env steps below."""
    from matplotlib.ticker import MaxNLocator

    rows = [row for row in table if _has_numbers(row, "env_steps", "wall_s")]
    if len(rows) < 2:
        return
    env_steps = np.array([row["env_steps"] for row in rows]) / 1e6
    # Strictly ascending, so that the interpolation below has one answer also where a clock stood still.
    minutes = np.maximum.accumulate([row["wall_s"] / 60.0 for row in rows]) + 1e-9 * np.arange(len(rows))
    ticks = MaxNLocator(nbins=6).tick_values(0.0, minutes[-1])
    ticks = ticks[(ticks >= minutes[0]) & (ticks <= minutes[-1])]
    top = axes.twiny()
    top.set_xlim(axes.get_xlim())
    top.set_xticks(np.interp(ticks, minutes, env_steps), [f"{tick:g}" for tick in ticks])
    top.tick_params(labelsize=8, colors="gray", length=3)
    top.set_xlabel("wall time [min]" if run is None else f"wall time of {run} [min]", fontsize=8, color="gray")
    top.spines[:].set_visible(False)


def _style(axes: Axes) -> None:
    axes.grid(True, color=_GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def _title(figure: Figure, runs: Sequence[Path]) -> None:
    names = [run.resolve().name for run in runs]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    figure.suptitle(shown, fontsize=11)
