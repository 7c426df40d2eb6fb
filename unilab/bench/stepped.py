"""Vector envs as contenders: stepped under random actions for a while, env steps counted as Gymnasium counts them.

As in `gymnasium.utils.performance.benchmark_vector_step`: a step that only resets an env (`NEXT_STEP`) is not an env
step, and where the caller resets (`DISABLED`), the resets are in the time. Other than there, the actions are drawn
before the clock starts, and so many steps are taken before it that the envs are where the recording of the physical
limit begins.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from unilab.bench.engines import worker_processes
from unilab.bench.measure import close_all
from unilab.bench.recording import SETTLE_STEPS

NUM_ACTIONS = 64
MAX_PROCESSES = 64


class SteppedEnv:
    """A vector env that waits for all its envs.

    Args:
        name: of the contender.
        env: the vector env; closed with this.
        workers: processes or threads that step it; 0 for none but this one.
        seconds: how long one `run` takes.
        settings: what was chosen for it, for the record.
    """

    def __init__(self, name: str, env: Any, workers: int, seconds: float, **settings: Any) -> None:
        self.name, self.env, self.workers, self.settings = name, env, workers, settings
        self.num_envs = int(settings.get("num_envs", env.num_envs))
        self.seconds = seconds
        self._actions = itertools.cycle(_actions(env, self.num_envs))
        self._begin()
        for _ in range(SETTLE_STEPS):
            self._step()

    def _begin(self) -> None:
        self.env.reset(seed=0)
        self._was_done = np.zeros(self.num_envs, bool)
        self._mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)

    def run(self) -> float:
        count, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < self.seconds or not count:
            count += self._step()
        return count / elapsed

    def _step(self) -> int:
        """Step all envs; returns how many env steps that were."""
        _, _, terminated, truncated, _ = self.env.step(next(self._actions))
        done = np.logical_or(terminated, truncated)
        if self._mode == AutoresetMode.DISABLED and done.any():
            self.env.reset(options={"reset_mask": done})
        if self._mode != AutoresetMode.NEXT_STEP:
            return self.num_envs
        count = self.num_envs - int(np.count_nonzero(self._was_done))
        self._was_done = done
        return count

    def close(self) -> None:
        self.env.close()


class SteppedPool(SteppedEnv):
    """An EnvPool that waits for all its envs; its seed was given when it was made, and it resets as `NEXT_STEP`."""

    def _begin(self) -> None:
        self._was_done, self._mode = np.zeros(self.num_envs, bool), AutoresetMode.NEXT_STEP
        self.env.reset()


class SteppedAsync(SteppedEnv):
    """An EnvPool that takes the envs that are ready first, and gives them their next actions.

    `batch_size` of its settings must divide `num_envs`: what is taken at the end of a run is what was given.
    """

    def _begin(self) -> None:
        self._was_done = np.zeros(self.num_envs, bool)
        self.env.async_reset()
        self._take(lambda: False)

    def run(self) -> float:
        """Steps are in flight only while the clock runs: none from the run before, none left for what runs next."""
        start = time.perf_counter()
        self._send(np.arange(self.num_envs))
        count = self._take(lambda: time.perf_counter() - start < self.seconds)
        return count / (time.perf_counter() - start)

    def _step(self) -> int:
        self._send(np.arange(self.num_envs))
        return self._take(lambda: False)

    def _take(self, goes_on: Callable[[], bool]) -> int:
        """All envs are in flight: take what is ready, step it again while that goes on, and end with none in flight;
        returns how many env steps that were."""
        count, in_flight = 0, self.num_envs
        while in_flight:
            _, _, terminated, truncated, info = self.env.recv()
            envs = info["env_id"]
            count += len(envs) - int(np.count_nonzero(self._was_done[envs]))  # the answer to an ended env is its reset
            self._was_done[envs] = np.logical_or(terminated, truncated)
            if goes_on():
                self._send(envs)
            else:
                in_flight -= len(envs)
        return count

    def _send(self, envs: np.ndarray) -> None:
        self.env.send(next(self._actions)[envs], envs)


def make_ours(name: str, task: str, num_envs: int, workers: int, seconds: float, physics: str) -> SteppedEnv:
    """Our vector env on one of our physics back ends; one that steps on JAX's device has it in this process."""
    workers = worker_processes(physics, workers)
    try:
        env = gymnasium.make_vec(f"unilab:unilab/{task}", num_envs=num_envs, num_workers=workers, physics=physics)
    except ValueError as error:  # it cannot do what this task asks
        raise LookupError(" ".join(str(error).split())) from None
    return SteppedEnv(name, env, workers, seconds)


