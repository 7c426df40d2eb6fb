"""Videos of recorded states, rendered in a process of their own.

OpenGL libraries can be missing, can crash, and choose their back end once per process from `MUJOCO_GL`. A child
process keeps all that away from training, and lets several back ends be tried. The parent writes a job file and runs
`python -m unilab.runtime.render JOB`; the child draws.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import mujoco
    from PIL.Image import Image

HINT = (
    "video skipped: no OpenGL back end works here; on Debian: apt-get install libegl1 libgl1-mesa-dri"
    " (MUJOCO_GL=egl) or libosmesa6 (MUJOCO_GL=osmesa)"
)
SHEET_ROWS, SHEET_COLUMNS = 2, 4

_CONTEXT_WORKS = "context works"


@dataclass(frozen=True)
class RenderResult:
    """What became of a video. When `ok` is False, `message` says why in one line and the paths are None."""

    ok: bool
    message: str
    path: Path | None = None
    sheet: Path | None = None
    backend: str | None = None
    """Value of `MUJOCO_GL` that worked; None for the platform's default."""
    detail: str = ""
    """What the last child wrote to standard error, for people who look into a failure."""


@dataclass(frozen=True)
class _Job:
    """What the child needs; a JSON file, so that it can be read when something goes wrong."""

    model: str
    states: str
    video: str
    sheet: str
    fps: float
    camera: str | None
    width: int
    height: int
    captions: list[str] | None


def render_video(
    model: mujoco.MjModel,
    states: np.ndarray,
    out: Path,
    fps: float,
    camera: str | None = None,
    size: tuple[int, int] = (640, 480),
    captions: list[str] | None = None,
    time_limit_s: float = 600.0,
) -> RenderResult:
    """Draw `states` into the MP4 file `out` and eight of its frames into a PNG beside it.

    Tries the back end that `MUJOCO_GL` names, or else EGL and then OSMesa (on macOS the system's own). A missing or
    broken OpenGL, a crash or a passed time limit is an answer, not an exception; files at `out` are then as before.

    Args:
        model: Model of the states.
        states: qpos of each frame, [frames, nq]. A frame with NaN or infinities shows the pose before it.
        out: Video file, ending in `.mp4`.
        fps: Frames per second; 1 / control_dt plays at real speed.
        camera: Name of a camera of the model; None for a free one that tracks body 1.
        size: Width and height [pixels].
        captions: One text per frame, drawn at its lower left.
        time_limit_s: Wall time for all tries together [s].

    Raises:
        ValueError: shapes, camera, suffix or numbers do not fit; names the two that disagree.
    """
    _check(model, states, out, fps, camera, size, captions)
    import mujoco

    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet = out.with_suffix(".png")
    # The suffix stays, because it tells ffmpeg and Pillow the format.
    parts = [path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}") for path in (out, sheet)]
    try:
        with tempfile.TemporaryDirectory(prefix="unilab-render-") as name:
            folder = Path(name)
            job = _Job(
                model=str(folder / "model.mjb"),
                states=str(folder / "states.npz"),
                video=str(parts[0]),
                sheet=str(parts[1]),
                fps=fps,
                camera=camera,
                width=size[0],
                height=size[1],
                captions=captions,
            )
            mujoco.mj_saveModel(model, job.model, None)
            np.savez(job.states, qpos=np.asarray(states, dtype=np.float64))
            (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
            result = _try_backends(folder, time_limit_s)
        if not result.ok:
            return result
        parts[0].replace(out)
        parts[1].replace(sheet)
        return RenderResult(True, f"video: {out}", path=out, sheet=sheet, backend=result.backend)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _check(
    model: mujoco.MjModel,
    states: np.ndarray,
    out: Path,
    fps: float,
    camera: str | None,
    size: tuple[int, int],
    captions: list[str] | None,
) -> None:
    if states.ndim != 2 or states.shape[1] != model.nq or states.shape[0] == 0:
        raise ValueError(f"states must be [frames >= 1, nq = {model.nq}], got {list(states.shape)}")
    if captions is not None and len(captions) != states.shape[0]:
        raise ValueError(f"captions must be one per frame: {states.shape[0]} frames, {len(captions)} captions")
    if out.suffix != ".mp4":
        raise ValueError(f"out must end in .mp4, got {out.name!r}")
    if not fps > 0:
        raise ValueError(f"fps must be positive, got {fps}")
    if min(size) < 16:
        raise ValueError(f"size must be at least 16 x 16 pixels, got {size[0]} x {size[1]}")
    names = [model.camera(index).name for index in range(model.ncam)]
    if camera is not None and camera not in names:
        raise ValueError(f"no camera {camera!r} in the model; it has {names}")


def _try_backends(folder: Path, time_limit_s: float) -> RenderResult:
    """The job in `folder`, with one back end after the other until one works."""
    deadline = time.monotonic() + time_limit_s
    backends = gl_backends()
    had_context = ""
    detail = ""
    for backend in backends:
        seconds = deadline - time.monotonic()
        status = _run_child(folder, _child_environment(backend), seconds) if seconds > 0 else None
        if status is None:
            return RenderResult(False, f"video skipped: not done after {time_limit_s:g} s", backend=backend)
        if status == 0:
            return RenderResult(True, "", backend=backend)
        detail = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip()
        if _CONTEXT_WORKS in (folder / "stdout").read_text(encoding="utf-8", errors="replace"):
            had_context = detail.splitlines()[-1] if detail else f"the renderer ended with status {status}"
    if had_context:
        return RenderResult(False, f"video skipped: {had_context}", detail=detail)
    tried = ", ".join(backend or "the system's own" for backend in backends)
    return RenderResult(False, HINT.replace("works here", f"works here (tried {tried})"), detail=detail)


def gl_backends() -> list[str | None]:
    """Values of `MUJOCO_GL` to try, in turn; None leaves it unset."""
    if chosen := os.environ.get("MUJOCO_GL"):
        return [chosen]
    return ["egl", "osmesa"] if sys.platform == "linux" else [None]


def _child_environment(backend: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("MUJOCO_GL", None)
    # Set by MuJoCo itself when this process has loaded an OpenGL; it would forbid any other in the child.
    environment.pop("PYOPENGL_PLATFORM", None)
    if backend is not None:
        environment["MUJOCO_GL"] = backend
    # The child starts in another folder, yet must find this very package, installed or not.
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH")]))
    return environment


def _run_child(folder: Path, environment: dict[str, str], seconds: float) -> int | None:
    """Exit status of the child; None if it ran out of time, and then it and its ffmpeg are killed."""
    command = [sys.executable, "-m", "unilab.runtime.render", str(folder / "job.json")]
    # Output goes to files: a pipe could be held open by an ffmpeg that outlives the child.
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,  # MuJoCo writes MUJOCO_LOG.TXT into the working folder
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _render(job: _Job) -> None:
    """The child's work: draw every frame, write video and contact sheet."""
    import imageio.v2 as imageio
    import mujoco
    from PIL.Image import fromarray

    model = mujoco.MjModel.from_binary_path(job.model)
    prepare_visuals(model, job.width, job.height)
    states = np.load(job.states)["qpos"]
    data = mujoco.MjData(model)
    camera = tracking_camera(model) if job.camera is None else job.camera
    option = scene_option(model)
    shown = np.linspace(0, len(states) - 1, SHEET_ROWS * SHEET_COLUMNS).round().astype(int)
    kept: dict[int, Image] = {}
    with mujoco.Renderer(model, job.height, job.width) as renderer:
        print(_CONTEXT_WORKS, flush=True)
        # A mirror image of the robot in the floor costs time and hides where the feet are.
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        # H.264 with yuv420p, which every player shows, needs even sides and nothing more.
        # Any, because imageio's own types know nothing of append_data.
        writer: Any = imageio.get_writer(
            job.video, fps=job.fps, codec="libx264", pixelformat="yuv420p", macro_block_size=2
        )
        with writer as video:
            for index, qpos in enumerate(states):
                if np.isfinite(qpos).all():
                    data.qpos[:] = qpos
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera, option)
                frame = fromarray(renderer.render())
                if job.captions is not None:
                    _draw_text(frame, job.captions[index])
                video.append_data(np.asarray(frame))
                if index in shown:
                    kept[index] = frame
    _contact_sheet([(f"{index / job.fps:.2f} s", kept[index]) for index in shown]).save(job.sheet)


def prepare_visuals(model: Any, width: int, height: int) -> None:
    """Room for the frame, and shadows that a software OpenGL draws well and in time."""
    import mujoco

    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
    # With 4096, MuJoCo's default, shadows take half of a frame's time on a CPU.
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, 2048)
    # On Mesa the shadows of directional lights come out as stripes on the floor; those of spot lights are clean.
    model.light_castshadow[model.light_type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL] = False


