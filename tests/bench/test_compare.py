"""`bench env` and `bench physics`: the form of the figures, and what is counted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from unilab.bench.env import bench_env
from unilab.bench.physics import bench_physics
from unilab.bench.recording import SETTLE_STEPS, record_physics
from unilab.bench.result import COLUMNS, skip_reasons
from unilab.bench.stepped import SteppedAsync, SteppedEnv, _fastest

TINY: dict[str, Any] = {
    "tasks": ("InvertedPendulum-v5",), "num_envs": (2,), "workers": (1,), "seconds": 0.01, "repeats": 1,
}  # fmt: skip
KEYS = {"verb", "date", "machine", "versions", "options", "results", "skipped"}


def ignore(text: str) -> None:
    pass


@pytest.mark.process
def test_envs_side_by_side(nothing_left: None) -> None:
    """Rows of ours, Gymnasium's and the physical limit have all columns; the default's ratio is 1, the limit's too."""
    result = bench_env(ignore, ("mujoco", "gymnasium-sync"), **TINY)
    assert set(result) == KEYS
    assert [row["backend"] for row in result["results"]] == ["mujoco", "gymnasium-sync", "limit"]
    for row in result["results"]:
        assert set(COLUMNS) <= set(row)
        assert row["env_steps_per_s"] > 0
    ours, gymnasiums, limit = result["results"]
    assert (ours["ratio_to_default"], limit["ratio_to_limit"]) == (1.0, 1.0)
    assert (ours["workers"], gymnasiums["workers"]) == (1, 0)
    assert ours["model"]["substeps"] == 2


@pytest.mark.process
def test_physics_side_by_side(nothing_left: None) -> None:
    """Rows of the default back end and of the physical limit have all columns."""
    result = bench_physics(ignore, ("mujoco",), **TINY)
    assert [row["backend"] for row in result["results"]] == ["mujoco", "limit"]
    assert all(set(COLUMNS) <= set(row) for row in result["results"])


@pytest.mark.process
def test_envpools_limit_is_stepped_by_another_interpreter(nothing_left: None) -> None:
    """Another interpreter's MuJoCo steps the recorded states; its version stands in the row, and in no other ratio."""
    result = bench_env(ignore, ("mujoco",), **TINY, envpool_mujoco_python=sys.executable)
    ours, limit, envpools = result["results"]
    assert (limit["backend"], envpools["backend"]) == ("limit", "envpool-limit")
    assert envpools["settings"] == {"mujoco": mujoco.__version__}
    assert envpools["ratio_to_limit"] == 1.0
    assert ours["ratio_to_limit"] == ours["env_steps_per_s"] / limit["env_steps_per_s"]


def test_an_interpreter_without_mujoco_is_an_error(nothing_left: None, tmp_path: Path) -> None:
    """One that is not there is told with the way to install it, and leaves nothing."""
    with pytest.raises(ValueError, match=r"--envpool-mujoco-python .*cannot be started .*pip install mujoco==3.6.0"):
        bench_env(ignore, ("mujoco",), **TINY, envpool_mujoco_python=str(tmp_path / "nowhere"))


def test_what_physics_steps_is_what_its_limit_steps() -> None:
    """The recorded states follow from each other: nothing restarts among them."""
    recording = record_physics("InvertedPendulum-v5")  # falls within a few env steps
    time = recording.part("time")[..., 0]
    assert np.allclose(time, recording.env.task.control_dt * np.arange(len(time))[:, None])


