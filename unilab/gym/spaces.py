"""Spaces of a task."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from unilab.envs.env import Env


def action_space(env: Env) -> Box:
    """The box of sensible actions [A]; a task says what it does with others (most cut them off)."""
    bounds = env.task.action_bounds(env.model)
    low, high = bounds if bounds is not None else (-np.ones(env.action_size), np.ones(env.action_size))
    return Box(np.asarray(low, np.float32), np.asarray(high, np.float32), dtype=np.float32)


def obs_space(env: Env, groups: tuple[str, ...], is_dict: bool) -> Space:
    """The space of observations: one vector, or a vector for each group."""
    boxes: dict[str, Space] = {group: Box(-np.inf, np.inf, (env.obs_sizes[group],), np.float32) for group in groups}
    return Dict(boxes) if is_dict else boxes["actor"]
