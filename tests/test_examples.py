"""The examples run as they stand, and a task of one's own trains from wherever it was written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = ["--steps", "512", "--num-envs", "8", "--algo.rollout-steps", "16", "--eval-episodes", "4", "--workers", "1"]


def run(command: list[str], folder: Path, text: str | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.learning
@pytest.mark.timeout(280)
def test_custom_task_script_trains_without_a_main_guard(tmp_path: Path) -> None:
    """`python examples/custom_task.py` starts worker processes without a guard and learns to hover."""
    run([sys.executable, str(EXAMPLES / "custom_task.py")], tmp_path)
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json"))
    assert summary["evaluation"]["height_error"] < 0.15
    assert summary["evaluation"]["return_mean"] > 120  # of at most 200


@pytest.mark.process
def test_custom_task_trains_from_the_command_line(tmp_path: Path) -> None:
    """`unilab train file.py:Class` trains the task only, although the file itself trains when it is run."""
    unilab = [sys.executable, "-m", "unilab"]
    run([*unilab, "train", f"{EXAMPLES / 'custom_task.py'}:Hover", "--out", "run", "--quiet", *TINY], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    figures = json.loads(run([*unilab, "eval", "run", "--episodes", "4", "--json"], tmp_path))
    assert figures["episodes"] == 4


@pytest.mark.process
def test_task_of_a_notebook_cell_trains(tmp_path: Path) -> None:
    """A task class that no file holds, as in a notebook, reaches the workers."""
    lines = (EXAMPLES / "custom_task.py").read_text().partition("result = ")[0]
    small = {"steps": 512, "num_envs": 8, "eval_episodes": 4, "workers": 1, "algo.rollout_steps": 16}
    train = f"result = unilab.train(unilab.make_config(Hover(), **{small!r}), 'run')"
    cell = f"{lines}\n{train}\nprint(result.summary['outcome'])\n"
    assert run([sys.executable, "-"], tmp_path, cell).strip() == "finished"


def test_examples_name_registered_tasks() -> None:
    """Every task of our own has an example that trains it; those of Gymnasium's suite differ by name alone."""
    from unilab import TASKS

    text = "".join(path.read_text() for path in EXAMPLES.glob("train_*.py"))
    assert all(f'"{name}"' in text for name in TASKS if not name.endswith("-v5"))
