"""A video of a trained run: one episode of one env, played in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unilab.envs.batch import Batch, own_rows
from unilab.envs.env import Env, EnvState, compile_model
from unilab.envs.physics.registry import DEFAULT
from unilab.envs.task import Task
from unilab.runtime.evaluate import Trained, read_trained
from unilab.runtime.plan import Plan
from unilab.runtime.render import RenderResult, render_video
from unilab.runtime.run import read_config

MAX_FPS = 50.0


@dataclasses.dataclass(frozen=True)
class Film:
    """What is to be drawn: qpos [frames, nq], one caption per frame, and how fast they follow each other."""

    qpos: np.ndarray
    captions: list[str]
    fps: float


def record_video(
    run: str | Path,
    out: str | Path | None = None,
    seconds: float | None = None,
    seed: int = 0,
    checkpoint: str = "best",
    fine: bool = False,
    task_class: type[Task] | None = None,
) -> RenderResult:
    """Film one episode of a run's policy, without exploration.

    Each frame is captioned with the time, the return so far and, if the task has a method `caption(state)`, what that
    returns for its state (a text, or None).

    Args:
        run: the run folder.
        out: the video, ending in .mp4; by default RUN/video.mp4.
        seconds: time limit of the episode [s], instead of the task's own.
        seed: seed of the episode.
        checkpoint: "best" or "latest".
        fine: use the task's most faithful physics.
        task_class: class of the task, for one that was defined in a notebook.

    Returns:
        What became of it; a machine without OpenGL is an answer, not an exception.

    Raises:
        ValueError: the folder is no run, its checkpoint is damaged, or an argument is not allowed.
    """
    run = Path(run)
    out = run / "video.mp4" if out is None else Path(out)
    if out.suffix != ".mp4":
        raise ValueError(f"out is {str(out)!r}; allowed: a name that ends in .mp4")
    if seconds is not None and not 0 < seconds < np.inf:
        raise ValueError(f"seconds is {seconds}; allowed: greater than 0")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; allowed: at least 0 and less than 2^32")
    plan = Plan.of(read_config(run, task_class).resolved())
    trained = read_trained(plan, run, checkpoint)
    task = plan.config.task.evaluation()
    env = Env(task if seconds is None else dataclasses.replace(task, episode_s=seconds), fine)
    film = play(env, plan.algorithm, trained, seed, plan.config.physics)
    looks = compile_model(
        task, fine=True
    )  # the model with every geom; the one for training may lack what nothing touches
    camera = looks.camera(0).name if looks.ncam else ""
    return render_video(looks, film.qpos, out, film.fps, camera or None, captions=film.captions)


def play(env: Env, algorithm: Any, trained: Trained, seed: int, physics: str = DEFAULT) -> Film:
    """The first episode of one env, filmed at `MAX_FPS` or a little less, at real speed."""
    task = env.task
    stride = max(1, round(1.0 / (task.control_dt * MAX_FPS)))
    batch = Batch(env, 1, seed, physics)
    batch.attach(own_rows(batch), 0, trained.curriculum)
    batch.begin(random_ages=False)
    batch.open_rollout(0, task.episode_steps)

    @jax.jit
    def act(state: EnvState) -> Any:
        action = algorithm.act_deterministic(trained.policy, state.obs)
        return action, jax.vmap(env.control)(state, action)

    poses, captions, total = [], [], 0.0
    for t in range(task.episode_steps):
        if t % stride == 0:
            poses.append(np.array(batch.physics.qpos[0]))
            state = jax.tree.map(lambda x: np.asarray(x)[0], batch.state.task)
            captions.append(_caption(task, state, t * task.control_dt, total))
        action, controls = act(batch.state)
        outcome = batch.step(t, action, {name: np.asarray(value) for name, value in controls.items()})
        total += float(outcome.reward[0])
        if outcome.terminated[0] or outcome.truncated[0]:
            break
    return Film(np.stack(poses), captions, 1.0 / (stride * task.control_dt))


def _caption(task: Task, state: Any, time_s: float, total: float) -> str:
    own = getattr(task, "caption", lambda state: None)(state)
    return f"{time_s:.1f} s   return {total:.1f}" + (f"\n{own}" if own else "")
