# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax on arrays that are sharded over four devices; run by test_jax_sharding.py."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import membound.jax as mbj

X, W = (8, 6, 16), (16,)
Q, K = (8, 6, 4, 8), (8, 6, 2, 8)


def tables():
    angles = jnp.arange(12.0)[:, None] * jnp.arange(1.0, 5.0)
    return jnp.cos(angles), jnp.sin(angles)


def numbers_of(x, count):
    """Labels or ids with the sharding of x."""
    return (jnp.abs(x[..., 0]) * 5).astype(jnp.int32) % count


FUNCTIONS = {
    "rms_norm": (mbj.rms_norm, (X, W)),
    "rms_norm of rank 1": (mbj.rms_norm, ((16,), W)),
    "heads": (functools.partial(mbj.rms_norm, normalized_shape=16), ((8, 6, 16), (6, 16))),
    "heads as wide as many": (
        functools.partial(mbj.rms_norm, normalized_shape=4),
        ((8, 4, 4), (4, 4)),
    ),
    "add_rms_norm": (mbj.add_rms_norm, (X, X, W)),
    "rms_norm_gated": (mbj.rms_norm_gated, (X, X, W)),
    "layer_norm": (mbj.layer_norm, (X, W, W)),
    "add_layer_norm": (mbj.add_layer_norm, (X, X, W, W)),
    "gated_activation": (mbj.gated_activation, (X, X)),
    "packed": (mbj.gated_activation, (X,)),
    "softmax": (mbj.softmax, (X,)),
    "masked": (mbj.softmax, (X, (6, 16))),
    "masked by row": (lambda x: mbj.softmax(x, x > 0), (X,)),
    "causal": (functools.partial(mbj.softmax, causal_offset=10), (X,)),
    "cross_entropy": (lambda x: mbj.cross_entropy(x, numbers_of(x, 16)), (X,)),
    "embedding": (lambda x, w: mbj.embedding(numbers_of(x, 6), w), (X, (6, 16))),
    "positions": (
        lambda x, w, more: mbj.embedding(numbers_of(x, 6), w, position_weight=more),
        (X, (6, 16), (6, 16)),
    ),
    "rope": (lambda q, k: mbj.rope(q, k, *tables()), (Q, K)),
    "rope of heads first": (lambda q: mbj.rope(q, None, *tables(), layout="bhsd"), (Q,)),
    "rope at ids": (
        lambda q, k: mbj.rope(q, k, *tables(), position_ids=numbers_of(q[:, :, 0], 12)),
        (Q, K),
    ),
    "qk_norm_rope": (lambda q, k, w: mbj.qk_norm_rope(q, k, w, w, *tables()), (Q, K, (8,))),
}


def total(results):
    return sum((at + 1) * (r * r).sum() for at, r in enumerate(jax.tree.leaves(results)))


