"""The configuration of a run: one frozen dataclass, its defaults for a task, and its JSON form."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unilab.algos.registry import ALGORITHMS, config_class
from unilab.cores import usable_cores
from unilab.envs.physics.registry import DEFAULT, physics_entry
from unilab.envs.registry import find_task, task_source
from unilab.envs.task import Task
from unilab.names import closest

MAX_SHARD_SIZE = 256
MIN_SHARDS = 4


@dataclass(frozen=True)
class Config:
    """Everything that decides a training run. `None` stands for a value that `resolved()` derives.

    Attributes:
        task: the task with its own settings and reward weights.
        algo: the algorithm's settings.
        seed: seed of all random numbers of the training.
        steps: env steps to train for, summed over envs; rounded up to whole rollouts.
        num_envs: number of envs.
        shard_size: envs in a shard, a divisor of `num_envs`. Default: the largest that leaves four shards or more, and
            at most 256. It follows from `num_envs` alone, never from the machine, so results cannot depend on that.
            Physics on JAX's device steps all envs as one shard.
        workers: worker processes; 0 runs the same code in this process. Default: one per core. No effect on results.
            With physics on JAX's device there are none.
        physics: name of the physics back end; it decides results.
        lag: policy versions between collecting and learning; 1 overlaps the two. Default: 1 on an accelerator, else 0.
        learner_threads: threads of the learner's CPU pool; it decides rounding. Default: the machine's cores.
        eval_every: env steps between two evaluations. Default: a tenth of `steps`.
        eval_episodes: episodes of an evaluation.
        eval_seed: seed of the evaluations; the same episodes are met every time.
        horizon_steps: env steps over which schedules such as that of the step size run. Default: `steps`.
        checkpoint_every_s: seconds between two checkpoints; has no effect on results.
        hang_after_s: seconds without any progress after which a worker is killed and replaced; no effect on results.
        max_unstable_share: a rollout in which more than this share of the envs became unstable ends the run.
        init_from: run folder whose policy the training starts from.
        save_replay: keep the replay of an off-policy algorithm in checkpoints, so that a resumed run has the same bits.
        digest: print and record a digest of all rollouts and weights.
        deterministic: on a GPU, let the learner use only operations whose results never vary, which are slower. On a
            CPU they never do.
        job_order: "shuffled" hands out jobs in random order; results must not change.
    """

    task: Task
    algo: Any
    seed: int = 0
    steps: int = 1_000_000
    num_envs: int = 256
    shard_size: int | None = None
    workers: int | None = None
    physics: str = DEFAULT
    lag: Literal[0, 1] | None = None
    learner_threads: int | None = None
    eval_every: int | None = None
    eval_episodes: int = 128
    eval_seed: int = 1_000_003
    horizon_steps: int | None = None
    checkpoint_every_s: float = 60.0
    hang_after_s: float = 60.0
    max_unstable_share: float = 0.1
    init_from: str | None = None
    save_replay: bool = False
    digest: bool = False
    deterministic: bool = False
    job_order: Literal["in_order", "shuffled"] = "in_order"

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(Config)
        for name in (f.name for f in dataclasses.fields(self) if f.name not in ("task", "algo")):
            object.__setattr__(self, name, _checked(name, getattr(self, name), hints[name]))
        _require_finite({"algo": dataclasses.asdict(self.algo), "task": dataclasses.asdict(self.task)})
        for name, least in (("steps", 1), ("num_envs", 1), ("eval_episodes", 1), ("seed", 0), ("eval_seed", 0)):
            _require(name, getattr(self, name), getattr(self, name) >= least, f"at least {least}")
        for name in ("seed", "eval_seed"):
            _require(name, getattr(self, name), getattr(self, name) < 2**32, "less than 2^32")
        for name, least in (("workers", 0), ("learner_threads", 1), ("eval_every", 1), ("horizon_steps", 1)):
            value = getattr(self, name)
            _require(name, value, value is None or value >= least, f"at least {least}")
        _require("lag", self.lag, self.lag in (None, 0, 1), "0 or 1")
        if physics_entry(self.physics).on_device:
            _require("workers", self.workers, not self.workers, f"0, since {self.physics} steps on JAX's device")
        for name in ("checkpoint_every_s", "hang_after_s"):
            _require(name, getattr(self, name), getattr(self, name) > 0, "a number greater than 0")
        _require("max_unstable_share", self.max_unstable_share, 0 <= self.max_unstable_share <= 1, "0 to 1")
        _require("job_order", self.job_order, self.job_order in ("in_order", "shuffled"), "in_order or shuffled")
        size = self.shard_size
        _require(
            "shard_size",
            size,
            size is None or (size >= 1 and self.num_envs % size == 0),
            f"a divisor of num_envs={self.num_envs}",
        )

    @property
    def algo_name(self) -> str:
        """Name of the algorithm that `algo` configures."""
        for name, entry in ALGORITHMS.items():
            if entry.config == type(self.algo).__name__:
                return name
        raise ValueError(f"algo is a {type(self.algo).__name__}; allowed are {[e.config for e in ALGORITHMS.values()]}")

    @property
    def env_steps_per_iteration(self) -> int:
        """Env steps in one rollout of all envs."""
        return int(self.num_envs * self.algo.rollout_steps)

    @property
    def iterations(self) -> int:
        """Passes of the main loop: `steps` rounded up to whole rollouts."""
        return -(-self.steps // self.env_steps_per_iteration)

    @property
    def horizon_iterations(self) -> int:
        """Passes of the main loop over which schedules run."""
        return -(-(self.horizon_steps or self.steps) // self.env_steps_per_iteration)

    def resolved(self, on_accelerator: bool = False) -> Config:
        """This configuration with every `None` replaced by the value it stands for."""
        values: dict[str, Any] = {}
        on_device = physics_entry(self.physics).on_device
        if self.shard_size is None:
            values["shard_size"] = self.num_envs if on_device else default_shard_size(self.num_envs)
        if self.workers is None:
            values["workers"] = 0 if on_device else usable_cores()
        if self.lag is None:
            values["lag"] = 1 if on_accelerator and not on_device else 0  # one device cannot do both at once
        if self.learner_threads is None:
            values["learner_threads"] = os.cpu_count() or 1
        if self.eval_every is None:
            values["eval_every"] = max(self.steps // 10, 1)
        return dataclasses.replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """JSON form; `from_json` reads it back."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("task", "algo")}
        task = {"source": task_source(type(self.task)), **dataclasses.asdict(self.task)}
        return {"task": task, "algo": {"name": self.algo_name, **dataclasses.asdict(self.algo)}, **own}

    @classmethod
    def from_json(cls, data: Any, task_class: type[Task] | None = None) -> Config:
        """Configuration from its JSON form.

        Args:
            task_class: the class of the task, for one that no file or registry name leads to.

        Raises:
            ValueError: a key is unknown or missing, or a value is not allowed; the message names it.
        """
        if (
            not isinstance(data, Mapping)
            or not isinstance(data.get("task"), Mapping)
            or not isinstance(data.get("algo"), Mapping)
        ):
            raise ValueError("a configuration is a JSON object with the objects 'task' and 'algo'")
        task, algo, own = (
            dict(data["task"]),
            dict(data["algo"]),
            {k: v for k, v in data.items() if k not in ("task", "algo")},
        )
        source = task.pop("source", None)
        if task_class is None and source is None:
            raise ValueError("task.source is null: the task was not in a file; pass its class as task_class=")
        task_class = task_class or find_task(str(source))
        return cls(
            task=task_class(**_checked_fields(task_class, task, "task.")),
            algo=algo_from_json(algo),
            **_checked_fields(cls, own, ""),
        )


