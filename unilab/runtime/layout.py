"""Which arrays the parent and the workers share, and their shapes; both sides derive them from the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from unilab.runtime.memory import FieldShapes

GENERATIONS = 2


@dataclass(frozen=True)
class Layout:
    """Shapes of the shared memories.

    Attributes:
        bank: rows of all envs in two generations [2, N, ...].
        ring: rollouts [slots, T, N, ...] and totals [slots, N, columns].
        snapshots: packed snapshots [versions kept, words].
        evaluation: totals of the first episode of each evaluation env [episodes, columns].
        progress: env steps of its shards that each worker has done, a sign of life [workers].
    """

    bank: FieldShapes
    ring: FieldShapes
    snapshots: FieldShapes
    evaluation: FieldShapes
    progress: FieldShapes

    def items(self) -> dict[str, FieldShapes]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def rollout_field_shapes(
    obs_sizes: Mapping[str, int],
    final_groups: tuple[str, ...],
    action_size: int,
    extras: dict[str, jax.ShapeDtypeStruct],
) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """dtype and shape of one env step in a rollout."""
    f32 = np.float32
    fields: dict[str, tuple[Any, tuple[int, ...]]] = {
        f"obs/{group}": (f32, (size,)) for group, size in obs_sizes.items()
    }
    fields |= {f"final_obs/{group}": (f32, (obs_sizes[group],)) for group in final_groups}
    fields |= {"action": (f32, (action_size,))}
    fields |= dict.fromkeys(("reward", "terminated", "truncated", "weight"), (f32, ()))
    return fields | {name: (np.dtype(extra.dtype), extra.shape[1:]) for name, extra in extras.items()}


def with_leading(shapes: FieldShapes, *leading: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """The same fields with more axes in front."""
    return {name: (dtype, (*leading, *shape)) for name, (dtype, shape) in shapes.items()}
