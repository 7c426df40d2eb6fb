from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Messages, Slider, SliderState, tiny_config

from unilab.cli import main
from unilab.envs.task import Physics
from unilab.runtime import job as job_module
from unilab.runtime.errors import UnstableError
from unilab.runtime.metrics import read_metrics
from unilab.runtime.train import MAX_DUMPS, train
from unilab.runtime.unstable import UnstableEnv, replay

BREAKS_AT = 7  # env step of an episode


@dataclass(frozen=True)
class Explodes(Slider):
    """A slider that is pushed out of the world now and then, or whose reward is not a number."""

    episode_s: float = 2.0
    how: str = "physics"

    def control(self, state: SliderState, action: jax.Array) -> dict[str, jax.Array]:
        controls = super().control(state, action)
        is_due = (state.steps == BREAKS_AT) & (self.how == "physics")
        return controls | {"ctrl": jnp.where(is_due, 1e30, controls["ctrl"])}

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        new_state, terms, terminated, metrics = super().advance(state, physics, action, key, curriculum)
        is_due = (state.steps == BREAKS_AT) & (self.how == "task")
        return new_state, terms | {"effort": jnp.where(is_due, jnp.nan, terms["effort"])}, terminated, metrics


def explode(tmp_path: Path, how: str, **changes: Any) -> tuple[Path, list[str]]:
    display = Messages()
    train(
        tiny_config(Explodes(how=how, limit=1e9), max_unstable_share=1.0, **changes), tmp_path / "run", display=display
    )
    return tmp_path / "run", display.texts


@pytest.mark.parametrize(("how", "causes"), [("physics", ["physics"]), ("task", ["reward/effort"])])
def test_unstable_envs_are_counted_and_described(tmp_path: Path, how: str, causes: list[str]) -> None:
    """Each is counted, the first few are kept with a command that shows them, and the training goes on without them."""
    run, texts = explode(tmp_path, how)
    counts = [row["rollout/unstable_envs"] for row in read_metrics(run)]
    assert sum(counts) > MAX_DUMPS
    files = sorted((run / "unstable").iterdir())
    assert len([text for text in texts if "unilab replay" in text]) == len(files) > 0
    env = UnstableEnv.load(files[0])
    assert env.facts["causes"] == causes
    assert (env.facts["task"], env.facts["seed"]) == ("Explodes", 0)
    assert env.action.shape == (1,)
    rows = replay(env)
    assert bool(rows[-1].warnings) == (how == "physics")
    assert not any(path.name == "MUJOCO_LOG.TXT" for path in [*Path.cwd().iterdir(), *run.iterdir()])


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_descriptions_come_from_workers_too(tmp_path: Path) -> None:
    """A worker process sends its descriptions to the parent; describing changes no bit of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "MAX_RECORDED", 0)
        silent, _ = explode(tmp_path / "silent", "physics", digest=True)
    told, _ = explode(tmp_path / "told", "physics", workers=2, digest=True)
    assert not (silent / "unstable").exists()
    assert list((told / "unstable").iterdir())
    assert read_metrics(silent)[-1]["digest"] == read_metrics(told)[-1]["digest"]


def test_too_many_unstable_envs_end_the_run(tmp_path: Path) -> None:
    """The error says how many, how many are allowed, and how to look at one of them."""
    config = tiny_config(Explodes(limit=1e9))
    with pytest.raises(
        UnstableError, match=r"\d of 8 envs became unstable in rollout 0; allowed is a share of 0\.1"
    ) as e:
        train(config, tmp_path / "run")
    first = sorted((tmp_path / "run" / "unstable").iterdir())[0]
    assert f"`unilab replay {first}`" in str(e.value)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"].startswith("failed: ")


def test_replay_shows_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`unilab replay` prints one line per physics step and what broke."""
    run, _ = explode(tmp_path, "physics")
    path = next((run / "unstable").iterdir())
    assert main(["replay", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"step {UnstableEnv.load(path).facts['step']}, env" in text
    assert "rail" in text
    assert "<- bad" in text
    assert main(["replay", str(run / "config.json")]) == 2
    assert "is not a file that a run left" in capsys.readouterr().err
    assert main(["replay", str(run / "nowhere.npz")]) == 2
    assert "cannot be read (No such file" in capsys.readouterr().err


def test_replay_leaves_no_log(tmp_path: Path) -> None:
    """MuJoCo neither writes its log into the user's folder nor floods the terminal, in trainings and in replays."""
    run, _ = explode(tmp_path, "physics")
    away = tmp_path / "away"
    away.mkdir()
    path = next((run / "unstable").iterdir())
    command = [sys.executable, "-m", "unilab", "replay", str(path)]
    ended = subprocess.run(command, cwd=away, capture_output=True, text=True, timeout=120, check=True)
    assert not ended.stderr
    assert not list(away.iterdir())


@given(data=st.data())
def test_a_damaged_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A description with bytes changed or cut off is refused with a ValueError, or is what it was."""
    path = tmp_path_factory.mktemp("files") / "x.npz"
    facts = {"task": "x", "seed": 0, "rollout": 0, "step": 0, "env": 0, "substeps": 1, "causes": []}
    small = np.zeros(3)
    env = UnstableEnv(facts, np.zeros(9, np.uint8), small, small, small, small, small)
    content = bytearray(env.save(path.parent).read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + 4] = data.draw(st.binary(max_size=6))
    path.write_bytes(content)
    with contextlib.suppress(ValueError):
        UnstableEnv.load(path)


@given(content=st.binary(max_size=200))
def test_any_other_file_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever a file holds, it is read, or refused with a ValueError of one line."""
    path = tmp_path_factory.mktemp("files") / "x.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        UnstableEnv.load(path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    """A file that holds Python objects is refused: loading them could run anything."""
    path = tmp_path / "x.npz"
    names = ("model", "state", "ctrl", "action", "advance_key", "obs_key", "facts")
    np.savez(path, **{name: np.array([print], object) for name in names})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a file that a run left"):
        UnstableEnv.load(path)
