"""Results as pictures and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unilab.bench.plot import plot
from unilab.bench.result import make_result, make_row, table


def result_of(verb: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    skipped = [{"backend": "envpool", "reason": "not installed; pip install envpool"}]
    return make_result(verb, {}, rows, skipped)


ROWS = {
    "env": [
        make_row("mujoco", "A", 4, 2, [10, 20, 30], [10, 20, 30], [20, 40, 60]),
        make_row("envpool", "A", 4, 2, [5, 10, 15], [10, 20, 30]),
    ],
    "scaling": [make_row(name, "A", 4, 2, [10, 20], None, [20, 40]) for name in ("mujoco", "stub")],
    "learner": [make_row("unilab", "A", 4, 0, [10, 20], [10, 20], algo="sac", updates_per_env_step=1.0)],
}


@pytest.mark.parametrize("verb", ROWS)
def test_every_kind_of_result_can_be_drawn(verb: str, tmp_path: Path) -> None:
    """The picture is a PNG."""
    plot(result_of(verb, ROWS[verb]), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_cannot_be_drawn(tmp_path: Path) -> None:
    """Without rows there is an error, and no file."""
    with pytest.raises(ValueError, match="nothing was measured"):
        plot(result_of("env", []), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_table_shows_rows_and_what_was_skipped() -> None:
    """Ratios are medians of the rounds; what has none is a dash; skipped back ends stand below."""
    lines = table(result_of("env", ROWS["env"])).splitlines()
    assert lines[0].split() == [
        "backend", "task", "num_envs", "workers", "env_steps_per_s", "spread", "ratio_to_default", "ratio_to_limit",
    ]  # fmt: skip
    assert lines[1].split() == ["mujoco", "A", "4", "2", "20", "1", "1", "0.5"]
    assert lines[2].split() == ["envpool", "A", "4", "2", "10", "1", "0.5", "-"]
    assert lines[3] == "skipped envpool: not installed; pip install envpool"
