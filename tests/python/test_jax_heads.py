# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of (heads, cols) in membound.jax, against the formulas in JAX."""

from __future__ import annotations

import functools
import importlib

import arrays
import numpy as np
import pytest
from heads import OPS, Scene, there

import membound


@pytest.fixture(params=OPS)
def op(request):
    return OPS[request.param]


@pytest.fixture(params=["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)])
def jax_one(request):
    return arrays.framework(request.param)


def norm_in_jax(jax, op):
    """The formula, which JAX differentiates step by step: (out, residual_out if there is one)."""

    def run(x, *rest):
        second, (weight, *bias) = (rest[0], rest[1:]) if op.second else (None, rest)
        total = x + second if op.second == "residual" else x
        row = total - total.mean(-1, keepdims=True) if op.centred else total
        y = row * jax.lax.rsqrt((row * row).mean(-1, keepdims=True) + 1e-6) * weight
        y = y + bias[0] if bias else y
        y = y * jax.nn.silu(second) if op.second == "z" else y
        return (y, total) if op.second == "residual" else y

    return run


@pytest.mark.parametrize("axes", ["none", "rows", "parameters"])
def test_jit_grad_and_vmap(jax_one, op, axes, seed):
    jax = jax_one.jax
    mbj = importlib.import_module("membound.jax")
    scene = Scene(op, "float64", (2, 5, 3, 24), seed)
    rows, parameters, dy = scene.rows, scene.parameters, scene.draw(scene.shape)
    if axes == "rows":
        rows = [scene.draw((4, *a.shape)) for a in rows]
    if axes == "parameters":
        parameters = [scene.draw((4, *a.shape)) for a in parameters]
    inputs = there(jax_one, [*rows, *parameters])
    mapped = [0 if axes == "rows" else None] * len(rows)
    mapped += [0 if axes == "parameters" else None] * len(parameters)

    def over_batch(function):
        return function if axes == "none" else jax.vmap(function, tuple(mapped))

    def gradients_of(function):
        loss = lambda *a: sum((y * dy).sum() for y in jax.tree.leaves(function(*a)))  # noqa: E731
        return jax.grad(loss, tuple(range(len(inputs))))

    ours = functools.partial(getattr(mbj, op.name), normalized_shape=24)
    right = norm_in_jax(jax, op)
    for make in (lambda f: f, gradients_of):
        wanted = jax.jit(over_batch(make(right)))(*inputs)
        functions = [jax.jit(over_batch(make(ours)))]
        functions += [over_batch(make(ours))] if axes == "none" else []
        for function in functions:
            got = jax.tree.leaves(function(*inputs))
            for a, b in zip(got, jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_grad_of_a_bias_of_each_head_without_a_weight(jax_one, seed):
    jax = jax_one.jax
    mbj = importlib.import_module("membound.jax")
    rng = np.random.default_rng(seed)
    x, bias, dy = (rng.standard_normal(shape) for shape in ((6, 3, 16), (3, 16), (6, 3, 16)))

    def loss(x, bias):
        return (mbj.layer_norm(x, None, bias, normalized_shape=16) * dy).sum()

    dx, dbias = jax.grad(loss, (0, 1))(*there(jax_one, [x, bias]))
    np.testing.assert_allclose(dbias, dy.sum(0), rtol=1e-12)
    _, *statistics = membound.layer_norm(x, return_stats=True)
    wanted = membound.layer_norm_backward(dy, x, None, *statistics, need_dbias=False)[0]
    np.testing.assert_allclose(dx, wanted, rtol=1e-11, atol=1e-12)
