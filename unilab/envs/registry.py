"""Tasks by name. The entries are strings, so that listing them imports neither jax nor mujoco."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from unilab.names import closest

if TYPE_CHECKING:
    from unilab.envs.task import Task


@dataclass(frozen=True)
class TaskEntry:
    """Where a task lives and what it is.

    Attributes:
        description: what the robot does.
        module: the module of its class.
        episode_steps: time limit of an episode in env steps, as the task has it by default.
    """

    description: str
    module: str
    episode_steps: int


_STANDARD = "unilab.envs.tasks.standard"

TASKS: dict[str, TaskEntry] = {
    "CartpoleSwingup": TaskEntry(
        "swing a pole up by moving its cart, and hold it there", "unilab.envs.tasks.cartpole_swingup", 500
    ),
    "Go1JoystickFlat": TaskEntry(
        "a Unitree Go1 follows velocity commands on flat ground", "unilab.envs.tasks.go1_joystick", 500
    ),
    "Ant-v5": TaskEntry("a four-legged robot walks forward", f"{_STANDARD}.ant", 1000),
    "HalfCheetah-v5": TaskEntry("a planar two-legged runner runs forward", f"{_STANDARD}.half_cheetah", 1000),
    "Hopper-v5": TaskEntry("a planar one-legged robot hops forward", f"{_STANDARD}.hopper", 1000),
    "Humanoid-v5": TaskEntry("a humanoid walks forward", f"{_STANDARD}.humanoid", 1000),
    "HumanoidStandup-v5": TaskEntry("a humanoid gets up from the ground", f"{_STANDARD}.humanoid_standup", 1000),
    "InvertedDoublePendulum-v5": TaskEntry(
        "a cart keeps two poles, one on top of the other, upright", f"{_STANDARD}.inverted_double_pendulum", 1000
    ),
    "InvertedPendulum-v5": TaskEntry("a cart keeps a pole upright", f"{_STANDARD}.inverted_pendulum", 1000),
    "Pusher-v5": TaskEntry("an arm of seven joints pushes a cylinder to a goal", f"{_STANDARD}.pusher", 100),
    "Reacher-v5": TaskEntry("a planar arm of two links reaches for a point", f"{_STANDARD}.reacher", 50),
    "Swimmer-v5": TaskEntry("a snake of three links swims forward", f"{_STANDARD}.swimmer", 1000),
    "Walker2d-v5": TaskEntry("a planar two-legged robot walks forward", f"{_STANDARD}.walker2d", 1000),
}


def find_task(name: str) -> type[Task]:
    """The class of a registered task, or of "path/to/file.py:Class".

    Raises:
        ValueError: there is no such task, file or class.
    """
    if name in TASKS:
        return getattr(importlib.import_module(TASKS[name].module), _class_name(name))
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise ValueError(f"unknown task {name!r}; {closest(name, TASKS)} (a task of your own: file.py:Class)")
    if not Path(path).is_file():
        raise ValueError(f"no file {path!r} to take the task {class_name!r} from")
    return _class_in(_import_file(Path(path).resolve()), class_name, path)


def task_source(task_class: type[Task]) -> str | None:
    """The name under which `find_task` finds a class again: a registered name or "file.py:Class"; None if it cannot."""
    name, module = task_class.__name__, sys.modules.get(task_class.__module__)
    for registered, entry in TASKS.items():
        if (entry.module, _class_name(registered)) == (task_class.__module__, name):
            return registered
    path = getattr(module, "__file__", None)
    return f"{Path(path).resolve()}:{name}" if path and path.endswith(".py") else None


def _class_name(registered: str) -> str:
    """Name of a registered task's class: without the version."""
    return registered.partition("-")[0]


def _import_file(path: Path) -> ModuleType:
    """A file as a module of its own name, so that two files called task.py do not collide."""
    name = f"unilab_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    main = sys.modules.get("__main__")
    main_file = getattr(main, "__file__", None)
    if main is not None and main_file and Path(main_file).resolve() == path:
        return main
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    global _is_importing
    _is_importing = True
    try:
        spec.loader.exec_module(module)
    except TaskFileRead:
        pass  # what stands above the call is all that was wanted
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _is_importing = False
    return module


_is_importing = False


class TaskFileRead(BaseException):
    """Ends the import of a file that trains when it is run, as a script does; its task is all that is wanted of it."""


def stop_if_importing() -> None:
    """Called where a training would begin: ends the import of a task's file there."""
    if _is_importing:
        raise TaskFileRead


def _class_in(module: ModuleType, class_name: str, path: str) -> type[Task]:
    from unilab.envs.task import Task

    found = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Task) and v is not Task}
    if class_name not in found:
        raise ValueError(f"{path} has no task {class_name!r}; it has {sorted(found) or 'none'}")
    return found[class_name]
