from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from conftest import wait_until
from tiny import Messages, Slider, SliderState, tiny_config

from unilab.cli import main
from unilab.envs.physics.mujoco import MujocoPhysics
from unilab.envs.registry import find_task
from unilab.envs.task import Physics
from unilab.runtime.checkpoint import CheckpointError, load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.errors import SaveError
from unilab.runtime.evaluate import evaluate
from unilab.runtime.metrics import read_metrics
from unilab.runtime.resume import resume
from unilab.runtime.run import read_config
from unilab.runtime.train import Result, train

PER_ITERATION = 64  # env steps
ITERATIONS = 6
LONG: dict[str, Any] = {"steps": ITERATIONS * PER_ITERATION, "digest": True, "eval_every": 2 * PER_ITERATION}


@pytest.fixture(scope="module", params=[0, 1], ids=["lag 0", "lag 1"])
def lag(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, lag: int) -> Result:
    """A training of six iterations that never stopped."""
    return train(tiny_config(lag=lag, **LONG), tmp_path_factory.mktemp("undisturbed") / "run")


def interrupted(run: Path, after: int, task: Any = None, **changes: Any) -> Path:
    """A run that was stopped after some iterations."""
    train(tiny_config(task, **(LONG | changes)), run, callback=lambda row: row["iteration"] == after)
    return run


def digests(run: Path) -> list[str]:
    """Digests after each iteration, as metrics.jsonl has them."""
    return [row["digest"] for row in read_metrics(run)]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, undisturbed: Result, lag: int, after: int) -> None:
    """Stopped after any iteration and resumed, every rollout, weight and evaluation has the same bits."""
    run = interrupted(tmp_path / "run", after, lag=lag)
    result = resume(run)
    assert result.summary["digest"] == undisturbed.summary["digest"]
    assert digests(run) == digests(undisturbed.run)
    assert result.evaluation == undisturbed.evaluation
    best = [load_checkpoint(folder, "best").manifest["iteration"] for folder in (run, undisturbed.run)]
    assert best[0] == best[1]


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_the_number_of_workers_may_change(tmp_path: Path, undisturbed: Result, lag: int) -> None:
    """Begun without worker processes, resumed with two, stopped again, and finished with none: the same bits."""
    run = interrupted(tmp_path / "run", 2, lag=lag)
    resume(run, workers=2, callback=lambda row: row["iteration"] == 4)
    assert resume(run, workers=0).summary["digest"] == undisturbed.summary["digest"]


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from tiny import tiny_config
from unilab.runtime.train import train
config = tiny_config(workers=1, lag=1, steps=400 * 64, digest=True, checkpoint_every_s=0.05)
train(config, {out!r})
"""


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """After kill -9 of the parent at some moment, the resumed run repeats what was lost bit for bit, and goes on."""
    run = tmp_path / "run"
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(run))
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: len(read_metrics(run)) > 20, "the first iterations")
    time.sleep(random.Random(0).uniform(0.0, 0.5))
    process.kill()
    process.wait()
    before = digests(run)
    checkpoint = load_checkpoint(run).manifest["iteration"]
    last = max(len(before), checkpoint + 1)
    resume(run, workers=0, callback=lambda row: row["iteration"] == last)
    assert checkpoint > 0
    assert digests(run)[: len(before)] == before


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="needs signals")
@pytest.mark.parametrize("during", ["an iteration", "an evaluation"])
def test_a_signalled_run_goes_on(
    tmp_path: Path, undisturbed: Result, lag: int, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM, also in the middle of an evaluation, the resumed run has the same bits, rows and evaluations."""
    run = tmp_path / "run"
    real = Collector.evaluate

    def evaluate(self: Collector, version: int) -> dict[str, float]:
        if during == "an evaluation":
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, version)

    def callback(row: dict[str, Any]) -> None:
        if during == "an iteration" and row["iteration"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "evaluate", evaluate)
        with pytest.raises(SystemExit) as ended:
            train(tiny_config(lag=lag, **LONG), run, callback=callback)
    assert ended.value.code == 143
    assert json.loads((run / "summary.json").read_text())["outcome"] == "stopped by SIGTERM"
    assert load_checkpoint(run).manifest["iteration"] == 2
    assert resume(run).evaluation == undisturbed.evaluation
    assert digests(run) == digests(undisturbed.run)


