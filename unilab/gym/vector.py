"""The vector env: N envs of a task, stepped in this process or by workers, for `gymnasium.make_vec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from unilab.envs.env import compile_model
from unilab.envs.task import Task
from unilab.gym.frames import Frames
from unilab.gym.infos import Infos
from unilab.gym.plan import GymPlan, make_settings
from unilab.gym.spaces import action_space, obs_space
from unilab.gym.stepper import Stepper

MAX_SEED = 2**64 - 1

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = True


os.register_at_fork(after_in_child=_note_fork)


class UnilabVectorEnv(gymnasium.vector.VectorEnv):
    """N envs of one task behind Gymnasium's interface for vector envs.

    Env i with `seed=s` plays the episodes that the single env plays with seed s + i, whatever `num_workers` is.

    Args:
        task: a registered name, "file.py:Class", or the task itself.
        num_envs: number of envs, of any size.
        num_workers: worker processes that share the envs; 0 steps them in this process.
        seed: seed for the first `reset()` without one; by default a random one.
        max_episode_steps: time limit in env steps, by default the task's; -1 for none.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as a member of `AutoresetMode`, its name or its value.
        keywords: see `unilab.gym.plan.Settings`.

    Raises:
        TypeError, ValueError: an argument is unknown or not allowed.
        RuntimeError: the process was forked from one in which jax may run.
        WorkerError: a worker cannot be started, failed, or died. The env is closed then.
    """

    def __init__(
        self, task: str | Task, num_envs: int = 1, *, num_workers: int = 0, seed: int | None = None,
        max_episode_steps: int | None = None, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **keywords: Any,
    ) -> None:  # fmt: skip
        if _is_forked:
            raise RuntimeError(
                "this process was forked from one in which jax may run, and would hang; use num_workers= instead of "
                "Gymnasium's asynchronous vector env, or its context='forkserver'"
            )
        settings, mode = make_settings(keywords), _autoreset_mode(autoreset_mode)
        self.task = settings.task(task)
        limit = self.task.episode_steps if max_episode_steps is None else max_episode_steps
        self._is_dict = settings.obs == "dict"
        groups = ("actor", "critic") if self._is_dict else ("actor",)
        self._first_seed = None if seed is None else _checked_seed(seed)
        plan = GymPlan(
            self.task, compile_model(self.task, settings.fine_physics), num_envs, num_workers,
            None if limit == -1 else limit, mode, groups, settings.physics,
        )  # fmt: skip
        env = plan.env
        self.num_envs, self.render_mode = num_envs, settings.render_mode
        self.metadata = {
            "autoreset_mode": mode,
            "render_modes": ["rgb_array"],
            "render_fps": max(1, round(1 / self.task.control_dt)),
        }
        self.single_action_space, self.single_observation_space = (
            action_space(env),
            obs_space(env, groups, self._is_dict),
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._mode, self._groups, self._infos = mode, groups, Infos(env.columns)
        size = (settings.width, settings.height, settings.camera)
        self._frames = Frames(self.task, num_envs, *size) if settings.render_mode else None
        self._has_begun = np.zeros(num_envs, bool)
        self._ended = np.zeros(num_envs, bool)
        self._stepper = Stepper(plan)

    @property
    def worker_pids(self) -> Sequence[int]:
        """Process numbers of the workers."""
        return self._stepper.pids

    @property
    def ended(self) -> np.ndarray:
        """Which envs have ended in the last step and were not reset since [N]."""
        return self._ended.copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: s for the seeds s, s + 1, ...; or one for each env. An env without one goes on with its next episode.
            options: {"reset_mask": mask [N]} begins episodes of some envs only.

        Returns:
            Observations of all envs [N, ...], and infos.

        Raises:
            ClosedEnvironmentError: the env is closed.
            ResetNeeded: the mask leaves out envs that have never been reset.
            ValueError, TypeError: seed or options are not allowed.
        """
        self._require_open()
        super().reset(seed=seed if isinstance(seed, int) else None)
        mask = _reset_mask(options, self.num_envs)
        if (left := ~(mask | self._has_begun)).any():
            raise ResetNeeded(f"envs {_some(left)} have never been reset; the first reset needs no reset_mask")
        arrays = self._stepper.arrays
        arrays["is_reset"][:], arrays["is_seeded"][:] = mask, False
        for env, each in enumerate(self._seeds(seed)):
            if each is not None and mask[env]:
                arrays["seed"][env], arrays["is_seeded"][env] = each, True
        self._stepper.do("reset")
        self._has_begun |= mask
        self._ended &= ~mask
        return self._obs("obs"), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One env step of every env under actions [N, A]; see docs/gymnasium.md for what happens at an episode's end.

        Raises:
            ClosedEnvironmentError: the env is closed.
            ResetNeeded: there was no reset, or, with autoreset disabled, an env has ended and was not reset.
            ValueError: the actions have another shape, or hold NaN or infinities.
            WorkerError: a worker failed or died.
        """
        self._require_begun("step()")
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            how = 'reset(options={"reset_mask": terminated | truncated})'
            raise ResetNeeded(f"envs {_some(self._ended)} have ended and autoreset is disabled; call {how} first")
        arrays = self._stepper.arrays
        arrays["action"][:] = self._checked_actions(actions)
        self._stepper.do("step")
        terminated, truncated = arrays["terminated"].copy(), arrays["truncated"].copy()
        was_ended, self._ended = self._ended, terminated | truncated
        infos = self._step_infos(was_ended)
        return self._obs("obs"), arrays["reward"].astype(np.float64), terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture of each env [height, width, 3]; None without render_mode="rgb_array".

        Raises:
            ClosedEnvironmentError, ResetNeeded: there is nothing to see.
            RuntimeError: no OpenGL works here.
        """
        self._require_open()
        if self._frames is None:
            return None
        self._require_begun("render()")
        return tuple(self._frames.draw(self.qpos()))

    def qpos(self) -> np.ndarray:
        """Positions of the envs [N, nq], as MuJoCo has them.

        Raises:
            ClosedEnvironmentError, ResetNeeded: there are none.
        """
        self._require_begun("qpos()")
        self._stepper.do("qpos")
        return self._stepper.arrays["qpos"].copy()

    def __enter__(self) -> UnilabVectorEnv:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close_extras(self, **kwargs: Any) -> None:
        """End all processes and give the memory back."""
        if hasattr(self, "_stepper"):  # the constructor may have raised
            self._stepper.close()
            if self._frames is not None:
                self._frames.close()

    def _require_open(self) -> None:
        if self.closed or not self._stepper.is_open:
            raise ClosedEnvironmentError("the env is closed; make another")

    def _require_begun(self, call: str) -> None:
        self._require_open()
        if not self._has_begun.all():
            raise ResetNeeded(f"{call} before reset()")

    def _seeds(self, seed: Any) -> list[int | None]:
        """A seed for each env, None for those that go on. One that has never begun gets a seed in any case."""
        if seed is None:
            seed = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seed = range(_checked_seed(seed), _checked_seed(seed) + self.num_envs)
        if len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} entries; allowed: one for each of {self.num_envs} envs")
        seeds = [None if each is None else _checked_seed(each) for each in seed]
        if None in seeds and not self._has_begun.all():
            first = int(self.np_random.integers(2**32)) if self._first_seed is None else self._first_seed
            for env in np.flatnonzero(~self._has_begun):
                seeds[env] = first + int(env) if seeds[env] is None else seeds[env]
        return seeds

    def _checked_actions(self, actions: Any) -> np.ndarray:
        given = np.asarray(actions, np.float32)
        if given.shape != self.action_space.shape:
            raise ValueError(f"actions have shape {given.shape}; allowed: [envs, entries] = {self.action_space.shape}")
        if not np.isfinite(given).all():
            bad = ~np.isfinite(given).all(axis=1)
            raise ValueError(f"actions of envs {_some(bad)} are not finite; allowed: finite numbers")
        return given

    def _obs(self, kind: str) -> Any:
        arrays = self._stepper.arrays
        obs = {group: arrays[f"{kind}/{group}"].copy() for group in self._groups}
        return obs if self._is_dict else obs["actor"]

    def _step_infos(self, was_ended: np.ndarray) -> dict[str, Any]:
        """Infos as Gymnasium's vector envs give them: what a reset made has none, what ended in this step is final."""
        totals = self._stepper.arrays["totals"]
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._infos.of(totals, ~was_ended)
        if self._mode is AutoresetMode.DISABLED or not self._ended.any():
            return self._infos.of(totals, np.ones(self.num_envs, bool))
        final_obs = np.full(self.num_envs, None, object)
        for env in np.flatnonzero(self._ended):
            rows = {g: self._stepper.arrays[f"final_obs/{g}"][env].copy() for g in self._groups}
            final_obs[env] = rows if self._is_dict else rows["actor"]
        final = {"final_obs": final_obs, "final_info": self._infos.of(totals, self._ended)}
        masks = {f"_{name}": self._ended.copy() for name in final}
        return {**final, **masks, **self._infos.of(totals, ~self._ended)}


