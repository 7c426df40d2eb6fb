from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Slider, tiny_config, tiny_plan

from unilab import cli
from unilab.config import make_config
from unilab.envs.registry import find_task
from unilab.runtime import determinism as determinism_module
from unilab.runtime.determinism import Row, determinism, variability
from unilab.runtime.digest import Difference, RollingDigest, Trace, named_leaves
from unilab.runtime.job import JobRunner
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job
from unilab.runtime.train import train
from unilab.runtime.xla import set_deterministic


@dataclass
class Jobs:
    """Shared memories, a runner, and the jobs of two rollouts of four shards under policy versions 0 and 1."""

    memories: dict[str, Memory]
    runner: JobRunner
    begin: list[Job]
    rollouts: list[list[Job]]  # of each shard, in order

    def result_of(self, jobs: list[Job]) -> dict[str, bytes]:
        """All bits that the jobs leave behind, in memory that held nothing before."""
        for memory in (self.memories["bank"], self.memories["ring"]):
            for array in memory.arrays.values():
                array.view(np.uint8)[...] = 0xFF
        for job in jobs:
            self.runner.run(job)
        return {
            f"{name}/{field}": array.tobytes()
            for name in ("bank", "ring")
            for field, array in self.memories[name].arrays.items()
        }


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    plan = tiny_plan(lag=1)
    memories = {name: Memory(shapes) for name, shapes in plan.layout.items().items()}
    runner = JobRunner(plan, memories)
    for version in (0, 1):
        policy = plan.algorithm.snapshot(plan.algorithm.init(jax.random.key(version)))
        runner.snapshots.publish(version, {"policy": policy, "curriculum": {}})
    shards = range(plan.num_shards)
    return Jobs(
        memories,
        runner,
        [Job("begin", 0, shard, 0) for shard in shards],
        [[Job("rollout", index, shard, index) for index in (0, 1)] for shard in shards],
    )


@pytest.fixture(scope="module")
def in_order(jobs: Jobs) -> dict[str, bytes]:
    return jobs.result_of(jobs.begin + [shard[index] for index in (0, 1) for shard in jobs.rollouts])


@given(shards=st.permutations([0, 0, 1, 1, 2, 2, 3, 3]), begin=st.permutations(range(4)))
def test_any_interleaving_of_jobs_gives_the_same_rollouts(jobs: Jobs, in_order: Any, shards: Any, begin: Any) -> None:
    """Whatever the order in which shards are begun and advanced, bank and rollouts end up with the same bits."""
    turns = {shard: iter(jobs.rollouts[shard]) for shard in range(4)}
    assert jobs.result_of([jobs.begin[i] for i in begin] + [next(turns[shard]) for shard in shards]) == in_order


def test_a_job_done_again_writes_the_same_bits(jobs: Jobs, in_order: Any) -> None:
    """A rollout that is collected again from the same generation, as after a worker's death, changes nothing."""
    first, second = ([shard[index] for shard in jobs.rollouts] for index in (0, 1))
    assert jobs.result_of([*jobs.begin, *first, first[2], *second, second[1], second[1]]) == in_order


def test_every_element_of_a_rollout_is_written(jobs: Jobs, in_order: Any) -> None:
    """No element of a collected rollout still has the bits that its memory was filled with."""
    for field, array in jobs.memories["ring"].arrays.items():
        words = np.frombuffer(in_order[f"ring/{field}"], np.uint32)
        assert words.size == array.size
        assert not (words == 0xFFFFFFFF).any(), field


def digest_of(out: Path, **changes: Any) -> str:
    """Digest of a training's rollouts and weights, without worker processes."""
    return train(tiny_config(digest=True, **changes), out).summary["digest"]


def test_evaluation_and_order_of_jobs_leave_the_training_alone(tmp_path: Path) -> None:
    """How often the policy is evaluated, and the order of jobs, change nothing in the rollouts and weights."""
    first = digest_of(tmp_path / "reference")
    assert digest_of(tmp_path / "run", eval_every=1, eval_episodes=2, job_order="shuffled") == first


