from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from conftest import wait_until
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from tiny import Slider

from unilab.envs import checker
from unilab.envs.checker import check_sequences
from unilab.envs.physics.registry import PHYSICS
from unilab.envs.registry import find_task
from unilab.gym.env import UnilabEnv
from unilab.gym.vector import UnilabVectorEnv
from unilab.runtime.errors import WorkerError

TASK = Slider(limit=0.5)  # short enough to terminate now and then
LIMIT = {"max_episode_steps": checker.LIMIT}  # one compiled program for all tests
ZEROS = np.zeros((2, 1), np.float32)


@pytest.fixture(scope="module")
def envs() -> Any:
    """Two envs in this process; tests leave them reset."""
    made = UnilabVectorEnv(TASK, 2, seed=1, **LIMIT)
    made.reset()
    yield made
    made.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_sequences_in_this_process(mode: AutoresetMode) -> None:
    """Step by step the vector env gives what Gymnasium's SyncVectorEnv over our single env gives."""
    check_sequences(TASK, UnilabEnv, UnilabVectorEnv, mode, 0)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_sequences_with_workers(mode: AutoresetMode) -> None:
    """The same holds with worker processes, which leave nothing behind; observations come as a dict here."""
    check_sequences(TASK, partial(UnilabEnv, obs="dict"), partial(UnilabVectorEnv, obs="dict"), mode, 2)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_sequences_of_a_robot_that_falls() -> None:
    """The same holds for a task of the suite, whose envs end by themselves and are restarted by their workers."""
    check_sequences(find_task("Hopper-v5")(), UnilabEnv, UnilabVectorEnv, AutoresetMode.SAME_STEP, 2)