def make_sync(name: str, task: str, num_envs: int, workers: int, seconds: float) -> SteppedEnv:
    """Gymnasium's envs in this process."""
    _require(task in gymnasium.registry, task)
    return SteppedEnv(name, SyncVectorEnv([lambda: gymnasium.make(task)] * num_envs), 0, seconds)


def make_async(name: str, task: str, num_envs: int, workers: int, seconds: float) -> SteppedEnv:
    """Gymnasium's envs in a process each: as many as are fastest, from one per worker to 64."""
    _require(task in gymnasium.registry, task)
    multiprocessing.set_forkserver_preload(["gymnasium.envs.mujoco"])
    largest = min(MAX_PROCESSES, num_envs)

    def make(count: int) -> SteppedEnv:
        env: VectorEnv = AsyncVectorEnv([lambda: gymnasium.make(task)] * count, context="forkserver")
        return SteppedEnv(name, env, count, seconds)

    return _fastest(make, {min(workers, largest), min(8 * workers, largest), largest}, seconds)


def make_envpool(name: str, task: str, num_envs: int, workers: int, seconds: float) -> SteppedEnv:
    """EnvPool with so many threads, waiting for all envs."""
    env = _envpool(task, num_envs, num_threads=workers)
    return SteppedPool(name, env, workers, seconds, num_envs=num_envs, num_threads=workers)


def make_envpool_async(name: str, task: str, num_envs: int, workers: int, seconds: float) -> SteppedEnv:
    """EnvPool with so many threads, taking a part of the envs at a time: the share that is fastest."""
    parts = [part for part in (2, 4, 16) if num_envs % part == 0] or [num_envs]

    def make(batch: int) -> SteppedEnv:
        env = _envpool(task, num_envs, num_threads=workers, batch_size=batch)
        return SteppedAsync(name, env, workers, seconds, num_envs=num_envs, num_threads=workers, batch_size=batch)

    return _fastest(make, {num_envs // part for part in parts}, seconds)


def _envpool(task: str, num_envs: int, **settings: int) -> Any:
    import envpool

    _require(task in envpool.list_all_envs(), task)
    return envpool.make_gymnasium(task, num_envs=num_envs, seed=0, **settings)


def _require(has_task: bool, task: str) -> None:
    if not has_task:
        raise LookupError(f"it has no task {task}")


def _fastest(make: Callable[[int], SteppedEnv], settings: Iterable[int], seconds: float) -> SteppedEnv:
    """The fastest of some settings in a short trial of each; the others are closed."""
    rates: dict[SteppedEnv, float] = {}  # of those that are open
    try:
        for setting in sorted(settings):
            stepped = make(setting)
            rates[stepped] = 0.0
            stepped.seconds = seconds / 2
            rates[stepped] = max(stepped.run() for _ in range(3))
            stepped.seconds = seconds
            while len(rates) > 1:
                slower = min(rates, key=lambda each: rates[each])
                del rates[slower]
                slower.close()
    except BaseException:
        close_all(list(rates))
        raise
    return next(iter(rates))


def _actions(env: Any, num_envs: int) -> list[np.ndarray]:
    """Random actions [N, A], to be given in turn; the same for each vector env of a task."""
    space = env.action_space
    if len(space.shape) == 1:  # EnvPool gives that of a single env
        space = batch_space(space, num_envs)
    space.seed(0)
    return [space.sample() for _ in range(NUM_ACTIONS)]
