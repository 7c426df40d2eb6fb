from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import imageio.v2 as imageio
import mujoco
import numpy as np
import pytest

from unilab.runtime.render import HINT, RenderResult, render_video, scene_option

MODEL = """
<mujoco>
  <visual><global offwidth="32" offheight="32"/></visual>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="front" pos="0 -3 1" xyaxes="1 0 0 0 0.3 1"/>
    <geom type="plane" size="2 2 0.1" rgba="0.2 0.3 0.4 1"/>
    <body pos="0 0 0.5"><freejoint/><geom size="0.2" rgba="0.9 0.5 0.1 1" {attributes}/></body>
  </worldbody>
</mujoco>
"""


def make_model(attributes: str = "") -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(MODEL.format(attributes=attributes))


def make_states(frames: int) -> np.ndarray:
    states = np.tile([0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0], (frames, 1))
    states[:, 0] = np.linspace(-0.5, 0.5, frames)
    return states


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of a render, which must be gone after it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def require_gl(result: RenderResult) -> RenderResult:
    if not result.ok and "no OpenGL" in result.message:
        pytest.skip(result.message)
    assert result.ok, f"{result.message}\n{result.detail}"
    return result


@pytest.mark.timeout(60)
def test_a_video_and_its_contact_sheet(tmp_path: Path, temporary_folder: Path) -> None:
    """States become as many frames of the asked size, larger than the model's buffer, and a sheet of eight."""
    out = tmp_path / "videos" / "run.mp4"
    states = make_states(10)
    states[4] = np.nan
    captions = [f"frame {index}" for index in range(10)]
    result = require_gl(render_video(make_model(), states, out, 25.0, "front", (64, 48), captions))
    assert (result.path, result.sheet) == (out, out.with_suffix(".png"))
    frames = imageio.mimread(out)
    assert len(frames) == 10
    assert frames[0].shape == (48, 64, 3)
    assert np.std(frames[0]) > 5
    assert np.asarray(imageio.imread(out.with_suffix(".png"))).shape == (2 * 240, 4 * 320, 3)
    assert sorted(out.parent.iterdir()) == [out, out.with_suffix(".png")]
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.timeout(60)
def test_without_opengl_a_hint_is_the_answer(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A back end that does not exist gives one line of advice, no exception, and leaves an older video alone."""
    monkeypatch.setenv("MUJOCO_GL", "broken")
    out = tmp_path / "run.mp4"
    out.write_bytes(b"older")
    result = render_video(make_model(), make_states(2), out, 25.0)
    assert (result.ok, result.path, result.sheet) == (False, None, None)
    assert "no OpenGL back end works here (tried broken)" in result.message
    assert result.message.endswith(HINT.partition("; ")[2])
    assert "\n" not in result.message
    assert out.read_bytes() == b"older"
    assert {path.name for path in tmp_path.iterdir()} == {"run.mp4", temporary_folder.name}
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.timeout(60)
def test_a_render_that_takes_too_long_is_ended(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past its time limit the child is killed, the answer says so, and no file is left."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    result = render_video(make_model(), make_states(2), tmp_path / "run.mp4", 25.0, time_limit_s=0.1)
    assert result.message == "video skipped: not done after 0.1 s"
    assert {path.name for path in tmp_path.iterdir()} == {"sleeper", temporary_folder.name}
    assert list(temporary_folder.iterdir()) == []


def test_collision_shapes_are_shown_when_there_is_nothing_else() -> None:
    """Hidden geom groups stay hidden, unless a robot would be invisible."""
    assert list(scene_option(make_model()).geomgroup) == [1, 1, 1, 0, 0, 0]
    assert list(scene_option(make_model('group="3"')).geomgroup) == [1] * 6


def test_wrong_arguments_name_what_disagrees(tmp_path: Path) -> None:
    """Shapes, camera, captions, suffix and rate are checked before a process is started."""
    model, states, out = make_model(), make_states(2), tmp_path / "run.mp4"
    with pytest.raises(ValueError, match=r"nq = 7\], got \[2, 6\]"):
        render_video(model, states[:, :6], out, 25.0)
    with pytest.raises(ValueError, match=r"'back'.*'front'"):
        render_video(model, states, out, 25.0, "back")
    with pytest.raises(ValueError, match="2 frames, 1 captions"):
        render_video(model, states, out, 25.0, captions=["one"])
    with pytest.raises(ValueError, match=r"\.mp4"):
        render_video(model, states, tmp_path / "run.gif", 25.0)
    with pytest.raises(ValueError, match="fps"):
        render_video(model, states, out, 0.0)
