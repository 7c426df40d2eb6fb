"""What `info` and `infos` hold, from the totals of one env step."""

from __future__ import annotations

from typing import Any

import numpy as np

from unilab.envs.env import Columns


class Infos:
    """Reads totals [N, columns] of one env step as Gymnasium's infos.

    `reward_terms` are weighted and sum to the reward; a metric that does not count in a step is left out; `unstable`
    tells whether the env's numbers broke.
    """

    def __init__(self, columns: Columns) -> None:
        place = {name: i for i, name in enumerate(columns.names)}
        self._terms = [(name, place[f"reward:{name}"]) for name in columns.terms]
        self._metrics = [(name, place[f"metric:{name}"], place[f"weight:{name}"]) for name in columns.metrics]
        self._unstable = place["unstable"]

    def of(self, totals: np.ndarray, has: np.ndarray) -> dict[str, Any]:
        """Infos of the envs `has` [N] in Gymnasium's form: arrays [N] by name, and a mask `_name` for each."""
        if not has.any():
            return {}
        by_column = np.where(has, totals.T.astype(np.float64), 0.0)
        terms: dict[str, Any] = {}
        for name, i in self._terms:
            terms |= {name: by_column[i], f"_{name}": has.copy()}
        metrics: dict[str, Any] = {}
        for name, i, w in self._metrics:
            counts = by_column[w] > 0
            if counts.any():
                value = np.divide(by_column[i], by_column[w], out=np.zeros(len(has)), where=counts)
                metrics |= {name: value, f"_{name}": counts}
        parts = {"reward_terms": terms, "metrics": metrics, "unstable": by_column[self._unstable] > 0}
        return {key: value for name, part in parts.items() for key, value in ((name, part), (f"_{name}", has.copy()))}