def test_a_run_killed_at_its_very_end_is_finished(tmp_path: Path) -> None:
    """With the last checkpoint written but no summary, resuming writes what is missing."""
    run = train(tiny_config(**LONG), tmp_path / "run").run
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").unlink()
    again = resume(run).summary
    assert (again["digest"], again["evaluation"]) == (summary["digest"], summary["evaluation"])


@dataclass(frozen=True)
class Growing(Slider):
    """A slider whose rail gets longer with every iteration."""

    def curriculum(self) -> Any:
        return {"length": 1.0}

    def next_curriculum(self, curriculum: Any, metrics: Any) -> Any:
        return {"length": float(curriculum["length"]) * 1.1}

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        new_state, terms, _, metrics = super().advance(state, physics, action, key, curriculum)
        return new_state, terms, jnp.abs(physics.qpos[0]) > 0.3 * curriculum["length"], metrics


def test_a_curriculum_goes_on(tmp_path: Path) -> None:
    """What grows with skill is part of a checkpoint, also where the task computes it with Python's numbers."""
    whole = train(tiny_config(Growing(), **LONG), tmp_path / "whole")
    run = tmp_path / "run"
    train(tiny_config(Growing(), **LONG), run, callback=lambda row: row["iteration"] == 3)
    assert resume(run).summary["digest"] == whole.summary["digest"]
    assert evaluate(run, episodes=2, workers=0)["episodes"] == 2
    other = replace(tiny_config(Growing(), **LONG), task=Growing())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Growing, "next_curriculum", lambda self, curriculum, metrics: {"width": 1.0})
        with pytest.raises(TypeError, match=r"Growing\.next_curriculum\(\) returned shapes"):
            train(other, tmp_path / "other")


