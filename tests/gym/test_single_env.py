from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.performance import benchmark_step, benchmark_vector_step
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics, RecordVideo, vector
from tiny import Slider

import unilab
from unilab.envs.checker import LIMIT
from unilab.gym.env import UnilabEnv
from unilab.gym.registration import env_id, register
from unilab.gym.vector import UnilabVectorEnv
from unilab.runtime.errors import WorkerError

TASK = Slider(limit=0.5)
LIMITED: dict[str, Any] = {"max_episode_steps": LIMIT}
FEW = ("CartpoleSwingup", "Go1JoystickFlat", "HalfCheetah-v5")


@pytest.fixture(scope="module")
def slider_id() -> Any:
    """The small task, registered as one of the user's own."""
    register("Slider-v0", TASK, episode_steps=LIMIT)
    yield "Slider-v0"
    del gymnasium.registry["Slider-v0"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in unilab.TASKS]
)
def test_gymnasiums_checker_is_content(name: str) -> None:
    """Gymnasium's own checker finds nothing wrong with the env of any task."""
    with gymnasium.make(f"unilab:{env_id(name)}") as env:
        assert env.spec.max_episode_steps == unilab.envs.registry.find_task(name)().episode_steps
        check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("obs", ["flat", "dict"])
def test_wrappers_of_the_single_env(slider_id: str, obs: str) -> None:
    """Gymnasium's statistics and normalisation work on it; the time limit is that of `gymnasium.make`."""
    env: Any = gymnasium.make(slider_id, obs=obs, seed=3)
    env = RecordEpisodeStatistics(env)
    env = NormalizeObservation(env) if obs == "flat" else env
    first, _ = env.reset()
    assert first in env.observation_space
    ended, rewards = False, []
    while not ended:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        rewards.append(reward)
        ended = terminated or truncated
    assert info["episode"]["l"] == len(rewards) == LIMIT
    assert info["episode"]["r"] == pytest.approx(sum(rewards))
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_wrappers_of_the_vector_env(slider_id: str, mode: AutoresetMode) -> None:
    """Gymnasium's vector statistics and normalisation work in every mode, and so does its benchmark."""
    made = gymnasium.make_vec(slider_id, num_envs=2, autoreset_mode=mode, seed=3)
    assert isinstance(made, UnilabVectorEnv)
    envs: Any = vector.RecordEpisodeStatistics(made)
    if mode is AutoresetMode.NEXT_STEP:  # Gymnasium's normalisation refuses to work in the others
        envs = vector.NormalizeObservation(envs)
    envs.reset()
    total = np.zeros(2)
    for _ in range(LIMIT):
        _, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        total += reward
    assert (terminated | truncated).all()
    np.testing.assert_allclose(infos["episode"]["r"], total)
    np.testing.assert_array_equal(infos["episode"]["l"], LIMIT)
    assert benchmark_vector_step(made, target_duration=0, seed=0) > 0
    envs.close()


def test_gymnasiums_benchmark_of_the_single_env(slider_id: str) -> None:
    """Gymnasium's benchmark runs on it."""
    with gymnasium.make(slider_id) as env:
        assert benchmark_step(env, target_duration=0, seed=0) > 0


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_pictures() -> None:
    """Pictures have the size asked for, show something, and change as the robot moves."""
    look: dict[str, Any] = {"render_mode": "rgb_array", "width": 64, "height": 48}
    envs = UnilabVectorEnv("CartpoleSwingup", 1, **LIMITED, **look)
    assert envs.metadata["render_fps"] == 50
    first, moved = pictures(envs)
    assert [frame.shape for frame in first] == [(48, 64, 3)]
    assert not np.array_equal(first[0], moved[0])
    assert len(np.unique(first[0])) > 3
    envs.close()


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_a_drawing_process_that_dies() -> None:
    """It is an error of one `render()`, the next of which starts another; the env goes on."""
    envs = UnilabVectorEnv("CartpoleSwingup", 1, **LIMITED, render_mode="rgb_array", width=64, height=48)
    _, before = pictures(envs)
    drawing = [each for each in psutil.Process().children() if "unilab.runtime.worker" in each.cmdline()]
    assert len(drawing) == 1
    drawing[0].kill()
    with pytest.raises(WorkerError, match=r"was killed by SIGKILL in 'draw'; the next render\(\) starts another"):
        envs.render()
    again = envs.render()
    assert again is not None
    np.testing.assert_array_equal(again[0], before[0])
    envs.close()


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_videos(tmp_path: Path, slider_id: str) -> None:
    """Both RecordVideo wrappers write a video."""
    pytest.importorskip("moviepy")
    envs: Any = gymnasium.make_vec(slider_id, num_envs=2, render_mode="rgb_array")
    pictures(envs)  # skips on a machine without OpenGL
    envs = vector.RecordVideo(envs, str(tmp_path / "vector"), step_trigger=lambda step: step == 0, video_length=3)
    envs.reset(seed=0)
    for _ in range(LIMIT):
        envs.step(np.ones((2, 1)))
    envs.close()
    env: Any = RecordVideo(gymnasium.make(slider_id, render_mode="rgb_array"), str(tmp_path / "single"))
    env.reset(seed=0)
    for _ in range(LIMIT):
        env.step(np.ones(1))
    env.close()
    for folder in ("vector", "single"):
        assert [path.suffix for path in (tmp_path / folder).iterdir()] == [".mp4"]


def pictures(envs: UnilabVectorEnv) -> tuple[Any, Any]:
    """Pictures of the first episodes, before and after three steps; skips on a machine without OpenGL."""
    envs.reset(seed=0)
    try:
        first = envs.render()
    except RuntimeError as error:
        envs.close()
        pytest.skip(str(error))
    for _ in range(3):
        envs.step(np.ones((envs.num_envs, 1), np.float32))
    return first, envs.render()


def test_a_single_env_refuses_what_is_wrong() -> None:
    """Wrong actions, options and order of calls are named."""
    with UnilabEnv(TASK, max_episode_steps=LIMIT) as env:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"step\(\) before reset\(\)"):
            env.step(np.zeros(1))
        with pytest.raises(ValueError, match="unknown option 'x'"):
            env.reset(options={"x": 1})
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"action has shape \(2,\); allowed: \(1,\)"):
            env.step(np.zeros(2))
        with pytest.raises(ValueError, match="not finite"):
            env.step(np.full(1, np.nan))
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()
