from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unilab.runtime.curve import MAX_METRIC_PANELS, _mean, _Series, _series, plot_curves, readable, success_metrics
from unilab.runtime.metrics import Row


def make_run(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_row(iteration: int, **more: object) -> dict[str, object]:
    row = {"env_steps": 1000 * iteration, "wall_s": 2.0 * iteration, "episode/return_mean": float(iteration)}
    return row | {"eval/return_mean": 2.0 * iteration, "eval/return_std": 1.0, "eval/tracking_error": 0.5} | more


def assert_picture(path: Path) -> None:
    pixels = np.asarray(Image.open(path).convert("L"))
    assert min(pixels.shape) > 300
    assert pixels.std() > 1


def test_seeds_become_one_picture(tmp_path: Path) -> None:
    """Runs of different length, one of them without any row, give a PNG."""
    runs = [make_run(tmp_path / f"seed{seed}", [make_row(k) for k in range(1, 4 + seed)]) for seed in range(2)]
    runs.append(make_run(tmp_path / "empty", []))
    plot_curves(runs, tmp_path / "figures" / "curve.png")
    assert_picture(tmp_path / "figures" / "curve.png")


def test_a_run_without_rows_gives_a_picture(tmp_path: Path) -> None:
    """A run that has recorded nothing yet is no error."""
    plot_curves([tmp_path], tmp_path / "curve.png")
    assert_picture(tmp_path / "curve.png")


def test_missing_and_null_values_are_left_out() -> None:
    """A point is drawn only where env steps and value are both numbers."""
    table: list[Row] = [
        make_row(1, **{"episode/return_mean": None}),
        {"iteration": 2},
        make_row(3),
        {"env_steps": 4000},
    ]
    series = _series(table, "episode/return_mean")
    np.testing.assert_array_equal(series.x, [0.003])
    np.testing.assert_array_equal(series.y, [3.0])


def test_success_metrics_are_the_own_ones_of_the_task() -> None:
    """Return, length and count of an evaluation are no success metrics, and at most four others are shown."""
    own = {f"eval/metric_{index}": 0.0 for index in range(MAX_METRIC_PANELS + 2)}
    rows = [{"eval/return_mean": 1.0, "eval/return_std": 1.0, "eval/length_mean": 9.0, "eval/episodes": 4, **own}]
    assert success_metrics([[], rows]) == list(own)[:MAX_METRIC_PANELS]
    assert success_metrics([[{"eval/never": None}]]) == []


def test_the_mean_of_seeds_ends_with_the_shortest() -> None:
    """The mean interpolates each seed and covers only env steps that all have reached."""
    long = _Series(np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0]))
    short = _Series(np.array([1.0, 3.0]), np.array([10.0, 10.0]))
    mean = _mean([long, short])
    np.testing.assert_allclose(mean.x, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(mean.y, [5.5, 6.0, 6.5])


def test_titles_are_readable() -> None:
    """A key becomes words."""
    assert readable("eval/tracking_error_rad") == "tracking error rad"


def test_no_runs_is_an_error(tmp_path: Path) -> None:
    """Nothing to plot is said, not drawn."""
    with pytest.raises(ValueError, match="at least one run"):
        plot_curves([], tmp_path / "curve.png")
