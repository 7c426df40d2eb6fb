"""Physics that does not give its full state: a shard stays with its worker."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from tiny import Slider, SliderState, tiny_config

pytest.importorskip("motrixsim")

from unilab.runtime.errors import WorkerError
from unilab.runtime.evaluate import evaluate
from unilab.runtime.resume import resume
from unilab.runtime.train import train

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Plain(Slider):
    """A slider without wind and with one mass for all, which MotrixSim can do."""

    def randomise(self, key: jax.Array, nominal: Any) -> dict[str, jax.Array]:
        return {}

    def control(self, state: SliderState, action: jax.Array) -> dict[str, jax.Array]:
        return {"ctrl": action}


def test_results_do_not_depend_on_the_workers_and_resume_is_refused(tmp_path: Path) -> None:
    """Two workers with two shards each make what one process makes; such a run is evaluated, but not resumed."""
    runs = [tmp_path / str(workers) for workers in (0, 2)]
    digests = [
        train(tiny_config(Plain(), physics="motrixsim", workers=workers, digest=True), run).summary["digest"]
        for workers, run in zip((0, 2), runs, strict=True)
    ]
    assert digests[0] == digests[1]
    assert evaluate(runs[0], episodes=4, physics="mujoco", workers=0, task_class=Plain)["episodes"] == 4
    with pytest.raises(ValueError, match="cannot be resumed: its physics back end, motrixsim, does not give"):
        resume(runs[0], steps=10_000, task_class=Plain)


def test_a_lost_worker_ends_the_run(tmp_path: Path) -> None:
    """Its envs are lost with it: the error says so, and no other worker takes the shard over."""

    def kill(row: dict[str, Any]) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)

    config = tiny_config(Plain(), physics="motrixsim", workers=1)
    with pytest.raises(WorkerError, match="cannot be replaced: this physics back end does not give its full state"):
        train(config, tmp_path / "run", callback=kill)
