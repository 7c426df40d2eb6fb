from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unilab.algos.returns import gae

T, N = 7, 2
GAE = jax.jit(gae)
numbers = st.floats(-10.0, 10.0, width=32)
flags = st.booleans()


@st.composite
def rollouts(draw: Any) -> dict[str, np.ndarray]:
    """A rollout [T, N] with ends of both kinds and void steps, which are ends too."""

    def array(elements: Any) -> np.ndarray:
        return np.array(draw(st.lists(elements, min_size=T * N, max_size=T * N)), np.float32).reshape(T, N)

    terminated, truncated, void = array(flags), array(flags), array(st.sampled_from([False, False, True]))
    terminated = np.maximum(terminated, void)
    value, successor = array(numbers), array(numbers)
    ended = np.maximum(terminated, truncated)
    following = np.concatenate([value[1:], successor[-1:]])
    return {
        "reward": array(numbers),
        "value": value,
        "next_value": np.where(ended > 0, successor, following),
        "terminated": terminated,
        "ended": ended,
        "weight": 1.0 - void,
    }


def advantages_by_definition(rollout: dict[str, np.ndarray], discount: float, trace: float) -> np.ndarray:
    """A_t = sum over l >= 0 of (discount trace)^l delta_{t+l}, as long as no episode has ended in between: O(T^2)."""
    r, v, next_v, terminated, ended, weight = (rollout[k].astype(np.float64) for k in rollout)
    delta = r + discount * (1 - terminated) * next_v - v
    advantage = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            for step in range(t, T):
                if weight[step, n] == 0:
                    break  # a void step counts in nothing, not even in what came before it
                advantage[t, n] += (discount * trace) ** (step - t) * delta[step, n]
                if ended[step, n]:
                    break
    return advantage


@given(rollout=rollouts(), discount=st.floats(0.0, 1.0, width=32), trace=st.floats(0.0, 1.0, width=32))
def test_gae_equals_its_definition(rollout: dict[str, np.ndarray], discount: float, trace: float) -> None:
    """The backward recursion equals the sum over all later steps of the same episode."""
    found = GAE(*rollout.values(), discount, trace)
    np.testing.assert_allclose(found, advantages_by_definition(rollout, discount, trace), rtol=1e-4, atol=1e-3)


@given(rollout=rollouts(), cut=st.sampled_from([1, 4]))
def test_splitting_a_trace_at_a_cut_changes_nothing(rollout: dict[str, np.ndarray], cut: int) -> None:
    """Where every episode ends, the steps before and after are estimated as if the others did not exist."""
    rollout["ended"][cut - 1] = 1.0
    whole = GAE(*rollout.values(), 0.9, 0.8)
    before = GAE(*(x[:cut] for x in rollout.values()), 0.9, 0.8)
    after = GAE(*(x[cut:] for x in rollout.values()), 0.9, 0.8)
    np.testing.assert_allclose(whole, np.concatenate([before, after]), rtol=1e-6, atol=1e-6)


@given(rollout=rollouts(), garbage=numbers)
def test_what_a_void_step_holds_does_not_matter(rollout: dict[str, np.ndarray], garbage: float) -> None:
    """Reward and successor of a step with weight 0 change no advantage, and its own is 0."""
    void = rollout["weight"] == 0
    other = {k: x.copy() for k, x in rollout.items()}
    other["reward"][void] = garbage
    other["next_value"][void] = -garbage
    found = np.asarray(GAE(*other.values(), 0.9, 0.8))
    np.testing.assert_array_equal(found, GAE(*rollout.values(), 0.9, 0.8))
    assert not found[void].any()


def test_a_chain_solved_by_hand() -> None:
    """On a chain of three states with the exact values every advantage is 0, terminated or truncated at the end.

    Rewards 1, 2, 4 and discount 1/2: V = (3, 4, 4) if the last step terminates. If it truncates before a state worth 6,
    V = (1 + (2 + (4 + 6/2)/2)/2, ...) = (3.75, 5.5, 7).
    """
    reward = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], np.float32)
    value = np.array([[3.0, 3.75], [4.0, 5.5], [4.0, 7.0]], np.float32)
    next_value = np.array([[4.0, 5.5], [4.0, 7.0], [6.0, 6.0]], np.float32)
    terminated = np.array([[0, 0], [0, 0], [1, 0]], np.float32)
    ended = np.array([[0, 0], [0, 0], [1, 1]], np.float32)
    advantage = gae(reward, value, next_value, terminated, ended, np.ones_like(reward), 0.5, 0.9)
    np.testing.assert_array_equal(advantage, np.zeros((3, 2)))
