from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from tiny import Slider, tiny_config

from unilab.envs.env import Env
from unilab.runtime import video
from unilab.runtime.evaluate import Trained, read_trained
from unilab.runtime.plan import Plan
from unilab.runtime.render import RenderResult
from unilab.runtime.train import train
from unilab.runtime.video import MAX_FPS, Film, play, record_video


@dataclass(frozen=True)
class Filmed(Slider):
    """A slider with a camera, a caption, and a limit that it does not reach."""

    limit: float = 1e6

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        spec = super().model(fine)
        spec.worldbody.add_camera(name="side", pos=[0, -3, 1])
        return spec

    def caption(self, state: Any) -> str:
        return f"wind {float(state.wind):.2f} N"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(Filmed()), tmp_path_factory.mktemp("runs") / "run").run


@pytest.fixture(scope="module")
def trained(run: Path) -> tuple[Any, Trained]:
    """The algorithm and the policy of the run."""
    plan = Plan.of(tiny_config(Filmed()).resolved())
    return plan.algorithm, read_trained(plan, run, "best")


@pytest.fixture(scope="module")
def film(trained: tuple[Any, Trained]) -> Film:
    """The film of seed 7."""
    return play(Env(Filmed()), *trained, seed=7)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would have been drawn; nothing is."""
    seen: dict[str, Any] = {}

    def pretend(model: Any, states: Any, out: Path, fps: float, camera: Any = None, **more: Any) -> RenderResult:
        seen.update(model=model, states=states, out=out, fps=fps, camera=camera, **more)
        return RenderResult(True, "drawn", path=out)

    monkeypatch.setattr(video, "render_video", pretend)
    return seen


def test_film_begins_at_the_reset_and_flows(film: Film) -> None:
    """The first frame is the pose of the env's first reset, and no frame jumps, so none shows the next episode."""
    env = Env(Filmed())
    reset = env.begin(jax.random.key(7), jnp.int32(0), jnp.int32(1), {})[0]
    np.testing.assert_array_equal(film.qpos[0], np.asarray(reset, np.float64))
    assert len(film.qpos) == env.task.episode_steps
    assert np.abs(np.diff(film.qpos, axis=0)).max() < 0.1


@pytest.mark.parametrize("control_dt", [0.01, 0.06])
def test_film_plays_at_real_speed(trained: tuple[Any, Trained], control_dt: float) -> None:
    """Frames over frames per second is the length of the episode, and no more frames are drawn than is worth it."""
    task = Filmed(control_dt=control_dt, episode_s=0.6)
    film = play(Env(task), *trained, seed=0)
    assert len(film.qpos) / film.fps == pytest.approx(0.6)
    assert film.fps <= MAX_FPS + 1e-6


def test_film_ends_with_the_episode(trained: tuple[Any, Trained]) -> None:
    """When the episode terminates, the film is over."""
    films = [play(Env(Filmed(limit=0.02)), *trained, seed=seed) for seed in range(2)]
    assert min(len(film.qpos) for film in films) < Filmed().episode_steps


def test_captions_tell_time_return_and_what_the_task_says(film: Film, trained: tuple[Any, Trained]) -> None:
    """Each frame has a caption with time, return and the task's own line; a task without one has none."""
    assert film.captions[0] == "0.0 s   return 0.0\nwind 0.00 N"
    assert re.fullmatch(r"0\.6 s   return \d+\.\d\nwind -?0\.\d\d N", film.captions[-1])
    assert "\n" not in play(Env(Slider(episode_s=0.02)), *trained, seed=0).captions[0]


def test_video_of_a_run(run: Path, rendered: dict[str, Any]) -> None:
    """By default the video lies in the run folder and is taken by the model's first camera."""
    assert record_video(run).path == run / "video.mp4"
    assert rendered["camera"] == "side"
    assert len(rendered["states"]) == len(rendered["captions"]) == 30


@pytest.mark.parametrize("seconds", [0.2, 1.0])
def test_seconds_set_the_length(run: Path, rendered: dict[str, Any], tmp_path: Path, seconds: float) -> None:
    """`seconds` makes the episode shorter or longer than the task's own."""
    record_video(run, tmp_path / "film.mp4", seconds=seconds)
    assert len(rendered["states"]) / rendered["fps"] == pytest.approx(seconds)
    assert rendered["out"] == tmp_path / "film.mp4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out": "film.gif"}, "allowed: a name that ends in .mp4"),
        ({"seconds": 0.0}, "seconds is 0.0"),
        ({"seconds": math.nan}, "seconds is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"checkpoint": "newest"}, "allowed: best, latest"),
    ],
)
def test_arguments_that_are_not_allowed(run: Path, arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is a ValueError that names it, its value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        record_video(run, **arguments)


def test_film_of_the_same_seed_is_the_same(film: Film, trained: tuple[Any, Trained]) -> None:
    """A film is a function of policy and seed."""
    again = play(Env(Filmed()), *trained, seed=7)
    np.testing.assert_array_equal(film.qpos, again.qpos)
    assert film.captions == again.captions
