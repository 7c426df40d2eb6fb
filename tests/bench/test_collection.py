"""`bench collect` and `bench scaling`: real workers, and workers that only pretend."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tiny import Slider, tiny_config

from unilab.bench.collect import bench_collect
from unilab.bench.collection import Collection
from unilab.bench.light import LightPlan
from unilab.bench.result import COLUMNS
from unilab.bench.stub import StubSettings


@pytest.mark.process
def test_collect_gives_rows_of_the_common_form(nothing_left: None) -> None:
    """Collecting with a worker is laid beside the very same physics, replayed."""
    (row,) = bench_collect(lambda text: None, tiny_config(workers=1), repeats=1, warm_up=1)["results"]
    assert set(COLUMNS) <= set(row)
    assert row["randomised"] == ["body_mass"]
    assert 0 < row["env_steps_per_s"] < row["limit_env_steps_per_s"]


def test_collect_refuses_physics_that_it_cannot_replay() -> None:
    """mujoco-uni forgets the warm start, so its steps are not those of `mj_step`: refused before anything starts."""
    with pytest.raises(ValueError, match=r"physics is 'mujoco-uni'; .*allowed: mujoco, mjbatch"):
        bench_collect(lambda text: None, tiny_config(workers=1, physics="mujoco-uni"))


@pytest.mark.process
def test_stub_workers_run_rollouts(nothing_left: None) -> None:
    """Two stub workers do the jobs of the real runtime, and take at least the time that they pretend."""
    config = tiny_config(Slider(), workers=2).resolved()
    plan = LightPlan.light(config, "unilab.bench.stub:StubRunner", StubSettings(plan_size := 2, step_s=0.005))
    assert config.shard_size == plan_size
    stubs = Collection("stubs", plan)
    try:
        assert stubs.rollout() >= 0.005 * config.algo.rollout_steps
        assert stubs.run() > 0
        assert not stubs.collector.ring.rollout(stubs.index)["reward"].any()
    finally:
        stubs.close()


def test_a_stub_worker_imports_no_jax() -> None:
    """What a stub worker loads, jobs and reports included, brings in neither jax nor mujoco."""
    code = (
        "import sys, unilab.runtime.worker, unilab.runtime.runner, unilab.runtime.messages, unilab.bench.work, "
        "unilab.bench.stub; print({'jax', 'mujoco', 'flax'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "set()\n"
