"""Interleaved repeats and what is made of them."""

from __future__ import annotations

import pytest

from unilab.bench.measure import close_all, interleaved, median_ratio, spread


class Counted:
    """A contender whose rates are given, and that remembers when it ran."""

    def __init__(self, name: str, rates: list[float], order: list[str]) -> None:
        self.name, self._rates, self._order, self.is_closed = name, iter(rates), order, False

    def run(self) -> float:
        self._order.append(self.name)
        return next(self._rates)

    def close(self) -> None:
        self.is_closed = True
        if self.name == "bad":
            raise OSError("cannot be closed")


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    """Each round runs every contender once, in order, and only the rounds after the warm-up are kept."""
    order: list[str] = []
    lines: list[str] = []
    contenders = [Counted("a", [9, 1, 2], order), Counted("b", [9, 3, 4], order)]
    assert interleaved(contenders, 2, lines.append) == {"a": [1, 2], "b": [3, 4]}
    assert order == ["a", "b"] * 3
    assert len(lines) == 3


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that halves its speed between rounds changes no ratio."""
    assert median_ratio([100, 50, 25], [200, 100, 50]) == 0.5
    assert median_ratio([1], None) is None


def test_spread_is_the_range_over_the_median() -> None:
    """[8, 10, 12] spreads by 4 / 10."""
    assert spread([8, 12, 10]) == pytest.approx(0.4)


def test_all_are_closed_even_if_one_cannot_be() -> None:
    """An error while closing one leaves no other open."""
    contenders = [Counted(name, [], []) for name in ("a", "bad", "c")]
    with pytest.raises(OSError, match="cannot be closed"):
        close_all(contenders)
    assert all(contender.is_closed for contender in contenders)
