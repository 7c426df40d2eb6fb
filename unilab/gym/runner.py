"""What steps the envs of a Gymnasium env: in a worker, or in this process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from unilab.envs.batch import rows_of
from unilab.envs.env import EnvState
from unilab.envs.physics.base import NOBODY
from unilab.gym.plan import GymPlan
from unilab.runtime.memory import Memory


class StepRunner:
    """Resets and steps one worker's envs. What goes in and out lies in shared memory.

    Args:
        plan: what the env and its workers agree on.
        memories: the shared memories by the names in the plan's layout.
        number: of the worker.
    """

    def __init__(self, plan: GymPlan, memories: dict[str, Memory], number: int = 0) -> None:
        envs = plan.envs(number)
        self._env, self._mode, self._groups = plan.env, plan.autoreset_mode, plan.groups
        self._arrays = {name: array[envs] for name, array in memories["exchange"].arrays.items()}
        self._progress = memories["progress"].arrays["steps"][number : number + 1]
        self.batch = plan.make_batch(envs.stop - envs.start)
        self.batch.attach(
            rows_of({n: array[envs] for n, array in memories["rows"].arrays.items()}), 0, plan.curriculum()
        )
        self._control = jax.jit(self._control_all)

    def run(self, job: str) -> None:
        """Do a job: "reset" those with the flag `is_reset`, "step" all, or write their `qpos`."""
        {"reset": self._reset, "step": self._step, "qpos": self._write_qpos}[job]()
        self._progress += 1

    def _reset(self) -> None:
        arrays = self._arrays
        seeded = np.flatnonzero(arrays["is_reset"] & arrays["is_seeded"])
        if seeded.size:
            self.batch.reseed(seeded, arrays["seed"][seeded])
        index = np.flatnonzero(arrays["is_reset"])
        self.batch.restart(index)
        arrays["terminated"][index] = arrays["truncated"][index] = False
        self._write_obs()

    def _step(self) -> None:
        arrays, batch = self._arrays, self.batch
        resting = self._ended() if self._mode is AutoresetMode.NEXT_STEP else NOBODY
        action = np.array(arrays["action"])  # jax may keep what it is given, and the next action is written there
        controls = {name: np.asarray(value) for name, value in self._control(batch.state, action).items()}
        outcome = batch.step_alone(action, controls, resting)
        arrays["reward"][:] = outcome.reward
        np.not_equal(outcome.terminated, 0, out=arrays["terminated"])
        np.not_equal(outcome.truncated, 0, out=arrays["truncated"])
        if resting.size:
            batch.restart(resting)
            for name in ("reward", "terminated", "truncated"):
                arrays[name][resting] = 0
        if self._mode is AutoresetMode.SAME_STEP and (ended := self._ended()).size:
            for group in self._groups:
                arrays[f"final_obs/{group}"][ended] = outcome.final_obs[group][ended]
            batch.restart(ended)
        arrays["totals"][:] = batch.state.step_totals
        self._write_obs()

    def _ended(self) -> np.ndarray:
        return np.flatnonzero(self._arrays["terminated"] | self._arrays["truncated"])

    def _write_obs(self) -> None:
        for group in self._groups:
            self._arrays[f"obs/{group}"][:] = self.batch.state.obs[group]

    def _write_qpos(self) -> None:
        self._arrays["qpos"][:] = self.batch.physics.qpos

    def _control_all(self, state: EnvState, action: jax.Array) -> Any:
        return jax.vmap(self._env.control)(state, action)