def _autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    for mode in AutoresetMode:
        if given in (mode, mode.value, mode.name):
            return mode
    raise ValueError(f"autoreset_mode is {given!r}; allowed: {', '.join(mode.name for mode in AutoresetMode)}")


def _checked_seed(seed: Any) -> int:
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed is {seed!r}; allowed: a whole number from 0 to 2^64 - 1")
    return int(seed)


def _reset_mask(options: dict[str, Any] | None, num_envs: int) -> np.ndarray:
    options = options or {}
    if unknown := sorted(set(options) - {"reset_mask"}):
        raise ValueError(f"unknown option {unknown[0]!r} of reset; allowed: 'reset_mask'")
    mask = options.get("reset_mask")
    if mask is None:
        return np.ones(num_envs, bool)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(
            f"reset_mask is a {getattr(mask, 'dtype', type(mask).__name__)}; allowed: a NumPy array of bool"
        )
    if mask.shape != (num_envs,) or not mask.any():
        raise ValueError(
            f"reset_mask has shape {mask.shape} and {mask.sum()} set; allowed: ({num_envs},), at least one"
        )
    return mask


def _some(mask: Any) -> str:
    """The first few envs of a mask, for an error."""
    index = np.flatnonzero(mask)
    return f"{index[:5].tolist()}{' and more' if len(index) > 5 else ''}"
