"""A result as a picture: bars side by side, or a line over the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = Mapping[str, Any]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw a result into a PNG, or whatever the file's ending says.

    Raises:
        ValueError: there is nothing to draw, or matplotlib has no such format.
    """
    if not result["results"]:
        raise ValueError("nothing was measured, so there is nothing to plot")
    draw: dict[str, Callable[[Axes, Mapping[str, Any]], None]] = {"scaling": _scaling, "incline": _incline}
    figure = Figure(layout="constrained")
    figure.set_size_inches(*_size(result))
    axes = figure.subplots()
    draw.get(result["verb"], _bars)(axes, result)
    machine = result["machine"]
    figure.suptitle(
        f"unilab bench {result['verb']}, {machine['cores_usable']} cores ({machine['cpu']}), {result['date']}", size=9
    )
    figure.savefig(path, dpi=120)


def _size(result: Mapping[str, Any]) -> tuple[float, float]:
    bars = len(result["results"]) if result["verb"] not in ("scaling", "incline") else 10
    return 7.0, max(2.5, 1.0 + 0.28 * (bars + len(_groups(result))))


def _bars(axes: Axes, result: Mapping[str, Any]) -> None:
    """A horizontal bar for each row, group by group, with the range of its repeats."""
    names = list(dict.fromkeys(row["backend"] for row in result["results"]))
    colors = {name: f"C{i % 10}" for i, name in enumerate(names)} | {"limit": "0.75"}
    is_learner = result["verb"] == "learner"
    at, ticks, labels = 0.0, [], []
    for title, rows in _groups(result).items():
        axes.text(0.0, at, f" {title}", va="center", size=8, weight="bold")
        for row in rows:
            at += 1.0
            scale = row["updates_per_env_step"] if is_learner else 1.0
            value, repeats = row["env_steps_per_s"] * scale, [each * scale for each in row["repeats"]]
            axes.barh(at, value, color=colors[row["backend"]], height=0.8)
            axes.plot([min(repeats), max(repeats)], [at, at], color="black", linewidth=0.8)
            ratio = row["ratio_to_default"]
            note = f" {value:,.0f}" + (f"  ({ratio:.2f} x)" if ratio not in (None, 1.0) else "")
            axes.text(max(value, max(repeats)), at, note, va="center", size=7)
            ticks.append(at)
            labels.append(row["backend"])
        at += 1.4
    axes.set_yticks(ticks, labels, size=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("updates/s" if is_learner else "env steps/s; black: range of the repeats; (x the default)")
    axes.spines[["top", "right"]].set_visible(False)


def _scaling(axes: Axes, result: Mapping[str, Any]) -> None:
    """Env steps per second over workers, measured and with stubs, beside the physical limit."""
    styles = {"mujoco": "o-", "stub": "s--"}
    for name, style in styles.items():
        rows = [row for row in result["results"] if row["backend"] == name]
        if not rows:
            continue
        workers = [row["workers"] for row in rows]
        limit = [row["env_steps_per_s"] / row["ratio_to_limit"] for row in rows]
        label = "collected" if name == "mujoco" else "stub workers that sleep (the runtime alone)"
        axes.loglog(workers, [row["env_steps_per_s"] for row in rows], style, label=label)
        axes.loglog(workers, limit, ":", color="0.5", label="physical limit" if name == "mujoco" else None)
        for row, count in zip(rows, workers, strict=True):
            axes.annotate(
                f"{row['ratio_to_limit']:.2f}", (count, row["env_steps_per_s"]), (0, -11), size=8, ha="center",
                textcoords="offset points",
            )  # fmt: skip
    every = sorted({row["workers"] for row in result["results"]})
    axes.set_xticks(every, [str(count) for count in every])
    axes.minorticks_off()
    axes.set(xlabel="workers (number at a point: ratio to the limit)", ylabel="env steps/s")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _incline(axes: Axes, result: Mapping[str, Any]) -> None:
    """Acceleration over the slope's angle, analytic and of each back end."""
    angles = result["options"]["angles_deg"]
    axes.plot(angles, result["results"][0]["analytic_acceleration"], "k-", label="analytic")
    for row, marker in zip(result["results"], "ox+s^v" * 4, strict=False):
        axes.plot(angles, row["acceleration"], marker, fillstyle="none", label=row["backend"])
    axes.axvline(result["results"][0]["analytic_deg"], color="0.5", linestyle=":", label="sliding begins, analytic")
    axes.set(xlabel="angle of the slope [degrees]", ylabel="acceleration [m/s²]")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _groups(result: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows by what was measured in turn."""
    groups: dict[str, list[Row]] = {}
    for row in result["results"]:
        groups.setdefault(_title(row), []).append(row)
    return groups


def _title(row: Row) -> str:
    if "group" in row:
        return str(row["group"])
    updates = f", {row['updates_per_env_step']:g} updates per env step" if "updates_per_env_step" in row else ""
    return f"{row.get('algo', '')} {row['task']}, {row['num_envs']} envs{updates}".strip()
