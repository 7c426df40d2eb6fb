from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config, tiny_plan

from unilab.runtime.determinism import RollingDigest, named_leaves
from unilab.runtime.job import Job, JobRunner
from unilab.runtime.memory import Memory
from unilab.runtime.train import train


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