def tracking_camera(model: Any) -> Any:
    """A free camera that follows body 1 from the side and a little above, at a distance that fits the model's size."""
    import mujoco

    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    if model.nbody > 1:
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = 1
        camera.distance = 2.2 * model.stat.extent
        camera.azimuth, camera.elevation = 120.0, -20.0
    return camera


def scene_option(model: Any) -> Any:
    """MuJoCo's defaults, which hide geom groups 3 to 5; but a model with nothing else to show is shown whole.

    Collision shapes are in group 3 by custom, and a robot made of primitives may have only these.
    """
    import mujoco

    option = mujoco.MjvOption()
    is_shown = np.asarray(option.geomgroup, dtype=bool)
    if not is_shown[model.geom_group[model.geom_bodyid > 0]].any():
        option.geomgroup[:] = 1
    return option


def _contact_sheet(frames: list[tuple[str, Image]], cell_width: int = 320) -> Image:
    """Frames with their captions in `SHEET_ROWS` rows of `SHEET_COLUMNS`."""
    from PIL.Image import new

    width, height = frames[0][1].size
    cell = (cell_width, round(cell_width * height / width))
    sheet = new("RGB", (SHEET_COLUMNS * cell[0], SHEET_ROWS * cell[1]))
    for place, (caption, frame) in enumerate(frames):
        small = frame.resize(cell)
        _draw_text(small, caption, at_top=True)
        sheet.paste(small, (place % SHEET_COLUMNS * cell[0], place // SHEET_COLUMNS * cell[1]))
    return sheet


def _draw_text(image: Image, text: str, at_top: bool = False) -> None:
    """White text on a dark box, in the upper or lower left corner."""
    from PIL import ImageDraw, ImageFont

    if not text:
        return
    draw = ImageDraw.Draw(image, "RGBA")
    font = ImageFont.load_default(size=max(11, image.height // 24))
    left, top, right, bottom = draw.multiline_textbbox((0, 0), text, font=font)
    margin = 6
    y = 0 if at_top else image.height - (bottom - top) - 2 * margin
    draw.rectangle((0, y, right - left + 2 * margin, y + bottom - top + 2 * margin), fill=(0, 0, 0, 150))
    draw.multiline_text((margin - left, y + margin - top), text, font=font, fill="white")


if __name__ == "__main__":
    _render(_Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
