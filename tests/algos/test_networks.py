from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from unilab.algos.networks import ACTIVATIONS, MLP, MirrorMLP, parity_bases
from unilab.envs.task import Mirror


@st.composite
def mirrors(draw: Any, min_size: int = 1, max_size: int = 7) -> Mirror:
    """An arbitrary signed involution: some entries are exchanged in pairs, each pair with one sign."""
    n = draw(st.integers(min_size, max_size))
    order = draw(st.permutations(range(n)))
    pairs = draw(st.integers(0, n // 2))
    perm, sign = np.arange(n), np.array(draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=n, max_size=n)))
    for a, b in zip(order[: 2 * pairs : 2], order[1 : 2 * pairs : 2], strict=True):
        perm[a], perm[b] = b, a
        sign[b] = sign[a]
    return Mirror(perm.astype(np.int32), sign.astype(np.float32))


def randomised(network: Any, seed: int) -> Any:
    """The network with random weights everywhere, biases too, of the initial scale."""
    graph, params = nnx.split(network, nnx.Param)
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    leaves = [0.5 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return nnx.merge(graph, jax.tree.unflatten(treedef, leaves))


@pytest.mark.parametrize(
    ("mirror_in", "mirror_out"),
    [
        (Mirror.of([-1, 1, 1, 1, -1], [0, 1, 3, 2, 4]), Mirror.of([-1, -1, 1], [1, 0, 2])),
        (Mirror.of([-1, -1]), Mirror.of([-1])),  # nothing even in or out
        (Mirror.of([1, 1]), Mirror.of([1, -1])),  # nothing odd in
    ],
)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_mirrored_input_gives_mirrored_output(mirror_in: Mirror, mirror_out: Mirror, layer_norm: bool) -> None:
    """f(mirror x) = mirror f(x) for random weights, up to rounding."""
    network = MirrorMLP(
        mirror_in, (6, 4), mirror_out, len(mirror_out.perm), activation="elu", head_scale=1.0, rngs=nnx.Rngs(0),
        layer_norm=layer_norm,
    )  # fmt: skip
    network = randomised(network, 0)
    x = jax.random.normal(jax.random.key(1), (5, len(mirror_in.perm)))
    np.testing.assert_allclose(network(mirror_in(x)), mirror_out(network(x)), rtol=1e-4, atol=1e-5)


def test_an_output_without_mirror_is_invariant_and_not_constant() -> None:
    """Without an output mirror f(mirror x) = f(x), for inputs that do matter."""
    mirror = Mirror.of([-1, 1, 1, 1], [0, 1, 3, 2])
    network = MirrorMLP(mirror, (8,), None, 2, activation="tanh", head_scale=1.0, rngs=nnx.Rngs(0))
    network = randomised(network, 1)
    x = jax.random.normal(jax.random.key(0), (16, 4))
    np.testing.assert_allclose(network(mirror(x)), network(x), rtol=1e-4, atol=1e-5)
    for entry in range(4):
        assert not np.allclose(network(x.at[:, entry].add(0.5)), network(x), atol=1e-3)


@given(mirror=mirrors())
def test_parity_bases_are_orthonormal_and_complete(mirror: Mirror) -> None:
    """The even and odd vectors are an orthonormal basis; the mirror keeps the even and negates the odd ones."""
    even, odd = parity_bases((tuple(mirror.perm.tolist()), tuple(mirror.sign.tolist())))
    basis = np.concatenate([even, odd], axis=1)
    np.testing.assert_allclose(basis.T @ basis, np.eye(len(mirror.perm)), atol=1e-6)
    np.testing.assert_allclose(mirror(even.T), even.T, atol=1e-6)
    np.testing.assert_allclose(mirror(odd.T), -odd.T, atol=1e-6)


def test_odd_widths_are_refused() -> None:
    """A mirror-symmetric network needs even hidden widths, and says which were given."""
    with pytest.raises(ValueError, match=r"even hidden widths, given \(8, 7\)"):
        MirrorMLP(Mirror.of([-1]), (8, 7), None, 1, activation="elu", head_scale=1.0, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_perceptron_equals_numpy(activation: str) -> None:
    """A perceptron is what its weights say, written out in numpy with float64."""
    network = MLP(3, (5, 4), 2, activation=activation, head_scale=0.1, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(6, 3))
    functions = {
        "elu": lambda z: np.where(z > 0, z, np.exp(np.minimum(z, 0)) - 1),
        "relu": lambda z: np.maximum(z, 0),
        "silu": lambda z: z / (1 + np.exp(-z)),
        "tanh": np.tanh,
    }
    y = x
    for layer in network.layers:
        y = functions[activation](
            y @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...], np.float64)
        )
    y = y @ np.asarray(network.head.kernel[...], np.float64) + np.asarray(network.head.bias[...], np.float64)
    np.testing.assert_allclose(network(jnp.asarray(x, jnp.float32)), y, rtol=1e-4, atol=1e-5)


def test_layer_norm_takes_out_scale_and_offset() -> None:
    """With normalised layers, the first one's weights may be scaled without a change of the output."""
    options = {"activation": "relu", "head_scale": 1.0, "layer_norm": True}
    mirror = Mirror.of([-1, 1, 1], [0, 2, 1])
    plain = MLP(3, (64, 4), 2, rngs=nnx.Rngs(0), **options)
    symmetric = MirrorMLP(mirror, (64, 4), None, 2, rngs=nnx.Rngs(0), **options)
    x = jax.random.normal(jax.random.key(0), (6, 3))
    for network, layers in ((plain, plain.layers), (symmetric, [*symmetric.even[:1], *symmetric.odd[:1]])):
        before = network(x)
        for layer in layers[:1] if network is plain else layers:
            layer.kernel[...] = 7.0 * layer.kernel[...]
        np.testing.assert_allclose(network(x), before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_have_finite_slopes(activation: str) -> None:
    """No activation gives a slope that is not a number, at zero and far from it."""
    slopes = jax.vmap(jax.grad(ACTIVATIONS[activation]))(jnp.array([-200.0, -1.0, 0.0, 1.0, 200.0]))
    assert np.isfinite(slopes).all()