def test_the_command_resumes(tmp_path: Path, undisturbed: Result, lag: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`unilab resume RUN` finishes a run and says from where; `--steps` goes further; errors are one line."""
    run = interrupted(tmp_path / "run", 3, lag=lag)
    assert main(["resume", str(run), "--workers", "0"]) == 0
    text = capsys.readouterr().out
    assert "going on after 192 of 384 env steps" in text
    assert str(undisturbed.summary["digest"]) in text
    assert main(["resume", str(run)]) == 2
    assert "the run has done 384 already" in capsys.readouterr().err
    assert main(["resume", str(run), "--steps", "448", "--quiet"]) == 0
    assert main(["resume", str(tmp_path)]) == 2
    assert main(["resume"]) == 2
    assert main(["resume", str(run), "--step", "9"]) == 2
    assert "did you mean --steps?" in capsys.readouterr().err


def test_more_steps_keep_the_horizon_of_the_schedules(tmp_path: Path) -> None:
    """A finished run goes on with `steps`; the step size falls as first planned, and the display says so."""
    changes = {"algo.schedule": "linear"}
    run = train(tiny_config(**LONG, **changes), tmp_path / "run").run
    with pytest.raises(ValueError, match=r"steps is 384, but the run has done 384 already; .*--steps 768"):
        resume(run)
    display = Messages()
    result = resume(run, steps=8 * PER_ITERATION, display=display)
    assert result.summary["env_steps"] == 8 * PER_ITERATION
    assert "schedules keep their horizon of 384 env steps" in display.texts
    rates = [row["train/learning_rate"] for row in read_metrics(run)]
    assert rates[:7] == sorted(rates[:7], reverse=True)
    assert rates[7] == 0.0
    config = read_config(run)
    assert (config.steps, config.horizon_steps) == (8 * PER_ITERATION, 6 * PER_ITERATION)
    train(
        tiny_config(**LONG | {"steps": 3 * PER_ITERATION, "horizon_steps": 6 * PER_ITERATION}, **changes),
        tmp_path / "a",
    )
    assert digests(tmp_path / "a") == digests(run)[:3]


def cut_short(folder: Path) -> None:
    path = folder / "bank.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_byte(folder: Path) -> None:
    path = folder / "algorithm.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("spoil", [cut_short, flip_a_byte, empty])
def test_a_damaged_newest_checkpoint_costs_no_run(tmp_path: Path, undisturbed: Result, lag: int, spoil: Any) -> None:
    """The checkpoint before it is used, that is said, and the run ends with the same bits."""
    run = interrupted(tmp_path / "run", 4, lag=lag)
    spoil(run / "checkpoints" / "000000004")
    display = Messages()
    assert resume(run, display=display).summary["digest"] == undisturbed.summary["digest"]
    assert any("000000004" in text and "the checkpoint before it is used" in text for text in display.texts)
    assert digests(run) == digests(undisturbed.run)
    assert load_checkpoint(run).damaged == ()


def edit_config(run: Path, **changes: Any) -> None:
    data = json.loads((run / "config.json").read_text())
    for name, value in changes.items():
        part, _, rest = name.partition("__")
        target = data[part] if rest else data
        target[rest or part] = value
    (run / "config.json").write_text(json.dumps(data))


REFUSED = {
    "another network": ({"algo__actor_hidden": [12]}, r"was made with algo\.actor_hidden = \[8\], .* says \[12\]"),
    "another task's settings": ({"task__limit": 2.0}, r"was made with task\.limit = 1\.0, but config\.json says 2\.0"),
    "another seed": ({"seed": 5}, r"was made with seed = 0, but config\.json says 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    """What differs is named; the folder stays as it was."""
    changes, message = REFUSED[name]
    run = interrupted(tmp_path / "run", 2)
    edit_config(run, **changes)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=message):
        resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_task_whose_code_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file of the task observes something else now, nothing is loaded in part."""
    path = tmp_path / "own.py"
    source = (Path(__file__).parents[1] / "tiny.py").read_text().partition("    def mirror")[0]
    path.write_text(source)
    task = find_task(f"{path}:Slider")()
    run = interrupted(tmp_path / "run", 2, task=task)
    old = "exact = jnp.concatenate([physics.qpos, physics.qvel])"
    longer = source.replace(old, f"{old}\n        exact = jnp.append(exact, 0.0)").replace("key, (2,))", "key, (3,))")
    path.write_text(longer)
    monkeypatch.delitem(sys.modules, type(task).__module__)
    with pytest.raises(CheckpointError, match=r"when the task had obs_sizes\.actor = 2, now it is 3"):
        resume(run)


def test_a_back_end_without_exact_state_cannot_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is not whole cannot be gone on from bit for bit, and that is said."""
    run = interrupted(tmp_path / "run", 2)
    monkeypatch.setattr(MujocoPhysics, "exact_state", False)
    with pytest.raises(ValueError, match="its physics back end, mujoco, does not give its full state"):
        resume(run)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
def test_a_full_disk_ends_the_run_and_leaves_the_earlier_checkpoints(tmp_path: Path) -> None:
    """When a checkpoint does not fit, the error says what to do, and the run can go on from the one before."""
    run = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with pytest.raises(
            SaveError, match=r"checkpoint 3 cannot be written \(File too large.*Make room, then `unilab"
        ):
            train(tiny_config(**LONG, checkpoint_every_s=1e-9), run, callback=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_checkpoint(run).manifest["iteration"] == 2
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000001", "000000002", "best.json"]
    assert resume(run).summary["outcome"] == "finished"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """A folder without a run, one without checkpoints, and one with a foreign configuration: one line each."""
    for content, message in (
        (None, "is not a run folder"),
        ("[1]", "a configuration is a JSON object"),
        ("{", "not valid JSON"),
    ):
        folder = tmp_path / str(content and content[0])
        folder.mkdir()
        if content is not None:
            (folder / "config.json").write_text(content)
        with pytest.raises(ValueError, match=message) as caught:
            resume(folder)
        assert "\n" not in str(caught.value)
    run = interrupted(tmp_path / "run", 2)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        resume(run)


def test_other_versions_and_processors_are_told(tmp_path: Path) -> None:
    """A run that goes on where other bits are to be expected says what has changed."""
    run = interrupted(tmp_path / "run", 2)
    from unilab.runtime import resume as module

    display = Messages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "versions", lambda: {"jax": "99"})
        resume(run, display=display)
    assert any("results may differ in the last bits" in text and "-> 99" in text for text in display.texts)
    assert os.path.exists(run / "summary.json")
