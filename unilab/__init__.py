"""Train robot policies with MuJoCo on the CPU and a JAX learner.

The names below are imported when they are first used, so that `import unilab` alone loads neither jax nor mujoco. It
registers the tasks with Gymnasium, as soon as that is imported too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unilab.gym.registration import register_tasks

if TYPE_CHECKING:
    from unilab.algos.registry import ALGORITHMS
    from unilab.config import Config, make_config
    from unilab.envs.registry import TASKS
    from unilab.envs.task import Mirror, Physics, Task, delta
    from unilab.runtime.display import make_display
    from unilab.runtime.evaluate import evaluate
    from unilab.runtime.resume import resume
    from unilab.runtime.run import load_policy
    from unilab.runtime.train import Result, train
    from unilab.runtime.video import record_video

    __version__: str

_MODULES = {
    "ALGORITHMS": "unilab.algos.registry",
    "TASKS": "unilab.envs.registry",
    "Config": "unilab.config",
    "Mirror": "unilab.envs.task",
    "Physics": "unilab.envs.task",
    "Result": "unilab.runtime.train",
    "Task": "unilab.envs.task",
    "delta": "unilab.envs.task",
    "evaluate": "unilab.runtime.evaluate",
    "load_policy": "unilab.runtime.run",
    "make_config": "unilab.config",
    "make_display": "unilab.runtime.display",
    "record_video": "unilab.runtime.video",
    "resume": "unilab.runtime.resume",
    "train": "unilab.runtime.train",
}

__all__ = [
    "ALGORITHMS",
    "TASKS",
    "Config",
    "Mirror",
    "Physics",
    "Result",
    "Task",
    "__version__",
    "delta",
    "evaluate",
    "load_policy",
    "make_config",
    "make_display",
    "record_video",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("unilab")
    if name not in _MODULES:
        raise AttributeError(f"module 'unilab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_tasks()
