from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import FREE, Slider, tiny_config, tiny_plan

from unilab.runtime import collector as collector_module
from unilab.runtime.checkpoint import load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.digest import named_leaves
from unilab.runtime.errors import NonFiniteError
from unilab.runtime.learner import Learner
from unilab.runtime.metrics import read_metrics
from unilab.runtime.plan import Plan
from unilab.runtime.run import held, load_policy, read_config
from unilab.runtime.train import Result, train

PER_ITERATION = 64  # env steps


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tiny_plan()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished training of three iterations with an evaluation after each."""
    return train(tiny_config(digest=True, eval_every=1), tmp_path_factory.mktemp("runs") / "finished")


def weights_after(plan: Plan, iterations: int, is_poisoned: bool) -> dict[str, bytes]:
    """Bits of the learner's state after a few iterations; poisoned memory shows what is read when it must not be."""
    with Collector(plan, poison=is_poisoned) as collector:
        learner = Learner(plan.algorithm, plan.config.seed)
        collector.publish(0, learner.snapshot(), {})
        collector.schedule.begin()
        for k in range(iterations):
            collector.schedule.start_rollout(k)
            collector.schedule.finish_rollout(k)
            rollout = collector.ring.rollout(k)
            for name, array in rollout.items():
                assert np.isfinite(array).all(), name
            learner.learn(k, rollout)
            if is_poisoned:
                for array in rollout.values():
                    array.fill(np.nan)
            collector.publish(k + 1, learner.snapshot(), {})
        return {name: leaf.tobytes() for name, leaf in named_leaves(learner.state).items()}


def test_a_released_slot_is_read_no_more(plan: Plan) -> None:
    """Memory full of NaN before the first write, and a slot filled with NaN right after learning, change no weight."""
    assert weights_after(plan, 3, is_poisoned=True) == weights_after(plan, 3, is_poisoned=False)


def test_evaluation_is_repeatable_and_plays_whole_episodes() -> None:
    """The same policy meets the same episodes every time: whole ones, one for each evaluation env, of its own seed."""
    figures = []
    for changes in ({}, {"job_order": "shuffled"}, {"eval_seed": 5}):
        plan = tiny_plan(Slider(**FREE), eval_episodes=3, **changes)
        with Collector(plan) as collector:
            collector.publish(0, Learner(plan.algorithm, 0).snapshot(), {})
            once, again = collector.evaluate(0), collector.evaluate(0)
        assert once == again
        figures.append(once)
    assert figures[0] == figures[1]
    assert figures[0]["return_mean"] != figures[2]["return_mean"]
    assert figures[0]["episodes"] == 3
    assert figures[0]["length_mean"] == Slider().episode_steps
    assert figures[0]["return_std"] > 0


def test_a_run_folder_tells_everything(finished: Result) -> None:
    """A finished run holds its configuration, a row for each iteration, a summary, a curve and a checkpoint."""
    run = finished.run
    rows = read_metrics(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["env_steps"] for row in rows] == [PER_ITERATION * k for k in (1, 2, 3)]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["outcome"], summary["env_steps"], summary["seed"]) == ("finished", 3 * PER_ITERATION, 0)
    assert summary["digest"] == rows[-1]["digest"] == finished.summary["digest"]
    assert summary["evaluation"] == finished.evaluation
    assert rows[-1]["eval/return_mean"] == finished.evaluation["return_mean"]
    assert (run / "curve.png").stat().st_size > 1000
    assert load_checkpoint(run).manifest["iteration"] == 3
    config = read_config(run)
    assert None not in (config.shard_size, config.workers, config.lag, config.learner_threads, config.eval_every)
    assert type(config.task).__name__ == "Slider"


def test_rows_have_every_reward_term_and_metric(finished: Result) -> None:
    """Each iteration's row has weighted reward terms, the task's metrics, the episodes' figures and the update's."""
    for row in read_metrics(finished.run):
        for name in ("reward/middle", "reward/effort", "metric/distance", "episode/return_mean", "episode/length_mean"):
            assert isinstance(row[name], float), name
        assert row["reward/middle"] > 0 > row["reward/effort"]
        assert row["rollout/unstable_envs"] == 0
        assert row["train/first_ratio_error"] == 0.0
        assert row["env_steps_per_s"] > 0


def test_the_best_checkpoint_is_the_best_evaluation(finished: Result) -> None:
    """ "best" is the iteration with the largest return in an evaluation."""
    rows = [row for row in read_metrics(finished.run) if "eval/return_mean" in row]
    best = max(rows, key=lambda row: row["eval/return_mean"])
    assert load_checkpoint(finished.run, "best").manifest["iteration"] == best["iteration"]


OBS = np.random.default_rng(0).normal(size=(20, 2))


def test_init_from_starts_with_the_other_runs_policy(tmp_path: Path, finished: Result) -> None:
    """A training that starts from another run acts as that run's best policy before it has learned anything."""
    still: dict[str, Any] = {"steps": PER_ITERATION, "algo.learning_rate": 1e-12, "algo.schedule": "constant"}
    expected = load_policy(finished.run)(OBS)
    started = train(tiny_config(init_from=str(finished.run), seed=3, **still), tmp_path / "started")
    fresh = train(tiny_config(seed=3, **still), tmp_path / "fresh")
    np.testing.assert_allclose(load_policy(started.run)(OBS), expected, rtol=0.1, atol=0.02)  # one rollout more is seen
    assert not np.allclose(load_policy(fresh.run)(OBS), expected, rtol=0.1, atol=0.02)


