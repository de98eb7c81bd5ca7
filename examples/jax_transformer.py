# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A transformer in JAX with membound's norms, rotation, gate and lookup, trained under jit.

    python examples/jax_transformer.py --steps 100

It learns to go on with a sequence that repeats itself. Needs jax.
"""

from __future__ import annotations

import argparse
import functools
import time

import jax
import jax.numpy as jnp
from progress import progress

import membound as mb
import membound.jax as mbj

VOCAB, HEADS, HEAD_DIM, LAYERS, LENGTH = 32, 4, 16, 2, 48
WIDTH, INNER = HEADS * HEAD_DIM, 160


def parameters(key):
    """Weights of every layer, normal and small; norms start at 1."""
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 2 * INNER),
              "down": (INNER, WIDTH)}  # fmt: skip
    keys = iter(jax.random.split(key, 1 + LAYERS * len(shapes)))
    table = jax.random.normal(next(keys), (VOCAB, WIDTH)) * 0.1
    layers = []
    for _ in range(LAYERS):
        layer = {
            name: jax.random.normal(next(keys), shape) / shape[0] ** 0.5
            for name, shape in shapes.items()
        }
        layers.append(layer | {"first": jnp.ones(WIDTH), "second": jnp.ones(WIDTH)})
    return {"table": table, "layers": layers, "last": jnp.ones(WIDTH)}


def attention(x, layer, freqs):
    batch, length, _ = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(batch, length, 3 * HEADS, HEAD_DIM), 3, axis=2)
    q, k = mbj.rope(q, k, freqs=freqs)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_DIM**0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, WIDTH) @ layer["out"]


def logits(weights, ids, freqs):
    x, residual = jnp.zeros(()), mbj.embedding(ids, weights["table"], scale=WIDTH**0.5)
    for at, layer in enumerate(weights["layers"]):
        if at == 0:
            x = mbj.rms_norm(residual, layer["first"])
        else:
            x, residual = mbj.add_rms_norm(x, residual, layer["first"])
        x = attention(x, layer, freqs)
        x, residual = mbj.add_rms_norm(x, residual, layer["second"])
        x = mbj.gated_activation(x @ layer["up"]) @ layer["down"]
    x, _ = mbj.add_rms_norm(x, residual, weights["last"])
    return x @ weights["table"].T


def loss(weights, ids, freqs):
    """Of the second half, which repeats the first."""
    half = LENGTH // 2
    scores = jax.nn.log_softmax(logits(weights, ids[:, :-1], freqs)[:, half - 1 :])
    return -jnp.take_along_axis(scores, ids[:, half:, None], axis=-1).mean()


@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(weights, moments, ids, freqs, at):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) at a rate of 0.003."""
    value, slopes = jax.value_and_grad(loss)(weights, ids, freqs)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slopes)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], slopes)
    scale = 3e-3 * jnp.sqrt(1 - 0.99 ** (at + 1)) / (1 - 0.9 ** (at + 1))
    weights = jax.tree.map(
        lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), weights, first, second
    )
    return weights, (first, second), value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    key = jax.random.key(0)
    weights = parameters(key)
    moments = tuple(jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    freqs = jnp.array(mb.rope_frequencies(None, HEAD_DIM, LENGTH)[0], jnp.float32)
    print(f"on {jax.devices()[0]}")
    first = value = None
    start = time.perf_counter()
    bar = progress(range(options.steps))
    for at in bar:
        shape = (options.batch, LENGTH // 2)
        half = jax.random.randint(jax.random.fold_in(key, at), shape, 0, VOCAB)
        ids = jnp.concatenate((half, half), axis=1)
        weights, moments, value = step(weights, moments, ids, freqs, at)
        first = value if first is None else first
        if at % 10 == 0:
            bar.set_postfix_str(f"loss {value:.3f}")
    taken = time.perf_counter() - start
    print(f"loss {first:.3f} to {value:.3f}, {options.steps / taken:.1f} steps/s with compilation")


if __name__ == "__main__":
    main()
