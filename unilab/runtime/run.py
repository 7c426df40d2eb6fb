"""A run folder: what is in it, how it begins, and how a policy is read back from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unilab.algos.algorithm import Horizon, Spaces
from unilab.algos.registry import algorithm_class
from unilab.config import Config, algo_from_json, load_json
from unilab.envs.task import Mirror, Task
from unilab.names import in_shell
from unilab.runtime.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from unilab.runtime.metrics import write_json


def default_folder(config: Config) -> Path:
    """runs/<task>-<algorithm>-seed<seed>-<date>-<time>."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{type(config.task).__name__}-{config.algo_name}-seed{config.seed}-{stamp}"


@contextlib.contextmanager
def new_run(folder: Path, config: Config) -> Iterator[None]:
    """Make a run folder with its config.json, and hold it while entered. Nothing is left of a run that began nothing.

    Raises:
        ValueError: the folder holds a run already, another process trains into it, or it cannot be written.
    """
    is_new = False
    try:
        try:
            folder.mkdir(parents=True)
            is_new = True
        except FileExistsError:
            folder.mkdir(exist_ok=True)  # complains if it is a file
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}; choose another --out") from None
    with held(folder):
        before = set(folder.iterdir())
        if folder / "config.json" in before:
            raise ValueError(
                f"{folder} already holds a run; choose another --out, remove it, or go on with "
                f"`unilab resume {in_shell(folder)}`"
            )
        try:
            write_config(folder, config)
            yield
        except BaseException:
            if not has_checkpoint(folder):
                for path in set(folder.iterdir()) - before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                if is_new:
                    folder.rmdir()
            raise


def write_config(folder: Path, config: Config) -> None:
    """Write a run's config.json.

    Raises:
        ValueError: the folder cannot be written.
    """
    try:
        write_json(folder / "config.json", config.to_json())
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}; is it read-only?") from None


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from training into a folder. The kernel lets go of it however this process ends.

    Raises:
        ValueError: another process holds it.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is being trained into by another process; wait for it, or use another"
            ) from None
        yield
    finally:
        os.close(fd)


def read_config(folder: Path, task_class: type[Task] | None = None) -> Config:
    """The configuration of a run.

    Raises:
        ValueError: the folder is no run folder, or its config.json is not one of ours.
    """
    data = read_settings(folder)
    try:
        return Config.from_json(data, task_class)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None


def read_settings(folder: Path) -> Any:
    """What stands in a run's config.json; no task is looked for.

    Raises:
        ValueError: it cannot be read, or is not JSON.
    """
    path = folder / "config.json"
    try:
        return load_json(path.read_text())
    except OSError as error:
        raise ValueError(f"{folder} is not a run folder: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def spaces_to_json(spaces: Spaces) -> dict[str, Any]:
    """JSON form of what networks are built for; kept in a checkpoint's manifest."""
    mirror = spaces.mirror
    lists: Any = mirror and {
        k: {"perm": np.asarray(m.perm).tolist(), "sign": np.asarray(m.sign).tolist()} for k, m in mirror.items()
    }
    bounds = [bound.tolist() for bound in spaces.action_bounds]
    return {
        "obs_sizes": dict(spaces.obs_sizes), "action_size": spaces.action_size, "mirror": lists, "bounds": bounds,
        "shared_obs": spaces.shared_obs,
    }  # fmt: skip


def spaces_from_json(data: Mapping[str, Any]) -> Spaces:
    """The inverse of `spaces_to_json`."""
    mirror = data["mirror"]
    mirrors = mirror and {k: Mirror.of(m["sign"], m["perm"]) for k, m in mirror.items()}
    low, high = (np.array(bound, np.float32) for bound in data["bounds"])
    return Spaces(data["obs_sizes"], data["action_size"], mirrors, (low, high), data["shared_obs"])


class Policy:
    """A trained, deterministic policy: `policy(obs)` with obs [n] or [B, n] gives actions [A] or [B, A].

    Attributes:
        obs_size, action_size: lengths of what goes in and comes out.
    """

    def __init__(self, algorithm: Any, snapshot: Any, spaces: Spaces) -> None:
        self.obs_size, self.action_size = spaces.obs_sizes["actor"], spaces.action_size
        self._snapshot = snapshot
        self._act = jax.jit(algorithm.act_deterministic)

    def __call__(self, obs: Any) -> np.ndarray:
        obs = np.asarray(obs, np.float32)
        if obs.ndim not in (1, 2) or obs.shape[-1] != self.obs_size:
            raise ValueError(f"obs has shape {obs.shape}, expected ({self.obs_size},) or (batch, {self.obs_size})")
        return np.asarray(self._act(self._snapshot, {"actor": np.atleast_2d(obs)})).reshape(*obs.shape[:-1], -1)


def load_policy(run: str | Path, checkpoint: str = "best") -> Policy:
    """The policy of a run, by default its best checkpoint's; needs neither the task nor its model.

    Raises:
        ValueError: the folder is no run, or its checkpoint is damaged.
    """
    loaded = load_checkpoint(Path(run), checkpoint)
    algorithm, state, spaces = algorithm_from(loaded)
    return Policy(algorithm, algorithm.snapshot(state), spaces)


def algorithm_from(checkpoint: Checkpoint) -> tuple[Any, Any, Spaces]:
    """The algorithm of a checkpoint, its state and its spaces."""
    data = checkpoint.manifest["config"]
    config, spaces = algo_from_json(data["algo"]), spaces_from_json(checkpoint.manifest["spaces"])
    horizon = Horizon(1, data["num_envs"], config.rollout_steps, data["lag"], checkpoint.manifest["episode_steps"])
    algorithm = algorithm_class(data["algo"]["name"])(config, spaces, horizon)
    return algorithm, checkpoint.tree("algorithm", learned_shapes(algorithm)), spaces


def learned_shapes(algorithm: Any) -> Any:
    """Shapes and dtypes of what an algorithm learns, without what it remembers."""
    return jax.eval_shape(lambda: algorithm.split(algorithm.init(jax.random.key(0)))[0])
