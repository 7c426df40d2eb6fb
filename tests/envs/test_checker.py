from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import Slider, SliderState

from unilab.envs.checker import check_task
from unilab.envs.registry import TASKS, find_task
from unilab.envs.task import Physics
from unilab.gym.env import UnilabEnv
from unilab.gym.vector import UnilabVectorEnv


@pytest.mark.parametrize("name", ["CartpoleSwingup", "HalfCheetah-v5"])
def test_tasks_keep_the_contract(name: str) -> None:
    """The functions of our tasks are pure, finite and the same again; the others are `slow`, with all sequences."""
    check_task(find_task(name)())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TASKS)
def test_every_task_keeps_the_contract_in_every_mode(name: str) -> None:
    """Every task, in every autoreset mode, with 0, 1 and 2 workers."""
    check_task(find_task(name)(), UnilabEnv, UnilabVectorEnv, (0, 1, 2))


@dataclass(frozen=True)
class Global(Slider):
    """Draws from NumPy's generator when it is traced."""

    def observe(self, state: SliderState, physics: Physics, key: jax.Array) -> dict[str, jax.Array]:
        return {"actor": jnp.append(physics.qpos, np.random.default_rng().uniform())}

    def mirror(self) -> None:
        return None


@dataclass(frozen=True)
class Mutable(Slider):
    """Counts its own calls."""

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        self.rewards["middle"] += 1.0
        return super().advance(state, physics, action, key, curriculum)


@dataclass(frozen=True)
class Infinite(Slider):
    """Divides by zero when an episode has gone on for two steps."""

    def advance(self, state: SliderState, physics: Physics, action: jax.Array, key: jax.Array, curriculum: Any) -> Any:
        new_state, terms, terminated, _ = super().advance(state, physics, action, key, curriculum)
        return new_state, terms, terminated, {"odd": 1.0 / (2 - state.steps)}


@dataclass(frozen=True)
class Narrow(Slider):
    """Says that no action is sensible."""

    def action_bounds(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1), np.zeros(1)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Global(), "Global: traced twice, its functions differ"),
        (Mutable(), "Mutable: (traced twice|its functions changed the task)"),
        (Infinite(), "Infinite, step 2, .*not finite under random actions"),
        (Narrow(), "Narrow.action_bounds"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_task_is_found(task: Slider, message: str) -> None:
    """Hidden state, changes of itself, infinite numbers and empty bounds are found and named."""
    with pytest.raises(AssertionError, match=message):
        check_task(task)