def test_a_task_that_others_lack_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium has no Go1: it is listed as skipped for that task, with the reason."""
    from unilab.bench.vector_envs import make_stepped

    with pytest.raises(LookupError, match="it has no task CartpoleSwingup"):
        make_stepped("gymnasium-sync", "CartpoleSwingup", 1, 1, 0.01)


def test_what_is_skipped_names_the_task_once() -> None:
    """A back end that cannot do one of the tasks is listed with that task, once for all numbers of envs."""
    skipped = [{"backend": "b", "reason": "no", "task": task} for task in ("Ant-v5", "Ant-v5", "Humanoid-v5")]
    skipped.append({"backend": "c", "reason": "not installed"})
    assert skip_reasons({"skipped": skipped}) == ["b on Ant-v5: no", "b on Humanoid-v5: no", "c: not installed"]


@pytest.mark.parametrize("bench", [bench_env, bench_physics])
def test_an_unknown_back_end_is_refused(bench: Any) -> None:
    """The error names the nearest back end, before anything is started."""
    with pytest.raises(ValueError, match=r"unknown .*'mujocco'; did you mean mujoco"):
        bench(ignore, ("mujocco",), **TINY)


class Short(gymnasium.Env[np.ndarray, np.ndarray]):
    """Episodes of two env steps."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.age += 1
        return np.zeros(1, np.float32), 0.0, self.age == 2, False, {}


@pytest.mark.parametrize(
    ("mode", "counts"), [(AutoresetMode.NEXT_STEP, [3, 3, 0, 3, 3, 0]), (AutoresetMode.SAME_STEP, [3] * 6)]
)
def test_a_step_that_only_resets_is_no_env_step(mode: AutoresetMode, counts: list[int]) -> None:
    """As in Gymnasium's benchmark_vector_step, the reset step of NEXT_STEP does not count."""
    stepped = SteppedEnv("short", SyncVectorEnv([Short] * 3, autoreset_mode=mode), 0, 0.01)
    assert [stepped._step() for _ in range(6)] == np.roll(counts, -SETTLE_STEPS).tolist()
    stepped.close()


class Threads:
    """Stands for an EnvPool of four envs that takes two at a time, with episodes of two env steps; steps are over as
    soon as they are asked for."""

    num_envs, action_space = 4, gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.ages = np.zeros(4, int)
        self.steps = 0

    def async_reset(self) -> None:
        self.ready += range(4)

    def send(self, actions: np.ndarray, envs: np.ndarray) -> None:
        assert actions.shape == (len(envs), 1)
        self.ready += envs.tolist()
        self.steps += int(np.count_nonzero(self.ages[envs] < 2))
        self.ages[envs] = np.where(self.ages[envs] < 2, self.ages[envs] + 1, 0)

    def recv(self) -> Any:
        envs, self.ready = np.array(self.ready[:2]), self.ready[2:]
        return None, None, self.ages[envs] == 2, np.zeros(2, bool), {"env_id": envs}

    def close(self) -> None:
        pass


def test_what_is_in_flight_ends_within_the_run_and_counts_once() -> None:
    """An asynchronous pool counts the env steps that it was asked for in this run, no resets, and leaves none open."""
    threads = Threads()
    stepped = SteppedAsync("threads", threads, 1, 0.01, num_envs=4)
    assert not threads.ready
    for _ in range(2):
        before, start = threads.steps, time.perf_counter()
        rate = stepped.run()
        assert not threads.ready
        assert rate * (time.perf_counter() - start) >= threads.steps - before > 0


@pytest.mark.parametrize("fails", ["make", "run", None])
def test_of_some_settings_the_fastest_stays_open(fails: str | None) -> None:
    """The others are closed; all are, if one cannot be made or stepped."""
    made: list[Any] = []

    class Timed:
        def __init__(self, rate: int) -> None:
            if fails == "make" and rate == 3:
                raise OSError("cannot be made")
            self.rate, self.is_closed = rate, False
            made.append(self)

        def run(self) -> int:
            if fails == "run" and self.rate == 3:
                raise OSError("cannot run")
            return self.rate

        def close(self) -> None:
            self.is_closed = True

    make: Any = Timed
    if fails:
        with pytest.raises(OSError, match="cannot"):
            _fastest(make, [1, 2, 3], 0.01)
    else:
        assert _fastest(make, [1, 3, 2], 0.01).run() == 3
    assert [each.rate for each in made if not each.is_closed] == ([] if fails else [3])
