from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mujoco
import pytest
from tiny import SETTINGS, Slider, tiny_config

from unilab.config import make_config
from unilab.runtime.checkpoint import CheckpointError
from unilab.runtime.evaluate import evaluate
from unilab.runtime.metrics import read_metrics
from unilab.runtime.train import train


@dataclass(frozen=True)
class FineSlider(Slider):
    """A slider whose fine physics brakes it more."""

    def model(self, fine: bool = False) -> mujoco.MjSpec:
        spec = super().model()
        if fine:
            spec.body("block").gravcomp, spec.option.viscosity = 1.0, 100.0
        return spec


class WideSlider(FineSlider):
    """The same with one more observation."""

    def observe(self, state: Any, physics: Any, key: Any) -> dict[str, Any]:
        obs = super().observe(state, physics, key)
        return obs | {"actor": jnp.append(obs["actor"], 0.0)}

    def mirror(self) -> None:
        return None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations."""
    return train(tiny_config(FineSlider()), tmp_path_factory.mktemp("runs") / "run").run


def test_the_runs_own_episodes_give_its_last_evaluation(run: Path) -> None:
    """Played again, the episodes of the training's last evaluation give the very figures that the run recorded."""
    figures = evaluate(run, episodes=3, seed=1_000_003, checkpoint="latest", workers=0)
    recorded = {key: value for key, value in read_metrics(run)[-1].items() if key.startswith("eval/")}
    assert {f"eval/{name}": value for name, value in figures.items() if f"eval/{name}" in recorded} == recorded
    assert figures["checkpoint"] == 3


def test_default_episodes_are_not_those_that_chose_the_checkpoint(run: Path) -> None:
    """Without a seed the episodes are others than those of the training, and the answer says which."""
    figures = evaluate(run, episodes=3, workers=0)
    assert figures["seed"] == 1_000_004
    assert figures["return_mean"] != evaluate(run, episodes=3, seed=1_000_003, workers=0)["return_mean"]


def test_figures_are_plain_and_complete(run: Path) -> None:
    """The answer names episodes, return, length, the task's figures and what was evaluated, and is JSON."""
    figures = evaluate(run, episodes=5, workers=0)
    assert list(figures)[:4] == ["episodes", "return_mean", "return_std", "length_mean"]
    assert {"termination_rate", "distance", "late_distance", "checkpoint", "seed", "fine_physics"} <= set(figures)
    assert figures["episodes"] == 5
    assert json.loads(json.dumps(figures)) == figures


def test_fine_physics_is_what_the_task_calls_fine(run: Path) -> None:
    """With `fine` the task's fine model is simulated, and the answer says so."""
    fine, coarse = (evaluate(run, episodes=4, fine=fine, workers=0) for fine in (True, False))
    assert (fine["fine_physics"], coarse["fine_physics"]) == (True, False)
    assert fine["distance"] != coarse["distance"]


@pytest.mark.process
@pytest.mark.timeout(120)
def test_workers_change_nothing(run: Path, nothing_left: None) -> None:
    """Two worker processes find the same figures as this process, bit for bit, and leave nothing behind."""
    assert evaluate(run, episodes=5, workers=2) == evaluate(run, episodes=5, workers=0)


def test_task_without_a_source_needs_its_class(run: Path, tmp_path: Path) -> None:
    """A run of a task from a notebook is refused with the way out, and evaluated once the class is given."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["task"]["source"] = None
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="task_class="):
        evaluate(copy)
    assert evaluate(copy, 3, workers=0, task_class=FineSlider) == evaluate(run, 3, workers=0)


def test_changed_task_is_refused(run: Path) -> None:
    """A task whose observations are no longer those of the training is refused with both sizes."""
    with pytest.raises(CheckpointError, match=r"'actor': 2.*'actor': 3"):
        evaluate(run, episodes=2, workers=0, task_class=WideSlider)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "eval_episodes is 0"),
        ({"seed": -1}, "eval_seed is -1"),
        ({"checkpoint": "newest"}, "checkpoint is 'newest'; allowed: best, latest"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_arguments_that_are_not_allowed(run: Path, arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is a ValueError that names it, its value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        evaluate(run, **arguments)


def test_folder_that_is_no_run(tmp_path: Path) -> None:
    """A folder without a configuration is refused by name."""
    with pytest.raises(ValueError, match="not a run folder"):
        evaluate(tmp_path / "nowhere")


def test_evaluation_settings_of_the_task_are_used(tmp_path: Path) -> None:
    """Episodes follow `Task.evaluation()`, here twice as long."""

    @dataclass(frozen=True)
    class Longer(Slider):
        limit: float = 1e6

        def evaluation(self) -> Slider:
            return dataclasses.replace(self, episode_s=1.2)

    config = make_config(Longer(), **(SETTINGS | {"steps": 1}))
    made = train(config, tmp_path / "run").run
    assert evaluate(made, 2, workers=0, task_class=Longer)["length_mean"] == 60