def test_init_from_another_architecture_is_refused(tmp_path: Path, finished: Result) -> None:
    """A policy of other layer sizes cannot be the start, and the error says so before a run folder is made."""
    config = tiny_config(init_from=str(finished.run), **{"algo.actor_hidden": (12,)})
    with pytest.raises(ValueError, match="this configuration needs"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_init_from_nowhere_is_refused(tmp_path: Path) -> None:
    """A folder without a checkpoint cannot be the start."""
    with pytest.raises(ValueError, match="has no checkpoint"):
        train(tiny_config(init_from=str(tmp_path / "nowhere")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_callback_may_stop(tmp_path: Path) -> None:
    """When the callback returns True the training ends after that iteration, with checkpoint and summary."""
    seen: list[int] = []

    def callback(row: dict[str, Any]) -> bool:
        seen.append(row["iteration"])
        return len(seen) == 2

    result = train(tiny_config(), tmp_path / "run", callback)
    assert seen == [1, 2]
    assert result.summary["env_steps"] == 2 * PER_ITERATION
    assert load_checkpoint(tmp_path / "run").manifest["iteration"] == 2


def test_too_little_memory_is_an_error_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not fit is refused with what it needs, what there is, and what to change; no folder is made."""
    monkeypatch.setattr(collector_module, "available_bytes", lambda: 2**29)
    with pytest.raises(
        MemoryError, match=r"needs about \d+\.\d GiB .* only 0\.5 GiB are available; use a smaller --num-envs"
    ):
        train(tiny_config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused(finished: Result) -> None:
    """A finished run is never written over."""
    before = {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="already holds a run; choose another --out"):
        train(tiny_config(seed=9), finished.run)
    assert {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()} == before


def test_weights_that_explode_end_the_training(tmp_path: Path) -> None:
    """A loss that is not a number any more is an error that names it; the rollout and the last good state are kept."""
    config = tiny_config(**{"algo.learning_rate": 1e30, "algo.schedule": "constant"})
    with pytest.raises(
        NonFiniteError, match=r"train/\w+.* became non-finite in iteration (\d+); the rollout is in"
    ) as caught:
        train(config, tmp_path / "run")
    iteration = int(str(caught.value).partition("iteration ")[2].partition(";")[0])
    with np.load(tmp_path / "run" / f"nonfinite-iteration{iteration}.npz") as rollout:
        assert rollout["reward"].shape == (8, 8)
    state = load_checkpoint(tmp_path / "run").parts["algorithm"]
    assert all(np.isfinite(array).all() for array in state.values())


def test_a_weight_that_is_not_a_number_is_noticed(plan: Plan) -> None:
    """Not only losses are looked at: any number of the algorithm's state that is not finite ends the run, by name."""
    with Collector(plan) as collector:
        learner = Learner(plan.algorithm, 0)
        collector.publish(0, learner.snapshot(), {})
        collector.schedule.begin()
        collector.schedule.start_rollout(0)
        collector.schedule.finish_rollout(0)
        # Adam divides by the root of its second moments: an infinite one moves no weight and shows in no loss.
        moments = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.full_like(x, np.inf) if "nu" in jax.tree_util.keystr(path) else x,
            learner.state.opt_state,
        )
        learner.state = learner.state._replace(opt_state=moments)
        with pytest.raises(NonFiniteError, match=r"opt_state/.*nu.* became non-finite"):
            learner.learn(0, collector.ring.rollout(0))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file in the way, or a read-only folder, is one line before anything else; nothing is left behind."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match=r"cannot write into .*; choose another --out"):
            train(tiny_config(), out)
    (tmp_path / "closed").mkdir(mode=0o500)
    if not os.access(tmp_path / "closed", os.W_OK):  # root may write anywhere
        with pytest.raises(ValueError, match="cannot write into"):
            train(tiny_config(), tmp_path / "closed")
        assert not list((tmp_path / "closed").iterdir())


def test_an_interrupted_beginning_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before the first checkpoint: a new folder is gone, one that was there is as it was."""

    def stop(self: Collector, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.pool._check()  # type: ignore[attr-defined]

    monkeypatch.setattr(Collector, "publish", stop)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    for name in ("new", "there"):
        with pytest.raises(KeyboardInterrupt):
            train(tiny_config(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["notes.txt"]


def test_two_trainings_cannot_share_a_folder(tmp_path: Path) -> None:
    """A folder that another process trains into is refused, even before anything stands in it."""
    (tmp_path / "run").mkdir()
    with held(tmp_path / "run"), pytest.raises(ValueError, match="is being trained into by another process"):
        train(tiny_config(), tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_training_leaves_no_compiled_code(tmp_path: Path) -> None:
    """What a training compiled goes with it: else some eighty in one process would use up its memory mappings."""

    def mappings(name: str) -> int:
        train(tiny_config(), tmp_path / name)
        gc.collect()
        return Path("/proc/self/maps").read_text().count("\n")

    mappings("first")
    second, third = mappings("second"), mappings("third")
    assert third - second < 50
