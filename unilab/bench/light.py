"""A plan whose workers are told little: enough for physics alone, or for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unilab.bench.work import Work
from unilab.config import Config
from unilab.runtime.memory import FieldShapes
from unilab.runtime.plan import Plan


@dataclass(frozen=True)
class LightPlan(Plan):
    """To the parent a plan like any other; its workers receive a `Work`.

    Attributes:
        memories: shapes of the shared memories that workers map; by default those of the plan.
        settings: of the runner.
    """

    memories: Mapping[str, FieldShapes] = field(default_factory=dict)
    settings: Any = None

    worker_bytes: ClassVar[int] = 60 * 2**20

    def __reduce__(self) -> Any:
        return Work, (self.runner, dict(self.memories or self.layout.items()), self.settings)

    @classmethod
    def light(cls, config: Config, runner: str, settings: Any, memories: Mapping[str, FieldShapes] = {}) -> LightPlan:
        """The plan of a configuration under another runner."""
        plan = Plan.of(config)
        return cls(plan.config, plan.model, runner=runner, memories=memories, settings=settings)