class CountingConnection:
    """Counts the messages that go each way."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.fileno, self.close = connection.fileno, connection.close
        self.sent = self.received = 0

    def send(self, message: Any) -> None:
        self.sent += 1
        self._connection.send(message)

    def recv(self) -> Any:
        self.received += 1
        return self._connection.recv()


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_a_step_is_one_message_each_way() -> None:
    """However many envs a worker has, a step costs one message to it and one from it."""
    with UnilabVectorEnv(TASK, 6, num_workers=2, seed=1, **LIMIT) as envs:
        envs.reset()
        workers = envs._stepper._team._workers  # type: ignore[attr-defined]
        for worker in workers:
            worker.connection = CountingConnection(worker.connection)
        for _ in range(3):
            envs.step(np.zeros((6, 1), np.float32))
        assert [(w.connection.sent, w.connection.received) for w in workers] == [(3, 3), (3, 3)]


@pytest.mark.parametrize("physics", PHYSICS)
def test_every_physics(physics: str) -> None:
    """The vector env does on every installed back end what it does on upstream MuJoCo, up to float32 rounding."""
    if not PHYSICS[physics].is_installed:
        pytest.skip(PHYSICS[physics].install_command)
    np.testing.assert_allclose(positions(physics), positions("mujoco"), rtol=0, atol=1e-4)


def positions(physics: str) -> np.ndarray:
    """Positions after the reset and after each step of an episode and the next [steps, 2, nq]."""
    with UnilabVectorEnv("CartpoleSwingup", 2, physics=physics, **LIMIT) as envs:
        with pytest.raises(ResetNeeded, match=r"qpos\(\) before reset\(\)"):
            envs.qpos()
        envs.reset(seed=0)
        found = [envs.qpos()]
        for _ in range(checker.LIMIT + 2):
            envs.step(ZEROS + 1.0)
            found.append(envs.qpos())
        return np.stack(found)


def test_the_same_seed_gives_the_same_episodes(envs: UnilabVectorEnv) -> None:
    """A seed decides everything from the reset on; another seed, and a next episode, are different ones."""

    def play(seed: int) -> bytes:
        obs = [envs.reset(seed=seed)[0], *(envs.step(ZEROS)[0] for _ in range(5))]
        return np.stack(obs).tobytes() + envs.qpos().tobytes()

    first = play(5)
    after, _ = envs.reset()
    assert play(5) == first != play(6)
    assert not np.array_equal(after, envs.reset(seed=5)[0])
    one, _ = envs.reset(seed=[6, None])
    assert np.array_equal(one[0], envs.reset(seed=6)[0][0])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((1, 1)), r"actions have shape \(1, 1\); allowed: \[envs, entries\] = \(2, 1\)"),
        (np.zeros(2), r"shape \(2,\)"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        (np.array([[0.0], [np.nan]]), r"actions of envs \[1\] are not finite"),
        (np.array([[np.inf], [0.0]]), r"actions of envs \[0\] are not finite"),
    ],
)
def test_wrong_actions(envs: UnilabVectorEnv, action: np.ndarray, message: str) -> None:
    """Wrong actions are named, and the env goes on as if they had not been."""
    before = envs.qpos()
    with pytest.raises(ValueError, match=message):
        envs.step(action)
    assert np.array_equal(envs.qpos(), before)
    envs.step(ZEROS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1]}, "seed has 1 entries; allowed: one for each of 2 envs"),
        ({"seed": -1}, "-1"),
        ({"options": {"mask": 1}}, "unknown option 'mask' of reset; allowed: 'reset_mask'"),
        ({"options": {"reset_mask": np.zeros(2, bool)}}, "at least one"),
        ({"options": {"reset_mask": np.ones(3, bool)}}, r"\(3,\)"),
        ({"options": {"reset_mask": [True, True]}}, "list"),
        ({"options": {"reset_mask": np.ones(2)}}, "float64"),
    ],
)
def test_wrong_resets(envs: UnilabVectorEnv, arguments: dict[str, Any], message: str) -> None:
    """Wrong seeds and masks are named."""
    with pytest.raises((ValueError, TypeError, gymnasium.error.Error), match=message):
        envs.reset(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0; allowed: a whole number of at least 1"),
        ({"num_workers": 3}, "num_workers is 3; allowed: 0 .* to num_envs=2"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"autoreset_mode": "never"}, "autoreset_mode is 'never'; allowed: NEXT_STEP, SAME_STEP, DISABLED"),
        ({"physics": "magic"}, "physics is 'magic'; allowed: 'mujoco'"),
        ({"obs": "pixels"}, "obs is 'pixels'; allowed: 'flat' or 'dict'"),
        ({"render_mode": "human"}, "render_mode is 'human'; allowed: None or 'rgb_array'"),
        ({"camera": "front", "render_mode": "rgb_array"}, "camera is 'front'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"settings": {"limt": 1.0}}, "settings of Slider: unknown field 'limt'; did you mean limit?"),
        ({"settings": {"episode_s": 1.0}}, "max_episode_steps="),
        ({"frobnicate": 1}, "unexpected keyword argument 'frobnicate'"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_wrong_settings(arguments: dict[str, Any], message: str) -> None:
    """What cannot be made says so, names what is allowed, and leaves nothing behind."""
    with pytest.raises((ValueError, TypeError), match=message):
        UnilabVectorEnv(TASK, **{"num_envs": 2, **arguments})


def test_wrong_order_of_calls() -> None:
    """step() and a partial reset() before the first reset(), and any call after close(), are errors that say so."""
    envs = UnilabVectorEnv(TASK, 2, **LIMIT)
    with pytest.raises(ResetNeeded, match=r"step\(\) before reset\(\)"):
        envs.step(ZEROS)
    with pytest.raises(ResetNeeded, match="envs \\[1\\] have never been reset"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.close()
    envs.close()
    for call in (envs.reset, envs.render, envs.qpos, lambda: envs.step(ZEROS)):
        with pytest.raises(ClosedEnvironmentError, match="the env is closed"):
            call()


def test_an_ended_env_must_be_reset_when_autoreset_is_disabled() -> None:
    """With autoreset disabled, stepping an ended env is an error that says how to reset it."""
    envs = UnilabVectorEnv(TASK, 2, autoreset_mode="DISABLED", **LIMIT)
    envs.reset(seed=0)
    for _ in range(checker.LIMIT):
        truncated = envs.step(ZEROS)[3]
    assert truncated.all()
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"envs \[1\] have ended and autoreset is disabled"):
        envs.step(ZEROS)
    envs.close()


def test_infos_and_settings(envs: UnilabVectorEnv) -> None:
    """Reward terms are weighted and sum to the reward; a metric has a mask; settings reach the task."""
    envs.reset(seed=0)
    _, reward, _, _, infos = envs.step(ZEROS + 0.5)
    assert list(infos["reward_terms"]) == ["effort", "_effort", "middle", "_middle"]
    np.testing.assert_allclose(infos["reward_terms"]["effort"], -0.05 * 0.25)
    np.testing.assert_allclose(sum(infos["reward_terms"][name] for name in ("effort", "middle")), reward, rtol=1e-6)
    assert infos["metrics"]["_distance"].all()
    assert "late_distance" not in infos["metrics"]  # it counts from the tenth step on
    assert not infos["unstable"].any()
    free = UnilabVectorEnv(TASK, 2, settings={"rewards.effort": 0.0, "noise": 0.0}, max_episode_steps=-1)
    free.reset(seed=0)
    assert not free.step(ZEROS + 0.5)[4]["reward_terms"]["effort"].any()
    assert free.task.noise == 0.0  # type: ignore[attr-defined]
    free.close()


def _kill(envs: UnilabVectorEnv) -> None:
    os.kill(envs.worker_pids[1], signal.SIGKILL)


def _stop(envs: UnilabVectorEnv) -> None:
    os.kill(envs.worker_pids[1], signal.SIGSTOP)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("harm", "message"),
    [(_kill, "worker 1 .* was killed by SIGKILL in 'step'"), (_stop, "worker 1 made no progress in 'step'")],
)
def test_a_lost_worker(monkeypatch: pytest.MonkeyPatch, harm: Callable[[UnilabVectorEnv], None], message: str) -> None:
    """A worker that dies or hangs is an error, not a hang; the env is closed and nothing is left."""
    monkeypatch.setattr("unilab.gym.team.HANG_AFTER_S", 2.0)
    with UnilabVectorEnv(TASK, 2, num_workers=2, **LIMIT) as envs:
        envs.reset(seed=0)
        envs.step(ZEROS)
        harm(envs)
        with pytest.raises(WorkerError, match=message):
            envs.step(ZEROS)
        with pytest.raises(ClosedEnvironmentError):
            envs.step(ZEROS)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_dies_while_another_is_busy() -> None:
    """A worker that has done its job and dies while the others go on is an error that says so."""
    with UnilabVectorEnv(TASK, 2, num_workers=2, **LIMIT) as envs:
        envs.reset(seed=0)
        envs.step(ZEROS)  # from now on a step takes no time
        first, second = envs.worker_pids
        os.kill(second, signal.SIGSTOP)
        killer = threading.Timer(1.0, os.kill, (first, signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\) was killed by SIGKILL"):
            envs.step(ZEROS)
        killer.join()


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_garbage_collection_ends_the_workers() -> None:
    """An env that was forgotten without close() leaves no process behind."""
    envs = UnilabVectorEnv(TASK, 2, num_workers=2, **LIMIT)
    processes = [psutil.Process(pid) for pid in envs.worker_pids]
    del envs
    gc.collect()
    wait_until(lambda: not any(process.is_running() for process in processes), "the workers' end")