def test_overlap_is_deterministic(tmp_path: Path) -> None:
    """With lag 1 two trainings agree bit for bit, whatever the order of jobs; another seed gives another one."""
    first, second = (digest_of(tmp_path / order, lag=1, job_order=order) for order in ("in_order", "shuffled"))
    assert first == second
    assert digest_of(tmp_path / "seed", lag=1, seed=1) != first


@pytest.mark.parametrize("change", ["bit", "name", "dtype", "shape"])
def test_digest_sees_every_change(change: str) -> None:
    """One flipped bit, another name, dtype or shape changes the digest."""
    value = np.arange(6, dtype=np.float32)
    other = {"bit": value.copy(), "name": value, "dtype": value.view(np.int32), "shape": value.reshape(2, 3)}[change]
    if change == "bit":
        other.view(np.uint32)[3] ^= 1
    digests = []
    for name, array in (("x", value), ("y" if change == "name" else "x", other)):
        digest = RollingDigest()
        digest.add({name: array})
        digests.append(digest.hexdigest())
    assert digests[0] != digests[1]


def test_digest_does_not_depend_on_layout_or_order() -> None:
    """Arrays count by name and content: neither their order nor their strides matter; an empty one is allowed."""
    x, empty = np.arange(6.0).reshape(2, 3), np.zeros((0, 3))
    digests = []
    for arrays in ({"x": x, "empty": empty}, {"empty": empty, "x": np.asfortranarray(x)}):
        digest = RollingDigest()
        digest.add(arrays)
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1]
    assert len(digests[0]) == 16
    assert set(digests[0]) <= set(hashlib.sha256().hexdigest() + "0123456789abcdef")


def test_leaves_are_named_by_their_path() -> None:
    """`named_leaves` finds every leaf under its path in the tree."""
    leaves = named_leaves({"a": [jax.numpy.ones(2), jax.numpy.zeros(())], "b": jax.numpy.int32(3)})
    assert {name: value.shape for name, value in leaves.items()} == {"a/0": (2,), "a/1": (), "b": ()}


def test_a_digest_goes_on_from_its_state() -> None:
    """A digest that was stored and taken up again ends where an undisturbed one does."""
    arrays = [{"x": np.arange(n)} for n in range(4)]
    whole, first = RollingDigest(), RollingDigest()
    for each in arrays:
        whole.add(each)
    for each in arrays[:2]:
        first.add(each)
    second = RollingDigest(first.state)
    for each in arrays[2:]:
        second.add(each)
    assert second.hexdigest() == whole.hexdigest()


def trace_of(changed: str | None) -> Trace:
    """Sums of three iterations; from iteration 1 on, one number of one kind is another."""
    trace = Trace()
    for iteration in range(3):
        rollout = {name: np.zeros((4, 6)) for name in ("reward", "weight")}
        weights = {"actor": np.zeros(3), "critic": np.zeros(3)}
        for arrays in (rollout, weights):
            if changed in arrays and iteration > 0:
                arrays[changed].reshape(-1)[-1] = 1e-300
        trace.add(iteration, rollout, weights)
    return trace


@pytest.mark.parametrize(
    ("changed", "expected"),
    [(None, None), ("weight", Difference(1, "weight", 5)), ("critic", Difference(1, "weights/critic", None))],
)
def test_the_first_difference_is_named(changed: str | None, expected: Difference | None) -> None:
    """Two traces are compared to the iteration, the field and the env."""
    assert trace_of(None).difference(trace_of(changed)) == expected
    shorter = Trace()
    assert shorter.difference(trace_of(None)) == Difference(0, "missing in one of the two", None)


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nothing_left")
def test_nothing_but_the_seed_decides_a_run() -> None:
    """The whole matrix: workers, order, cores, a worker's death, stop and resume, overlap. Every row is equal."""
    rows = determinism(tiny_config(), iterations=3)
    assert [row.name for row in rows if not row.is_equal] == []
    assert len({row.digest for row in rows}) == 2  # with and without overlap
    assert len(rows) == 13