def algo_from_json(data: Mapping[str, Any]) -> Any:
    """An algorithm's configuration from its JSON form, {"name": ..., field: value, ...}."""
    values = dict(data)
    name = values.pop("name", None)
    if name not in ALGORITHMS:
        raise ValueError(f"algo.name is {name!r}; allowed: {sorted(ALGORITHMS)}")
    return config_class(name)(**_checked_fields(config_class(name), values, "algo."))


def default_shard_size(num_envs: int) -> int:
    """Envs in a shard for so many envs: at least four shards where that is possible, and at most 256 envs in each."""
    largest = max(1, min(MAX_SHARD_SIZE, num_envs // MIN_SHARDS))
    return next(size for size in range(largest, 0, -1) if num_envs % size == 0)


def make_config(task: str | Task, algo: str = "ppo", **overrides: Any) -> Config:
    """Configuration of a task by name (or a task), with the task's own defaults for the algorithm and `overrides`.

    Args:
        task: a registered name, "file.py:Class", or a task.
        algo: name of the algorithm.
        overrides: fields of `Config`; dotted names reach into the task and algorithm, as in
            `make_config("CartpoleSwingup", **{"algo.epochs": 4})`.

    Raises:
        ValueError: unknown task, algorithm or field, or a value that is not allowed.
    """
    instance = task if isinstance(task, Task) else find_task(task)()
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algo!r}; {closest(algo, ALGORITHMS)}")
    if algo not in instance.train_defaults and instance.train_defaults:
        defaults: Mapping[str, Any] = {}
    else:
        defaults = instance.train_defaults.get(algo, {})
    config = Config(task=instance, algo=config_class(algo)())
    return replace(config, **{**defaults, **overrides})


def replace(config: Any, /, **changes: Any) -> Any:
    """Copy of a (nested) dataclass with fields replaced; "a.b" reaches into field a, also into dictionaries.

    Raises:
        ValueError: a name matches no field.
    """
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    allowed = list(config) if isinstance(config, dict) else [f.name for f in dataclasses.fields(config)]
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if head not in allowed:
            raise ValueError(f"unknown field {head!r}; {closest(head, allowed)}")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, inner in nested.items():
        current = own.get(head, config[head] if isinstance(config, dict) else getattr(config, head))
        own[head] = replace(current, **inner)
    return {**config, **own} if isinstance(config, dict) else dataclasses.replace(config, **own)


def load_json(text: str) -> Any:
    """JSON value of a text, with a ValueError of one line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _checked_fields(cls: Any, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values for the fields of a dataclass, with names and types checked and lists made tuples where wanted."""
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    checked = {}
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"unknown key {prefix}{name}; {closest(name, names)}")
        checked[name] = _checked(f"{prefix}{name}", value, hints[name])
    return checked


