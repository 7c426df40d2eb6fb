from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import psutil
import pytest
from conftest import wait_until
from tiny import SETTINGS, Messages, Slider, SliderState, tiny_config, tiny_plan

from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.envs.task import Physics
from unilab.runtime import pool as pool_module
from unilab.runtime.checkpoint import load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.errors import WorkerError
from unilab.runtime.job import JobRunner
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job
from unilab.runtime.pool import InlinePool, ProcessPool
from unilab.runtime.train import ready_plan, train, train_plan

PATIENCE_S = 5.0  # what a process gets to notice that it should end
LONG_ROLLOUT: dict[str, Any] = {"num_envs": 4, "shard_size": 4, "algo.rollout_steps": 200_000, "steps": 800_000}


@dataclass(frozen=True)
class Breaks(Slider):
    """A slider whose `advance` raises on the host when an episode reaches its 5th step."""

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        def complain(steps: Any) -> Any:
            if steps == 5:
                raise ArithmeticError("the wheel came off")
            return np.float32(0.0)

        zero = jax.pure_callback(complain, jax.ShapeDtypeStruct((), jnp.float32), state.steps, vmap_method="sequential")
        new_state, terms, terminated, metrics = super().advance(state, physics, action, key, curriculum)
        return new_state, terms | {"middle": terms["middle"] + zero}, terminated, metrics


@dataclass(frozen=True)
class Heavy(Slider):
    """A slider whose model fills more than a pipe holds, as one with meshes does."""

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        spec = super().model(fine)
        spec.add_texture(
            name="big",
            type=mujoco.mjtTexture.mjTEXTURE_2D,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_FLAT,
            width=1024,
            height=1024,
        )
        return spec


def collect(collector: Collector) -> None:
    collector.schedule.start_rollout(0)
    collector.schedule.finish_rollout(0)


def begun(collector: Collector, plan: Any) -> Collector:
    """A collector with version 0 of the policy and the first episodes begun."""
    collector.publish(0, plan.algorithm.snapshot(plan.algorithm.init(jax.random.key(0))), {})
    collector.schedule.begin()
    return collector


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a training without worker processes."""
    config = tiny_config(digest=True, workers=0, lag=1)
    return train(config, tmp_path_factory.mktemp("inline") / "run").summary["digest"]


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_a_failure_in_a_worker_shows_its_traceback_and_envs(tmp_path: Path) -> None:
    """What a task raises in a worker ends the training, with the worker's own traceback and the envs it worked on."""
    with pytest.raises(WorkerError) as caught:
        train(tiny_config(Breaks(), workers=1), tmp_path / "run")
    message = str(caught.value)
    assert message.startswith("worker 0 failed in rollout 0, shard 0, policy version 0 (envs 0 to 1)\nTraceback")
    assert "in complain\nArithmeticError: the wheel came off" in message


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_a_busy_worker_uses_one_core() -> None:
    """A worker in a rollout burns about one core's time; the pool can be closed in the middle of it."""
    plan = tiny_plan(workers=1, **LONG_ROLLOUT)
    with Collector(plan) as collector:
        begun(collector, plan).schedule.start_rollout(0)
        worker = psutil.Process(collector.pool.pids[0])  # type: ignore[attr-defined]
        first_obs = collector.ring.rollout(0)["obs/actor"]
        wait_until(lambda: bool(first_obs[1].any()), "the first env step")
        cpu, start = sum(worker.cpu_times()[:2]), time.monotonic()
        time.sleep(1.5)
        cores = (sum(worker.cpu_times()[:2]) - cpu) / (time.monotonic() - start)
        assert not first_obs[-1].any(), "the rollout was over too soon to tell"
    assert 0.0 < cores < 1.3


FAULTS = {
    "Faulty": (1, "was killed by SIGKILL"),
    "Twice": (2, "was killed by SIGKILL"),
    "All": (2, "was killed by SIGKILL"),
    "Segfaults": (1, "was killed by SIGSEGV"),
    "Exits": (1, "ended with exit code 3"),
    "Hangs": (1, "made no progress for 5 s or more, was killed"),
    "Begins": (1, "was killed by SIGKILL"),
    "Evaluates": (1, "was killed by SIGKILL"),
}


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_worker_changes_nothing(tmp_path: Path, undisturbed: str, fault: str) -> None:
    """Workers that are killed, crash, leave or hang in a rollout are replaced; the bits stay, and it is told."""
    count, how = FAULTS[fault]
    config = tiny_config(digest=True, workers=2, lag=1, hang_after_s=5.0 if fault == "Hangs" else 60.0)
    display = Messages()
    result = train_plan(replace(ready_plan(config), runner=f"faults:{fault}"), tmp_path / "run", display=display)
    assert result.summary["digest"] == undisturbed
    assert result.summary["replaced_workers"] == count
    assert (tmp_path / "run" / "log.txt").read_text().count("it is replaced") == count
    told = [text for text in display.texts if "it is replaced" in text]
    assert len(told) == count
    job = {"Begins": "begin 0", "Evaluates": "evaluate 1"}.get(fault, "rollout 1")
    assert any(how in text and f"{job}, shard 0" in text for text in told)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("is_out_of_memory", [False, True])
