"""Swimmer-v5: a snake of three links that swims forward in a plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unilab.envs.tasks.standard.half_cheetah import HalfCheetah


@dataclass(frozen=True)
class Swimmer(HalfCheetah):
    """A snake of three links that swims forward in a plane; it never terminates. Rewards are those of the cheetah."""

    control_dt: float = 0.04
    episode_s: float = 40.0
    rewards: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "ctrl": -1e-4})

    xml: ClassVar = "swimmer.xml"
    normal_qvel: ClassVar = False
    unseen: ClassVar = 2
