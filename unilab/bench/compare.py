"""Back ends side by side: for each task, number of envs and of workers, all of them and the physical limit in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unilab.bench.measure import Contender, Tell, close_all, interleaved
from unilab.bench.raw import RawStepping
from unilab.bench.recording import Recording, record
from unilab.bench.result import Row, make_row, model_options
from unilab.envs.physics.registry import DEFAULT

DEFAULT_TASKS = ("HalfCheetah-v5",)
DEFAULT_NUM_ENVS = (256,)


class Entry(Protocol):
    """What is known of a back end before it is made."""

    @property
    def is_installed(self) -> bool: ...

    @property
    def install_command(self) -> str: ...

    @property
    def limit(self) -> str | None:
        """Name of what is its physical limit."""


Make = Callable[[str, Recording, "Group", float], Contender]
"""Makes a back end for a group, by name; raises LookupError, with a reason, where it cannot do the task."""
MakeLimit = Callable[[Recording, "Group", float], Contender]


@dataclass(frozen=True)
class Group:
    """What is measured in turn.

    Attributes:
        task: name of the task.
        num_envs: envs of each back end, unless it does better with fewer.
        workers: processes or threads of each.
    """

    task: str
    num_envs: int
    workers: int

    def __str__(self) -> str:
        return f"{self.task}, {self.num_envs} envs, {self.workers} worker{'s' * (self.workers > 1)}"


def bare_steps(recording: Recording, group: Group, seconds: float) -> Contender:
    """The physical limit of what steps with this environment's MuJoCo."""
    return RawStepping(recording, group.num_envs, group.workers, seconds)


class Comparison:
    """Rows and skipped back ends, group by group.

    Args:
        entries: the back ends to compare, by name.
        make: makes one of them.
        limits: makers of the physical limits, by name.
        recording: of a task, what the limits step.
        seconds: how long each is stepped at a time.
        repeats: rounds that count.
        tell: shows progress.
    """

    def __init__(
        self, entries: Mapping[str, Entry], make: Make, seconds: float, repeats: int, tell: Tell,
        limits: Mapping[str, MakeLimit], recording: Callable[[str], Recording] = record,
    ) -> None:  # fmt: skip
        self._entries, self._make, self._seconds, self._repeats, self._tell = entries, make, seconds, repeats, tell
        self._limits, self._recording = limits, recording
        self.rows: list[Row] = []
        self.skipped: list[dict[str, str]] = []
        for name, entry in entries.items():
            if not entry.is_installed:
                self.skip(name, f"not installed; {entry.install_command}", install=entry.install_command)

    def run(self, tasks: Sequence[str], num_envs: Sequence[int], workers: Sequence[int]) -> None:
        """Measure every combination."""
        for group in itertools.starmap(Group, itertools.product(tasks, num_envs, workers)):
            self._measure(group)

    def _measure(self, group: Group) -> None:
        self._tell(f"{group}: starting")
        recording = self._recording(group.task)
        contenders: list[Contender] = []
        try:
            for name in [name for name, entry in self._entries.items() if entry.is_installed]:
                try:
                    contenders.append(self._make(name, recording, group, self._seconds))
                except LookupError as error:
                    self.skip(name, str(error.args[0]), task=group.task)
            for make_limit in self._limits.values():
                contenders.append(make_limit(recording, group, self._seconds))
            rates = interleaved(contenders, self._repeats, self._tell, str(group))
        finally:
            close_all(contenders)
        options = model_options(recording.env.model, recording.env.substeps)
        self.rows += [self._row(contender, group, rates, options) for contender in contenders]

    def _row(
        self, contender: Contender, group: Group, rates: Mapping[str, list[float]], options: dict[str, Any]
    ) -> Row:  # fmt: skip
        name = contender.name
        limit = name if name in self._limits else self._entries[name].limit
        return make_row(
            name, group.task, getattr(contender, "num_envs", group.num_envs),
            getattr(contender, "workers", group.workers), rates[name], rates.get(DEFAULT),
            rates.get(limit or ""), group=str(group), settings=getattr(contender, "settings", {}),
            model=options,
        )  # fmt: skip

    def skip(self, name: str, reason: str, **more: str) -> None:
        """List a back end as skipped, with the reason."""
        self._tell(f"skipped {name}: {reason}")
        self.skipped.append({"backend": name, "reason": reason, **more})
