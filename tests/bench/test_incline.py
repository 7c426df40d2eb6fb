"""Blocks on slopes against the law of friction."""

from __future__ import annotations

import numpy as np
import pytest

from unilab.bench.incline import FRICTION, THRESHOLD_DEG, analytic_acceleration, angles_deg, bench_incline
from unilab.bench.result import COLUMNS
from unilab.envs.physics.registry import PhysicsEntry


def test_the_law_of_friction() -> None:
    """The analytic acceleration is 0 up to atan(friction), and g (sin - friction cos) beyond."""
    angles, acceleration = np.radians(angles_deg()), analytic_acceleration()
    slides = np.tan(angles) > FRICTION
    assert not acceleration[~slides].any()
    along = np.sin(angles) - np.cos(angles) * FRICTION
    np.testing.assert_allclose(acceleration[slides], 9.81 * along[slides])


def test_mujoco_slides_as_it_should() -> None:
    """On upstream MuJoCo the threshold lies between the two angles around the analytic one; the acceleration is right
    to 3 %, and blocks below the threshold hardly creep."""
    (row,) = bench_incline(lambda text: None, ["mujoco"])["results"]
    assert set(COLUMNS) <= set(row)
    low, high = row["sliding_from_deg"]
    assert low < THRESHOLD_DEG < high
    assert high - low < 0.5
    assert row["acceleration_error"] < 0.03
    assert row["creep_m_per_s"] < 1e-3


def test_what_is_not_installed_is_skipped_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end without its engine is listed as skipped, with the install command, and the others are measured."""
    monkeypatch.setattr(PhysicsEntry, "is_installed", property(lambda entry: entry.engine == ""))
    result = bench_incline(lambda text: None, ["mujoco", "mjx"])
    assert [row["backend"] for row in result["results"]] == ["mujoco"]
    install = "pip install 'unilab[mjx]'"
    assert result["skipped"] == [{"backend": "mjx", "reason": f"not installed; {install}", "install": install}]