def check_automatic(name, mesh, spec, rng):
    """Check results, gradients and their shardings, and that nothing was gathered."""
    function, shapes = FUNCTIONS[name]
    arrays = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
    rows = len(shapes[0])
    placed = [
        jax.device_put(a, NamedSharding(mesh, spec if a.ndim == rows and a.ndim > 2 else P()))
        for a in arrays
    ]
    both = results_and_gradients(function, len(arrays))
    program = both.lower(*placed).compile()
    gathered = [word for word in ("all-gather", "all-to-all") if word in program.as_text()]
    assert gathered == [], (name, spec, gathered)
    found, right = (jax.tree.leaves(one) for one in (program(*placed), both(*arrays)))
    for mine, theirs in zip(found, right, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    first = found[0]
    if first.ndim > 2:
        wanted = NamedSharding(mesh, spec)
        assert first.sharding.is_equivalent_to(wanted, first.ndim), (name, first.sharding)


def check_shard_map(name, mesh, rng):
    function, shapes = FUNCTIONS[name]
    arrays = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
    if len(shapes[0]) < 3:
        return
    specs = tuple(P("a") if len(shape) == len(shapes[0]) else P() for shape in shapes)
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        return
    cut = shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("a"))
    found, right = (
        jax.tree.leaves(results_and_gradients(one, len(arrays))(*arrays)) for one in (cut, function)
    )
    for mine, theirs in zip(found, right, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def results_and_gradients(function, count):
    gradients = jax.grad(lambda *arrays: total(function(*arrays)), tuple(range(count)))
    return jax.jit(lambda *arrays: (function(*arrays), gradients(*arrays)))


def check_heads(mesh, layout, q_cut, k_cut, rng, gathers=False):
    """Sharded heads, those of q and those of k independently.

    q_cut, k_cut: the mesh axes of each letter of the layout that is sharded.
    """
    shape = [{"b": 4, "s": 6, "t": 6, "h": 8, "d": 8}[letter] for letter in layout]
    ids = jnp.asarray(rng.integers(0, 12, (4, 6) if layout in ("bshd", "bhsd") else 6))
    specs = [P(*(some.get(letter) for letter in layout)) for some in (q_cut, k_cut)]

    def rotated(q, k):
        return mbj.rope(q, k, *tables(), layout=layout)

    def normed(q, k, w, v):
        return mbj.qk_norm_rope(q, k, w, v, *tables(), position_ids=ids, layout=layout)

    calls = [
        (rotated, [shape, shape], specs),
        (normed, [shape, shape, (8,), (8,)], [*specs, P(), P()]),
        (
            normed,
            [shape, shape, (8, 8), (8, 8)],
            [*specs, P(q_cut.get("h")), P(k_cut.get("h"))],
        ),
    ]
    for function, shapes, specs_of_call in calls:
        arrays = [jnp.asarray(rng.standard_normal(one)) for one in shapes]
        placed = [
            jax.device_put(one, NamedSharding(mesh, spec))
            for one, spec in zip(arrays, specs_of_call, strict=True)
        ]
        both = results_and_gradients(function, len(arrays))
        text = both.lower(*placed).compile().as_text()
        gathered = any(word in text for word in ("all-gather", "all-to-all"))
        assert gathers or not gathered, (layout, q_cut, k_cut)
        right = jax.tree.leaves(both(*arrays))
        for mine, theirs in zip(jax.tree.leaves(both(*placed)), right, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11)


def check_quantised(mesh, rng):
    """Codes and scales are sharded as rows, under shard_map too; a static scale is replicated."""
    packed = jnp.asarray(rng.standard_normal((*X[:-1], 2 * 130)))
    placed = jax.device_put(packed, NamedSharding(mesh, P("a")))
    for options in ({}, {"group_size": 64}, {"scale": jnp.float32(0.02)}):

        def function(packed, options=options):
            return mbj.gated_activation_quant(packed, dtype="int8", **options)

        compiled = jax.jit(function)
        assert "all-gather" not in compiled.lower(placed).compile().as_text(), options
        right = jax.tree.leaves(function(packed))
        shard_map = getattr(jax, "shard_map", None)
        cut = shard_map and shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
        for one in filter(None, (compiled, cut)):
            for mine, theirs in zip(jax.tree.leaves(one(placed)), right, strict=True):
                np.testing.assert_array_equal(mine, theirs, str(options))
                wanted = NamedSharding(mesh, P("a"))
                assert mine.sharding.is_equivalent_to(wanted, mine.ndim), options


def check_vmap(mesh, rng):
    """A vmapped call on sharded arrays is right, however XLA partitions it."""
    x, weight = (jnp.asarray(rng.standard_normal(s)) for s in (X, W))
    shared = jax.device_put(x, NamedSharding(mesh, P("a")))
    found = jax.jit(jax.vmap(mbj.rms_norm, (0, None)))(shared, weight)
    np.testing.assert_allclose(found, mbj.rms_norm(x, weight), rtol=1e-12)
    weights = jnp.asarray(rng.standard_normal((X[0], *W)))
    found = jax.jit(jax.vmap(mbj.rms_norm))(shared, weights)
    np.testing.assert_allclose(found, mbj.rms_norm(x) * weights[:, None], rtol=1e-12)


def main():
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(int(sys.argv[1]))
    devices = np.array(jax.devices())
    line, square = Mesh(devices, ("a",)), Mesh(devices.reshape(2, 2), ("a", "b"))
    for name in FUNCTIONS:
        check_automatic(name, line, P("a"), rng)
        check_shard_map(name, line, rng)
    check_heads(line, "bshd", {"h": "a"}, {"h": "a"}, rng)
    check_heads(line, "bhsd", {"h": "a"}, {}, rng)
    check_heads(line, "thd", {}, {"h": "a"}, rng)
    check_heads(square, "sbhd", {"b": "a", "h": "b"}, {"b": "a", "h": "b"}, rng)
    check_heads(square, "bhsd", {"h": ("a", "b")}, {"h": "b"}, rng)
    check_heads(line, "bshd", {"b": "a"}, {"h": "a"}, rng, gathers=True)  # one of both is moved
    for name in ("add_rms_norm", "gated_activation"):
        check_automatic(name, square, P("a", "b"), rng)
        check_automatic(name, square, P(("a", "b")), rng)
    check_quantised(line, rng)
    check_vmap(line, rng)
    print("all right")


if __name__ == "__main__":
    main()