def _checked(name: str, value: Any, hint: Any) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, type(int | None)) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if option is type(None) and value is None:
            return None
        if origin is Literal and value in typing.get_args(option):
            return value
        if typing.get_origin(option) is Literal or not isinstance(origin, type):
            continue
        if origin is tuple and isinstance(value, list | tuple):
            items = typing.get_args(option)
            item_hints = [items[0]] * len(value) if len(items) == 2 and items[1] is Ellipsis else items
            if len(item_hints) == len(value):
                return tuple(_checked(name, item, item_hint) for item, item_hint in zip(value, item_hints, strict=True))
            continue
        if origin is dict and isinstance(value, dict):
            _, item_hint = typing.get_args(option)
            return {str(k): _checked(f"{name}.{k}", v, item_hint) for k, v in value.items()}
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                if math.isfinite(value):
                    return float(value)
            continue
        if origin is int and hasattr(value, "__index__") and not isinstance(value, bool):
            return int(value)
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            return value
    raise ValueError(f"{name} is {value!r}; allowed: {' or '.join(_words(option) for option in options)}")


WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", type(None): "none"}


def _words(option: Any) -> str:
    """What may stand for a value of a type, for people."""
    items = typing.get_args(option)
    if typing.get_origin(option) is Literal:
        return " or ".join(map(str, items))
    if typing.get_origin(option) is tuple:
        inner = items[:1] if Ellipsis in items else items
        return f"a list of {' and '.join(_words(item) for item in inner)}"
    return WORDS.get(option, "an object" if typing.get_origin(option) is dict else str(option))


def _require_finite(values: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse infinite settings and those that are no number: JSON could not keep them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _require_finite(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{prefix}{name} is {value}; allowed: a finite number")


def _require(name: str, value: Any, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
