"""Interleaved repeats, A B A B, so that a machine whose speed changes changes all alike; medians, spread and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

Tell = Callable[[str], None]
"""Shows one line of progress."""


class Contender(Protocol):
    """Something whose rate is measured."""

    name: str

    def run(self) -> float:
        """Do a share of the work; returns its rate, 1/s."""

    def close(self) -> None:
        """Leave nothing behind. Safe to call twice."""


class Closable(Protocol):
    """Something that leaves nothing behind when it is closed."""

    def close(self) -> None: ...


def interleaved(
    contenders: Sequence[Contender], repeats: int, tell: Tell, title: str = "", warm_up: int = 1
) -> dict[str, list[float]]:
    """Rates [repeats] of each contender by name, one of each in turn; the first `warm_up` rounds do not count."""
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(warm_up + repeats):
        measured = {contender.name: contender.run() for contender in contenders}
        if number >= warm_up:
            for name, rate in measured.items():
                rates[name].append(rate)
        which = f"{number - warm_up + 1}/{repeats}" if number >= warm_up else "warm-up"
        tell(f"{title} {which}: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in measured.items()))
    return rates


def close_all(contenders: Sequence[Closable]) -> None:
    """Close each, also when one fails to."""
    for position, contender in enumerate(contenders):
        try:
            contender.close()
        except BaseException:
            close_all(contenders[position + 1 :])
            raise


def median_ratio(rates: Sequence[float], others: Sequence[float] | None) -> float | None:
    """Median of the ratios of two rates of the same round; None without others."""
    return None if others is None else statistics.median(a / b for a, b in zip(rates, others, strict=True))


def spread(rates: Sequence[float]) -> float:
    """Largest less smallest rate, as a share of the median."""
    return (max(rates) - min(rates)) / statistics.median(rates)