def test_a_job_that_kills_three_workers_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_out_of_memory: bool
) -> None:
    """The error names rollout, shard and signal, and memory if the kernel says so; the last checkpoint is there."""
    kills = iter(range(10**6))
    monkeypatch.setattr(pool_module, "oom_kills", lambda: next(kills) if is_out_of_memory else 0)
    plan = replace(ready_plan(tiny_config(workers=1)), runner="faults:Always")
    with pytest.raises(WorkerError) as caught:
        train_plan(plan, tmp_path / "run")
    message = str(caught.value)
    assert re.match(r"worker 0 \(pid \d+\) was killed by SIGKILL while rollout 1, shard 0, .*\(envs 0 to 1\)", message)
    assert message.endswith("it was the last of 3 workers that ended there")
    assert ("probably out of memory" in message) == is_out_of_memory
    assert load_checkpoint(tmp_path / "run").manifest["iteration"] == 0


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_workers_killed_at_the_start_or_while_idle_are_replaced() -> None:
    """A worker that is killed before it is ready, and one that is killed while it waits, are replaced."""
    plan = tiny_plan(workers=2)
    told: list[str] = []
    with Collector(plan, report=told.append) as collector:
        for pid in collector.pool.pids:  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
        begun(collector, plan)
        idle = next(worker for worker in collector.pool._workers if worker.is_ready)  # type: ignore[attr-defined]
        os.kill(idle.process.pid, signal.SIGKILL)
        wait_until(idle.connection.poll, "the end of the worker's pipe")  # a zombie's threads may hold it yet
        collect(collector)
        assert np.isfinite(collector.ring.rollout(0)["reward"]).all()
        assert collector.pool.replaced == 3
    assert [text.partition(" while ")[2].partition(";")[0] for text in told] == ["starting", "starting", "waiting"]


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_without_exact_state_a_worker_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a back end whose state is not whole, a lost worker ends the run with an error that says why."""
    monkeypatch.setattr(MujocoPhysics, "exact_state", False)
    plan = tiny_plan(workers=1)
    with Collector(plan) as collector:
        os.kill(collector.pool.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(WorkerError, match="cannot be replaced: this physics back end"):
            begun(collector, plan)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_worker_that_cannot_be_ended_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that survives SIGKILL could still write, so its job is not handed out again, and that is told."""
    plan = tiny_plan(workers=1, **LONG_ROLLOUT)

    def never(timeout: float) -> int:
        raise subprocess.TimeoutExpired("worker", timeout)

    with pytest.raises(WorkerError, match="not even by SIGKILL"), Collector(plan) as collector:  # noqa: PT012
        begun(collector, plan).schedule.start_rollout(0)
        process = collector.pool._workers[0].process  # type: ignore[attr-defined]
        collector.pool._workers[0].known_kinds.add("rollout")  # type: ignore[attr-defined]
        collector.pool._watch._patience = 2  # type: ignore[attr-defined]
        process.send_signal(signal.SIGSTOP)
        really_wait = process.wait
        monkeypatch.setattr(process, "wait", never)
        collector.schedule.finish_rollout(0)
    really_wait()


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("task", [Slider(), Heavy()])
def test_a_worker_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch, task: Slider) -> None:
    """Worker processes that end before they are ready give a WorkerError that says so, however large the model is."""
    plan = tiny_plan(task, workers=1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    message = "ended with exit code 1 while starting; it was the last of 3"
    with pytest.raises(WorkerError, match=message), Collector(plan) as collector:
        begun(collector, plan)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from tiny import tiny_config
from unilab.runtime.train import train
train(tiny_config(workers=2, lag=1, steps=10**9), {out!r}, callback=lambda row: print("row", flush=True))
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains for ever with two workers, after its first iterations."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "row\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_go_when_their_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    """After kill -9 of a training its workers end by themselves, and nothing is left in /dev/shm or $TMPDIR."""
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert len(workers) == 2
    for process in (parent.pid, *(worker.pid for worker in workers)):
        assert "/dev/shm" not in Path(f"/proc/{process}/maps").read_text()
    parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    for worker in alive:
        worker.kill()
    assert not alive
    assert not list(Path(os.environ["TMPDIR"]).iterdir())


def test_a_pool_without_jobs_refuses_to_wait() -> None:
    """Waiting for a report when no job was submitted is an error in the order of calls, not a hang."""
    plan = tiny_plan()
    memories = {name: Memory(shapes) for name, shapes in plan.layout.items().items()}
    for pool in (InlinePool(JobRunner(plan, memories)), ProcessPool(plan, memories, 0)):
        with pytest.raises(RuntimeError, match="without a submitted job"):
            pool.wait()
        pool.close()
        pool.close()
    for memory in memories.values():
        memory.close()


def test_jobs_describe_themselves() -> None:
    """The text of a job says what, which shard and which version, as error messages show it."""
    assert str(Job("rollout", 7, 3, 6)) == "rollout 7, shard 3, policy version 6"
    assert SETTINGS["num_envs"] % SETTINGS["shard_size"] == 0
