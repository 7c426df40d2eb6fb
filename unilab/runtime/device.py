"""Jobs whose physics runs on JAX's device: a whole rollout, or all evaluation episodes, in one jitted call.

No worker processes: the job runs in the learner's process. It reads and writes the same bank, snapshots and slots as
any other, so learning, checkpoints and resume know nothing of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unilab.envs.batch import BatchRows
from unilab.envs.device import DeviceBatch, DeviceEnvs
from unilab.envs.env import ACTION, Env
from unilab.envs.physics.mjx import MjxPhysics, MjxRow
from unilab.runtime.job import JobRunner
from unilab.runtime.memory import Memory
from unilab.runtime.messages import Job
from unilab.runtime.plan import Plan


class DeviceRunner(JobRunner):
    """Runs jobs on JAX's device; see `JobRunner`."""

    def __init__(self, plan: Plan, memories: dict[str, Memory], number: int = 0) -> None:
        super().__init__(plan, memories, number)
        config, physics = plan.config, self.batch.physics
        assert isinstance(physics, MjxPhysics)
        self._envs = DeviceBatch(plan.env, physics.env, config.seed)
        self._start, self._collect = jax.jit(self._start_all), jax.jit(self._collect_all)
        self._play = jax.jit(self._play_all)
        packing = plan.env.state_packing
        self._unpack, self._pack = jax.jit(jax.vmap(packing.unpack)), jax.jit(jax.vmap(packing.pack))

    def _begin(self, job: Job) -> None:
        first, size = job.shard * self.plan.shard_size, self.plan.shard_size
        curriculum = self.snapshots.read(job.version)["curriculum"]
        self._write(self.bank.rows(0, first, size), self._start(_ids(first, size), curriculum))

    def rollout(self, job: Job, on_step: Any = None) -> None:
        size, num_steps = self.plan.shard_size, self.plan.rollout_steps
        first = job.shard * size
        rows = self.bank.copy_forward(job.number, first, size)
        snapshot = self.snapshots.read(job.version)
        envs, steps = self._collect(self._read(rows), snapshot, _ids(first, size), np.int32(job.number * num_steps))
        for name, column in self.ring.columns(job.number, first, size).items():
            column[:] = steps[name]
        totals = (envs.state.step_totals, envs.state.ended_totals)
        for target, values in zip(self.ring.totals(job.number), totals, strict=True):
            target[first : first + size] = values
        self._write(rows, envs)
        self._progress += num_steps

    def _evaluate(self, job: Job) -> None:
        size = self.plan.evaluation_shard_size
        first = job.shard * size
        self._evaluation[first : first + size] = self._play(self.snapshots.read(job.version), _ids(first, size))

    def _read(self, rows: BatchRows) -> DeviceEnvs:
        """The envs of rows of the bank."""
        parts = (rows.physics.state, rows.physics.model, rows.physics.last, rows.physics.fields)
        physics = MjxRow(*(jnp.asarray(part, jnp.float32) for part in parts))
        return DeviceEnvs(physics, self._unpack(np.array(rows.words)))

    def _write(self, rows: BatchRows, envs: DeviceEnvs) -> None:
        """Put the envs into rows of the bank."""
        for name, values in envs.physics._asdict().items():
            getattr(rows.physics, name)[:] = values
        rows.words[:] = self._pack(envs.state)

    # --- pure functions, compiled once ------------------------------------------------------------------------------

    def _start_all(self, env_ids: jax.Array, curriculum: Any) -> DeviceEnvs:
        """The first episode of every env, at a random age."""
        envs = self._envs.begin(_no_envs(self.plan.env, self.batch.physics, len(env_ids)), env_ids, curriculum)
        return self._envs.with_random_ages(envs, env_ids)

    def _collect_all(self, envs: DeviceEnvs, snapshot: Any, env_ids: jax.Array, first_step: jax.Array) -> Any:
        """One rollout: the envs after it, and what it gives to the learner [T, S, ...]."""

        def env_step(envs: DeviceEnvs, step: jax.Array) -> tuple[DeviceEnvs, dict[str, jax.Array]]:
            noise = jax.vmap(self.algorithm.draw_noise)(self._envs.keys(ACTION, env_ids, step), env_ids)
            obs = envs.state.obs
            action, extras = self.algorithm.act(snapshot["policy"], obs, noise)
            envs, outcome = self._envs.step(envs, env_ids, step, action, snapshot["curriculum"])
            values = {"action": action, **extras}
            values |= {f"obs/{group}": value for group, value in obs.items()}
            values |= {f"final_obs/{group}": outcome.final_obs[group] for group in self.algorithm.final_groups}
            return envs, values | {name: getattr(outcome, name) for name in OUTCOMES}

        steps = first_step + jnp.arange(self.plan.rollout_steps, dtype=jnp.int32)
        return jax.lax.scan(env_step, self._envs.clear_totals(envs), steps)

    def _play_all(self, snapshot: Any, env_ids: jax.Array) -> jax.Array:
        """Totals [S, columns] of the first episode of every evaluation env, without exploration."""
        env, physics = self.plan.evaluation_env, self._evaluation_batch.physics
        assert isinstance(physics, MjxPhysics)
        device, curriculum = DeviceBatch(env, physics.env, self.plan.config.eval_seed), snapshot["curriculum"]
        envs = device.begin(_no_envs(env, physics, len(env_ids)), env_ids, curriculum)

        def env_step(carry: Any) -> Any:
            step, envs, is_open, totals = carry
            action = self.algorithm.act_deterministic(snapshot["policy"], envs.state.obs)
            envs, outcome = device.step(envs, env_ids, step, action, curriculum)
            has_ended = is_open & (outcome.terminated + outcome.truncated > 0)
            totals = jnp.where(has_ended[:, None], envs.state.ended_totals, totals)
            return step + 1, envs, is_open & ~has_ended, totals

        def goes_on(carry: Any) -> jax.Array:
            step, _, is_open, _ = carry
            return is_open.any() & (step < env.task.episode_steps)

        is_open, totals = jnp.ones(len(env_ids), bool), jnp.zeros_like(envs.state.ended_totals)
        return jax.lax.while_loop(goes_on, env_step, (jnp.int32(0), envs, is_open, totals))[3]


OUTCOMES = ("reward", "terminated", "truncated", "weight")


def _ids(first: int, size: int) -> np.ndarray:
    return np.arange(first, first + size, dtype=np.int32)


def _no_envs(env: Env, physics: Any, num_envs: int) -> DeviceEnvs:
    """Envs before their first episode."""
    sizes = (physics.state_size, physics.model_size, physics.last_size, physics.field_size)
    rows = MjxRow(*(jnp.zeros((num_envs, size)) for size in sizes))
    packing = env.state_packing
    words = jnp.zeros((num_envs, packing.size), jnp.uint32)
    return DeviceEnvs(rows, jax.vmap(packing.unpack)(words))
