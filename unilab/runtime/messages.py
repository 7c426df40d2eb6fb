"""What goes through the pipes between parent and workers. It imports no jax, so that a worker need not either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from unilab.runtime.unstable import UnstableEnv


class Job(NamedTuple):
    """A piece of work that any worker can do: a function of the bank, a snapshot and these numbers.

    `begin` starts the first episodes (generation 0 of the bank); `rollout` `number` makes generation number + 1;
    `evaluate` plays the first episode of each evaluation env of the shard; `replay` is for the benchmark. `attempt`
    counts the workers that were lost with it; it changes nothing in what the job makes.
    """

    kind: Literal["begin", "rollout", "evaluate", "replay"]
    number: int
    shard: int
    version: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number}, shard {self.shard}, policy version {self.version}"


@dataclass(frozen=True)
class Report:
    """A finished job, and the first few envs of a rollout whose numbers broke."""

    job: Job
    seconds: float
    unstable: tuple[UnstableEnv, ...] = ()