def test_a_warm_up_that_outlasts_the_trainings_is_refused() -> None:
    """Trainings too short for a single gradient step prove nothing; the message says what to change."""
    config = make_config(Slider(), "sac", num_envs=8)
    with pytest.raises(ValueError, match=r"half of 5 iterations collects 128 env steps.*--algo.warm-up-steps 128"):
        determinism(config, iterations=5)


@dataclass(frozen=True)
class Impure(Slider):
    """A slider whose reward counts the calls."""

    def advance(self, state: Any, physics: Any, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        def count(steps: Any) -> Any:
            CALLS.append(1)
            return np.float32(len(CALLS))

        calls = jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float32), state.steps, vmap_method="sequential")
        new_state, terms, terminated, metrics = super().advance(state, physics, action, key, curriculum)
        return new_state, terms | {"middle": terms["middle"] + calls}, terminated, metrics


CALLS: list[int] = []


def test_an_impure_task_is_found_out() -> None:
    """A task that depends on more than its arguments differs from run to run, and the first field is named."""
    matrix = determinism_module._Matrix(tiny_config(Impure(), digest=True), lambda row: None)
    matrix.add("once", "once")
    matrix.add("again", "once")
    assert [row.is_equal for row in matrix.rows] == [True, False]
    assert str(matrix.rows[1].difference).startswith("iteration 0, reward, env 0")


def test_deterministic_flags_come_before_jax(tmp_path: Path) -> None:
    """`--deterministic` sets XLA's flag in time; once jax runs without it, that is an error that says what to do."""
    with pytest.raises(ValueError, match="jax has already started without that"):
        set_deterministic()
    code = """
import os
from unilab.cli import main
assert main("train CartpoleSwingup --deterministic --steps 1 --workers 0 --num-envs 4 --eval-episodes 1 "
            f"--task.episode-s 0.1 --quiet --out {os.environ['OUT']}".split()) == 0
print(os.environ["XLA_FLAGS"])
"""
    environment = os.environ | {"OUT": str(tmp_path / "run"), "XLA_FLAGS": ""}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "--xla_gpu_deterministic_ops=true"


def test_the_command_shows_a_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`unilab determinism` exits with 1 and says where the first difference is; with 0 if there is none."""
    difference: Difference | None = Difference(2, "obs/actor", 130)

    def fake(config: Any, iterations: int, show: Any) -> list[Row]:
        rows = [Row("one worker", "ab", None, "one worker"), Row("2 workers", "cd", difference, "one worker")]
        for row in rows:
            show(row)
        return rows

    monkeypatch.setattr(determinism_module, "determinism", fake)
    monkeypatch.setattr(determinism_module, "variability", lambda task: {"between_runs": 0.0, "between_envs": 0.0})
    assert cli.main(["determinism", "CartpoleSwingup", "--learner-threads", "2"]) == 1
    text = capsys.readouterr().out
    assert "2 workers" in text
    assert "DIFFERS from 'one worker': iteration 2, obs/actor, env 130, shard 2" in text
    assert cli.main(["determinism", "CartpoleSwingup", "--workers", "3"]) == 2
    assert "--workers cannot be chosen" in capsys.readouterr().err
    difference = None
    assert cli.main(["determinism", "CartpoleSwingup", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["exact"], [row["equal"] for row in printed["rows"]]) == (True, [True, True])


@pytest.mark.parametrize("name", ["CartpoleSwingup", "Go1JoystickFlat", Slider])
def test_equal_simulations_do_not_drift(name: Any) -> None:
    """Identical envs stay identical, within a batch and between runs, over a thousand env steps."""
    task = find_task(name)() if isinstance(name, str) else name()
    assert variability(task, num_envs=4, steps=1000) == {"between_runs": 0.0, "between_envs": 0.0}
