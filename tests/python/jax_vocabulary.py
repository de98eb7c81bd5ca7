# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of membound.jax whose vocabulary four devices share; run by test_jax_sharding.py."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_columns import collectives, elements
from jax_devices import results_and_gradients

import membound.jax as mbj

ROWS, WIDTH, VOCAB = (2, 8), 6, 12
KINDS = (
    {}, {"label_smoothing": 0.1}, {"z_loss": 0.02}, {"softcap": 2.5}, {"ignore_index": 3},
    {"label_smoothing": 0.3, "z_loss": 1e-3, "softcap": 4.0, "weighted": True},
)  # fmt: skip


def check_close(found, right, what):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-12, err_msg=str(what))


def check_statistics_alone(function, arrays, what):
    """All-reduces of rows' statistics and of x's gradient are all that devices exchange."""
    largest = int(np.prod(ROWS)) * max(WIDTH, 2 * jax.device_count())
    for name, shape in collectives(jax.jit(function).lower(*arrays).compile()):
        assert name == "all-reduce", (what, name, shape)
        assert elements(shape) <= largest, (what, name, shape)


def check_kind(mesh, options, reduction, checked, rng):
    """The losses and gradients of whole arrays, from a part of the vocabulary each."""
    options = {**options, "reduction": reduction}
    if options.pop("weighted", False):
        options["class_weight"] = jnp.linspace(0.5, 2.0, VOCAB)
    x, weight, bias = (
        jnp.asarray(rng.standard_normal(shape)) for shape in ((*ROWS, WIDTH), (VOCAB, WIDTH), VOCAB)
    )
    labels = jnp.asarray(rng.integers(0, VOCAB, ROWS)).at[1, 2].set(options.get("ignore_index", 5))
    labels = labels if "ignore_index" in options else labels.at[0, 3:5].set(-100)
    shared = functools.partial(jax.shard_map, mesh=mesh, check_vma=checked)
    layer = functools.partial(mbj.linear_cross_entropy, chunk_rows=5, **options)

    def whole(x, weight, bias):
        return layer(x, weight, labels, bias)

    split = shared(
        lambda x, w, b, y: layer(x, w, y, b, axis_name="a"),
        in_specs=(P(), P("a"), P("a"), P()),
        out_specs=P(),
    )
    what = options, checked
    mine = results_and_gradients(lambda *given: split(*given, labels), 3)
    check_close(mine(x, weight, bias), results_and_gradients(whole, 3)(x, weight, bias), what)
    check_statistics_alone(mine, (x, weight, bias), what)

    named = {n: v for n, v in options.items() if n != "class_weight"}

    def of_logits(logits):
        return mbj.cross_entropy(logits, labels, options.get("class_weight"), **named)

    split_logits = shared(
        lambda logits, y: mbj.vocab_parallel_cross_entropy(logits, y, "a", **options),
        in_specs=(P(None, None, "a"), P()),
        out_specs=P(),
    )
    logits = x @ weight.T + bias
    mine = results_and_gradients(lambda logits: split_logits(logits, labels), 1)
    check_close(mine(logits), results_and_gradients(of_logits, 1)(logits), what)
    check_statistics_alone(mine, (logits,), what)


def check_log_probs(mesh, options, rng):
    """Log-probabilities and entropies, and their gradients, of whole arrays."""
    x, weight = (jnp.asarray(rng.standard_normal(s)) for s in ((*ROWS, WIDTH), (VOCAB, WIDTH)))
    labels = jnp.asarray(rng.integers(0, VOCAB, ROWS)).at[0, 3:5].set(-100)
    factors = jnp.asarray(rng.standard_normal((2, *ROWS)))
    layer = functools.partial(mbj.linear_log_probs, chunk_rows=5, entropy=True, **options)

    def split(x, weight):
        shared = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("a")))
        return shared(lambda x, w: layer(x, w, labels, axis_name="a"), out_specs=P())(x, weight)

    def weighted(function):
        return results_and_gradients(lambda x, w: (factors * jnp.stack(function(x, w))).sum(), 2)

    right = weighted(lambda x, w: layer(x, w, labels))(x, weight)
    check_close(weighted(split)(x, weight), right, options)
    check_statistics_alone(weighted(split), (x, weight), options)


def check_rows_too(square, rng):
    """One mesh axis shards the rows, another the vocabulary; the caller adds up the rows."""
    x, weight = (jnp.asarray(rng.standard_normal(s)) for s in ((*ROWS, WIDTH), (VOCAB, WIDTH)))
    labels = jnp.asarray(rng.integers(0, VOCAB, ROWS))

    def part(x, weight, labels):
        found = mbj.linear_cross_entropy(x, weight, labels, reduction="sum", axis_name="b")
        return jax.lax.psum(found, "a")

    specs = P("a"), P("b"), P("a")
    split = jax.shard_map(part, mesh=square, in_specs=specs, out_specs=P())
    whole = functools.partial(mbj.linear_cross_entropy, reduction="sum")
    found, right = (
        results_and_gradients(lambda x, w, f=f: f(x, w, labels), 2)(x, weight)
        for f in (split, whole)
    )
    check_close(found, right, "rows too")


def check_rare_rows(mesh, rng):
    """Large logits, labels that are no column, and rows that are ignored and hold no number."""
    logits = jnp.asarray(1e4 + rng.standard_normal((4, VOCAB))).astype("float32")
    logits = logits.at[3].set(jnp.nan)
    labels = jnp.array([2, 11, VOCAB, -100])
    split = jax.shard_map(
        lambda logits: mbj.vocab_parallel_cross_entropy(logits, labels, "a"),
        mesh=mesh, in_specs=P(None, "a"), out_specs=P(),
    )  # fmt: skip
    whole = lambda logits: mbj.cross_entropy(logits, labels)  # noqa: E731
    found, right = (results_and_gradients(one, 1)(logits) for one in (split, whole))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-6)
    assert np.isnan(found[0]).tolist() == [False, False, True, False]


def check_automatic_rows(mesh, rng):
    """Outside of shard_map sharded rows are processed shard by shard."""
    x, weight = (jnp.asarray(rng.standard_normal(s)) for s in ((8, 4, WIDTH), (64, WIDTH)))
    labels = jnp.asarray(rng.integers(0, 64, (8, 4)))
    placed = [jax.device_put(one, NamedSharding(mesh, P("a"))) for one in (x, labels)]

    def both(x, labels):
        options = {"chunk_rows": 8, "reduction": "none"}
        return results_and_gradients(
            lambda x, w: mbj.linear_cross_entropy(x, w, labels, **options), 2
        )(x, weight)

    program = jax.jit(both).lower(*placed).compile()
    gathered = [(n, s) for n, s in collectives(program) if n != "all-reduce"]
    assert all(elements(shape) <= x.size for _, shape in gathered), gathered
    check_close(program(*placed), both(x, labels), "automatic")


def main():
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(int(sys.argv[1]))
    devices = np.array(jax.devices())
    line, square = Mesh(devices, ("a",)), Mesh(devices.reshape(2, 2), ("a", "b"))
    check_automatic_rows(line, rng)
    if hasattr(jax, "shard_map"):
        for at, options in enumerate(KINDS):
            check_kind(line, options, ("mean", "none", "sum")[at % 3], True, rng)
        check_kind(line, KINDS[-1], "none", True, rng)
        check_kind(line, KINDS[-1], "mean", False, rng)
        for options in ({}, {"temperature": 0.7, "softcap": 2.0}):
            check_log_probs(line, options, rng)
        check_rows_too(square, rng)
        check_rare_rows(line, rng)
    print("all right")


if __name__ == "__main__":
    main()
