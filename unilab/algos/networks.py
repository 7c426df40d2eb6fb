"""Networks: a plain perceptron, and one that respects a left-right symmetry exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def elu(x: jax.Array) -> jax.Array:
    """x above zero, exp(x) - 1 below: a quarter of the time of `jax.nn.elu`, whose expm1 is exact to the last bit."""
    return jnp.where(x > 0.0, x, jnp.exp(jnp.minimum(x, 0.0)) - 1.0)


ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "elu": elu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class Involution(Protocol):
    """A signed permutation that is its own inverse: x -> sign * x[perm]."""

    @property
    def perm(self) -> np.ndarray: ...
    @property
    def sign(self) -> np.ndarray: ...


class SignedSwap(NamedTuple):
    """An `Involution`."""

    perm: np.ndarray
    sign: np.ndarray

    @classmethod
    def concatenated(cls, *parts: Involution) -> SignedSwap:
        """The mirror of vectors that stand one after the other."""
        starts = np.cumsum([0] + [len(part.perm) for part in parts])
        perms = [np.asarray(part.perm) + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate(perms), np.concatenate([np.asarray(part.sign) for part in parts]))


def _dense(size_in: int, size_out: int, scale: float, bias: bool, rngs: nnx.Rngs) -> nnx.Linear:
    # Full float32 on every device: a GPU's default would make the learner's log-probabilities differ from the worker's.
    return nnx.Linear(
        size_in, size_out, use_bias=bias, kernel_init=nnx.initializers.orthogonal(scale),
        precision=jax.lax.Precision.HIGHEST, rngs=rngs,
    )  # fmt: skip


class MLP(nnx.Module):
    """Perceptron [..., size_in] -> [..., size_out] with orthogonal weights.

    Args:
        hidden: widths of the hidden layers.
        head_scale: gain of the last layer's weights.
        layer_norm: normalise each hidden layer before its activation (Ba et al. 2016, arXiv 1607.06450).
    """

    def __init__(
        self, size_in: int, hidden: Sequence[int], size_out: int, *, activation: str, head_scale: float, rngs: nnx.Rngs,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        sizes = [size_in, *hidden]
        self.layers = nnx.List([_dense(a, b, 2**0.5, True, rngs) for a, b in pairwise(sizes)])
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for width in hidden if layer_norm])
        self.head = _dense(sizes[-1], size_out, head_scale, True, rngs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = ACTIVATIONS[self.activation](self.norms[i](x) if self.norms else x)
        return self.head(x)


SignedPermutation = tuple[tuple[int, ...], tuple[float, ...]]  # hashable, as the static parts of a module must be


def parity_bases(mirror: SignedPermutation) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the vectors that a mirror keeps [n, n_even] and of those that it negates [n, n_odd]."""
    even: list[np.ndarray] = []
    odd: list[np.ndarray] = []
    n = len(mirror[0])
    unit = np.eye(n, dtype=np.float32)
    for i, (j, sign) in enumerate(zip(*mirror, strict=True)):
        if i == j:
            (even if sign > 0 else odd).append(unit[i])
        elif i < j:
            even.append((unit[i] + sign * unit[j]) / 2**0.5)
            odd.append((unit[i] - sign * unit[j]) / 2**0.5)
    return np.array(even, np.float32).reshape(-1, n).T, np.array(odd, np.float32).reshape(-1, n).T


