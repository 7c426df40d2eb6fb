"""Evaluation of a trained run: fresh episodes, if wanted on the task's most faithful physics."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from unilab.config import Config, default_shard_size
from unilab.cores import usable_cores
from unilab.envs.physics.registry import physics_entry
from unilab.envs.task import Task
from unilab.runtime.checkpoint import CheckpointError, load_checkpoint
from unilab.runtime.collector import Collector
from unilab.runtime.display import QuietDisplay
from unilab.runtime.plan import Plan
from unilab.runtime.run import learned_shapes, read_config

CHECKPOINTS = ("best", "latest")


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a checkpoint of a run says of acting.

    Attributes:
        iteration: passes of the main loop before it.
        policy: what `algorithm.act_deterministic` takes.
        curriculum: values that the task's curriculum had then.
    """

    iteration: int
    policy: Any
    curriculum: Any


def evaluate(
    run: str | Path,
    episodes: int = 256,
    seed: int | None = None,
    checkpoint: str = "best",
    fine: bool = False,
    workers: int | None = None,
    task_class: type[Task] | None = None,
    physics: str | None = None,
) -> dict[str, Any]:
    """Figures of a run's policy over whole episodes, without exploration.

    Args:
        run: the run folder.
        episodes: number of episodes, each in an env of its own.
        seed: seed of the episodes. By default the run's `eval_seed` + 1: other episodes than those that chose the best
            checkpoint, which would flatter it.
        checkpoint: "best" or "latest".
        fine: use the task's most faithful physics.
        workers: worker processes, by default one per core; no effect on the figures.
        task_class: class of the task, for one that was defined in a notebook.
        physics: name of the physics back end, by default the one of the training.

    Returns:
        `episodes`, `return_mean`, `return_std`, `length_mean`, the task's termination metric and metrics; then what was
        evaluated: `checkpoint` (its iteration), `seed`, `fine_physics`, `physics`.

    Raises:
        ValueError: the folder is no run, its checkpoint is damaged, or an argument is not allowed.
        WorkerError: a worker failed or died.
    """
    config = read_config(Path(run), task_class)
    seed = (config.eval_seed + 1) % 2**32 if seed is None else seed
    plan = Plan.of(_for_evaluation(config, episodes, seed, workers, physics), fine)
    trained = read_trained(plan, Path(run), checkpoint)
    with Collector(plan, report=QuietDisplay().warn) as collector:
        collector.publish(0, trained.policy, trained.curriculum)
        figures = collector.evaluate(0)
    first = {name: figures.pop(name) for name in ("episodes", "return_mean", "return_std", "length_mean")}
    settings = {"seed": seed, "fine_physics": fine, "physics": plan.config.physics}
    return first | figures | {"checkpoint": trained.iteration} | settings


def read_trained(plan: Plan, run: Path, checkpoint: str) -> Trained:
    """The policy of a run's checkpoint, for the plan of that run.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, or the task's observations or actions have changed.
    """
    if checkpoint not in CHECKPOINTS:
        raise ValueError(f"checkpoint is {checkpoint!r}; allowed: {', '.join(CHECKPOINTS)}")
    loaded = load_checkpoint(run, checkpoint)
    for text in loaded.damaged:
        QuietDisplay().warn(f"{text}; {loaded.folder.name} is used instead")
    found = {**loaded.manifest["spaces"]["obs_sizes"], "action": loaded.manifest["spaces"]["action_size"]}
    needed = {**plan.spaces.obs_sizes, "action": plan.spaces.action_size}
    if found != needed:
        raise CheckpointError(f"{loaded.folder} was trained for sizes {found}, but the task has {needed}; train anew")
    state = loaded.tree("algorithm", learned_shapes(plan.algorithm))
    curriculum = loaded.tree("curriculum", plan.initial_curriculum())
    return Trained(int(loaded.manifest["iteration"]), plan.algorithm.snapshot(state), curriculum)


def _for_evaluation(config: Config, episodes: int, seed: int, workers: int | None, physics: str | None) -> Config:
    """The run's configuration with other episodes, and no more workers than there are shards to play."""
    physics = physics or config.physics
    if workers is None and not physics_entry(physics).on_device:
        workers = min(usable_cores(), episodes // default_shard_size(episodes))
    changes = {"eval_episodes": episodes, "eval_seed": seed, "workers": workers, "physics": physics}
    return dataclasses.replace(config, **changes).resolved()  # type: ignore[arg-type]
