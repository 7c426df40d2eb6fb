"""Algorithms by name. The entries are strings, so that listing them imports no jax."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AlgorithmEntry:
    """Where an algorithm and its configuration live."""

    description: str
    module: str
    algorithm: str
    config: str


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "ppo": AlgorithmEntry("proximal policy optimisation, on-policy", "unilab.algos.ppo", "PPO", "PPOConfig"),
    "sac": AlgorithmEntry("soft actor-critic, off-policy", "unilab.algos.sac", "SAC", "SACConfig"),
    "td3": AlgorithmEntry("twin delayed deep deterministic policy gradient", "unilab.algos.td3", "TD3", "TD3Config"),
}


def config_class(name: str) -> Any:
    """The configuration dataclass of the algorithm `name`."""
    entry = ALGORITHMS[name]
    return getattr(importlib.import_module(entry.module), entry.config)


def algorithm_class(name: str) -> Any:
    """The class of the algorithm `name`."""
    entry = ALGORITHMS[name]
    return getattr(importlib.import_module(entry.module), entry.algorithm)