class MirrorMLP(nnx.Module):
    """Perceptron f with f(mirror_in(x)) = mirror_out(f(x)) for every weight.

    Each hidden layer is two halves (u, v) that the mirror exchanges. A linear map that commutes with the exchange acts
    separately on u + v and u - v, so a layer of width n costs two (n/2)^2 products instead of n^2: the symmetric
    network is not only right from the start, it is half the work of a plain one.

    Args:
        hidden: widths of the hidden layers, even numbers.
        mirror_in, mirror_out: symmetry of the input and output; `None` for an output that the mirror leaves alone.
        layer_norm: normalise each hidden layer, both halves together, before its bias and activation.
    """

    def __init__(
        self, mirror_in: Involution, hidden: Sequence[int], mirror_out: Involution | None, size_out: int, *,
        activation: str, head_scale: float, rngs: nnx.Rngs, layer_norm: bool = False,
    ) -> None:  # fmt: skip
        if any(width % 2 for width in hidden):
            raise ValueError(f"a mirror-symmetric network needs even hidden widths, given {tuple(hidden)}")
        self.mirror_in = _static(mirror_in)
        identity = (tuple(range(size_out)), (1.0,) * size_out)
        self.mirror_out = identity if mirror_out is None else _static(mirror_out)
        even, odd = (basis.shape[1] for basis in parity_bases(self.mirror_in))
        even_out, odd_out = (basis.shape[1] for basis in parity_bases(self.mirror_out))
        even_layers, odd_layers, biases = [], [], []
        for width in hidden:
            half = width // 2
            even_layers.append(_dense(max(even, 1), half, 2**0.5, False, rngs))
            odd_layers.append(_dense(max(odd, 1), half, 2**0.5, False, rngs))
            biases.append(nnx.Param(jnp.zeros((half,))))
            even = odd = half
        self.even, self.odd, self.biases = nnx.List(even_layers), nnx.List(odd_layers), nnx.List(biases)
        self.head = _dense(even, even_out, head_scale, True, rngs)
        self.odd_head = _dense(odd, odd_out, head_scale, False, rngs) if odd_out else None
        self.activation, self.layer_norm = activation, layer_norm

    def __call__(self, x: jax.Array) -> jax.Array:
        activation = ACTIVATIONS[self.activation]
        even, odd = (_project(x, basis) for basis in parity_bases(self.mirror_in))
        for even_layer, odd_layer, bias in zip(self.even, self.odd, self.biases, strict=True):
            kept, flipped = even_layer(even), odd_layer(odd)
            u, v = (kept + flipped) / 2**0.5, (kept - flipped) / 2**0.5
            if self.layer_norm:
                u, v = _standardized(u, v)
            u, v = activation(u + bias[...]), activation(v + bias[...])
            even, odd = (u + v) / 2**0.5, (u - v) / 2**0.5
        even_basis, odd_basis = parity_bases(self.mirror_out)
        y = self.head(even) @ even_basis.T
        return y if self.odd_head is None else y + self.odd_head(odd) @ odd_basis.T


def perceptron(
    size_in: int, hidden: Sequence[int], size_out: int, mirror_in: Involution | None, mirror_out: Involution | None,
    **options: Any,
) -> MLP | MirrorMLP:  # fmt: skip
    """A perceptron that respects a symmetry, or a plain one where `mirror_in` is None."""
    if mirror_in is None:
        return MLP(size_in, hidden, size_out, **options)
    return MirrorMLP(mirror_in, hidden, mirror_out, size_out, **options)


def _standardized(u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two halves of a layer, together with mean 0 and variance 1."""
    mean = 0.5 * (jnp.mean(u, axis=-1, keepdims=True) + jnp.mean(v, axis=-1, keepdims=True))
    squares = jnp.square(u - mean) + jnp.square(v - mean)
    scale = jax.lax.rsqrt(0.5 * jnp.mean(squares, axis=-1, keepdims=True) + 1e-6)
    return (u - mean) * scale, (v - mean) * scale


def _static(mirror: Involution) -> SignedPermutation:
    return tuple(int(i) for i in mirror.perm), tuple(float(s) for s in mirror.sign)


def _project(x: jax.Array, basis: np.ndarray) -> jax.Array:
    """Coordinates [..., n] of x in a basis; one zero where the basis is empty, so that layers have an input."""
    return x @ basis if basis.shape[1] else jnp.zeros((*x.shape[:-1], 1), x.dtype)
