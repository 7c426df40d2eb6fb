"""Pictures of envs, drawn in a process of their own: OpenGL can be missing or crash, and is chosen once per process."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from unilab.envs.task import Task
from unilab.gym.team import Workers
from unilab.runtime.errors import WorkerError
from unilab.runtime.memory import FieldShapes, Memory
from unilab.runtime.process import pickled
from unilab.runtime.render import HINT, gl_backends, prepare_visuals, scene_option, tracking_camera
from unilab.runtime.worker import ENVIRONMENT

REMEDY = "the next render() starts another"


@dataclass(frozen=True)
class FramePlan:
    """What the drawing process gets: the model, how many envs, size of the pictures [pixels], and the camera."""

    model: mujoco.MjModel
    num_envs: int
    width: int
    height: int
    camera: str | None

    runner = "unilab.gym.frames:Painter"

    @property
    def layout(self) -> dict[str, FieldShapes]:
        """Shared memories: poses [N, nq] and pictures [N, height, width, 3]."""
        frames = {
            "qpos": (np.float64, (self.num_envs, self.model.nq)),
            "rgb": (np.uint8, (self.num_envs, self.height, self.width, 3)),
        }
        return {"frames": frames, "progress": {"steps": (np.uint64, (1,))}}


class Painter:
    """Draws the envs, in the drawing process."""

    def __init__(self, plan: FramePlan, memories: dict[str, Memory], number: int = 0) -> None:
        self._model, self._progress = plan.model, memories["progress"].arrays["steps"]
        self._qpos, self._rgb = (memories["frames"].arrays[name] for name in ("qpos", "rgb"))
        prepare_visuals(self._model, plan.width, plan.height)
        self._data, self._option = mujoco.MjData(self._model), scene_option(self._model)
        self._camera: Any = plan.camera or (0 if self._model.ncam else tracking_camera(self._model))
        self._renderer = mujoco.Renderer(self._model, plan.height, plan.width)
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False

    def run(self, job: str) -> None:
        """Draw all envs."""
        for qpos, rgb in zip(self._qpos, self._rgb, strict=True):
            if np.isfinite(qpos).all():
                self._data.qpos[:] = qpos
            mujoco.mj_forward(self._model, self._data)
            self._renderer.update_scene(self._data, self._camera, self._option)
            self._renderer.render(out=rgb)
            self._progress += 1


class Frames:
    """Draws pictures of envs; starts the drawing process when the first is wanted.

    Args:
        task: the task, whose most faithful model is drawn.
        num_envs: number of envs N.
        width, height: size of a picture [pixels].
        camera: name of a camera, or None for the model's first, or one that follows the robot.

    Raises:
        ValueError: the model has no such camera.
    """

    def __init__(self, task: Task, num_envs: int, width: int, height: int, camera: str | None) -> None:
        from unilab.envs.env import compile_model

        model = compile_model(task, fine=True)  # the model for training may lack what nothing touches
        names = [model.camera(i).name for i in range(model.ncam)]
        if camera is not None and camera not in names:
            raise ValueError(f"camera is {camera!r}; the model has {names}")
        self._plan = FramePlan(model, num_envs, width, height, camera)
        self._workers: Workers | None = None

    def draw(self, qpos: np.ndarray) -> np.ndarray:
        """Pictures [N, height, width, 3] of poses [N, nq].

        Raises:
            RuntimeError: no OpenGL works here.
            WorkerError: the drawing process died or hangs; the next picture is drawn by another.
        """
        if self._workers is None:
            self._start(qpos)
        else:
            try:
                self._draw(self._workers, qpos)
            except BaseException:
                self.close()
                raise
        return np.array(self._arrays["rgb"])

    def _draw(self, workers: Workers, qpos: np.ndarray) -> None:
        self._arrays["qpos"][:] = qpos
        workers.do("draw")

    def _start(self, qpos: np.ndarray) -> None:
        """Start a process with the first OpenGL that draws."""
        memories = {name: Memory(shapes) for name, shapes in self._plan.layout.items()}
        self._arrays = memories["frames"].arrays
        fds = {name: memory.fd for name, memory in memories.items()}
        blob, progress = pickled((self._plan, fds), FramePlan), memories["progress"].arrays["steps"]
        reason = ""
        for backend in gl_backends():
            chosen = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend} if backend else {}
            workers = Workers(blob, tuple(fds.values()), 1, progress, {**ENVIRONMENT, **chosen}, REMEDY)
            try:
                self._draw(workers, qpos)
            except WorkerError as error:
                reason = str(error).strip().splitlines()[-1]
                continue
            self._workers = workers
            self._close = weakref.finalize(self, _close, workers, memories)
            return
        _close(None, memories)
        raise RuntimeError(f"{HINT.removeprefix('video skipped: ')}; the last answer was: {reason}")

    def close(self) -> None:
        """End the drawing process. Safe to call twice."""
        if self._workers is not None:
            self._arrays, self._workers = {}, None
            self._close()


def _close(workers: Workers | None, memories: dict[str, Memory]) -> None:
    if workers is not None:
        workers.close()
    for memory in memories.values():
        memory.close()
