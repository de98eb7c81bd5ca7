# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The quantised norms under JAX's transformations; eager calls are in test_rms_norm_quant.py."""

from __future__ import annotations

import importlib

import arrays
import numpy as np
import pytest
from quant_norms import assert_same, quantised

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("shape", [(7,), (5, 3, 129), (0, 8)])
def test_inside_jit(one, shape, seed):
    x, residual, weight = draw(seed, shape, shape, shape[-1:])

    @jax.jit
    def both(x, residual, weight):
        options = {"eps": 1e-5, "weight_offset": 1.0}
        y = mbj.rms_norm(x, weight, **options)
        plain = mbj.rms_norm_quant(x, weight, dtype=jax.numpy.float8_e5m2, **options)
        z, total = mbj.add_rms_norm(x, residual, weight, **options)
        added = mbj.add_rms_norm_quant(x, residual, weight, group_size=64, dtype="int8", **options)
        return y, plain, z, total, added

    y, plain, z, total, added = jax.tree.map(
        one.numpy, both(*map(one.array, (x, residual, weight)))
    )
    for got, wanted in zip(plain, quantised(y, "float8_e5m2"), strict=True):
        assert_same(got, wanted, shape)
    out, scale = quantised(z, "int8", 64)
    for got, wanted in zip(added, (out, total, scale), strict=True):
        assert_same(got, wanted, shape)


# Which of x, residual, weight and scale are mapped.
MAPPED = [(0, 0, None, None), (1, None, None, None), (None, None, 0, None), (0, 1, 1, None)]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("axes", MAPPED)
def test_vmap(one, axes, static, seed):
    shapes = [(5, 70), (5, 70), (70,), ()]
    values = []
    for axis, shape in zip(axes, shapes, strict=True):
        batched = list(shape)
        if axis is not None:
            batched.insert(axis, 3)
        values += [abs(draw(seed + len(values), tuple(batched))[0]) + 0.01]
    if static:  # the scale is mapped with the weight
        axes = (*axes[:3], None if axes[2] is None else 0)
        values[3] = np.float32(0.01) if axes[3] is None else np.float32([0.01, 0.02, 0.04])

    def op(x, residual, weight, scale):
        options = {"scale": scale} if static else {"group_size": 64}
        return mbj.add_rms_norm_quant(x, residual, weight, dtype="int8", **options)

    found = jax.vmap(op, in_axes=axes)(*map(one.array, values))
    for at in range(3):
        single = [one.array(value if axis is None else np.take(value, at, axis))
                  for value, axis in zip(values, axes, strict=True)]  # fmt: skip
        for got, wanted in zip(found, op(*single), strict=True):
            assert_same(one.numpy(got)[at], one.numpy(wanted), (axes, at))


def test_there_is_no_gradient(one):
    x = one.array(np.ones((2, 8), np.float32))
    for op in (lambda x: mbj.rms_norm_quant(x)[1], lambda x: mbj.add_rms_norm_quant(x, x)[2]):
        with pytest.raises(TypeError, match="rms_norm_quant: a quantised result has no gradient"):
            jax.grad(lambda x, op=op: op(x).sum())(x)
        with pytest.raises(TypeError, match="has no gradient"):
            jax.jvp(op, (x,), (x,))
        held = lambda x, op=op: (op(jax.lax.stop_gradient(x)) * x.sum()).sum()  # noqa: E731
        assert np.isfinite(one.numpy(jax.grad(held)(x))).all()


X = np.ones((3, 130), np.float32)
BAD = [
    ({"weight": np.ones(5, np.float32)}, ValueError, "weight"),
    ({"dtype": "float16"}, TypeError, "dtype"),
    ({"dtype": None}, TypeError, "dtype"),
    ({"group_size": 32}, ValueError, "group_size"),
    ({"group_size": 64.0}, TypeError, "group_size"),
    ({"scale_upper_bound": 0.0}, ValueError, "scale_upper_bound"),
    ({"scale_upper_bound": "1"}, TypeError, "scale_upper_bound"),
    ({"scale": np.ones(2, np.float32)}, ValueError, "scale"),
    ({"scale": np.ones(1, np.int32)}, TypeError, "scale"),
    ({"scale": np.ones(1, np.float32), "group_size": 64}, ValueError, "group_size"),
    ({"scale": np.ones(1, np.float32), "scale_upper_bound": 1.0}, ValueError, "scale_upper_bound"),
    ({"eps": -1.0}, ValueError, "eps"),
    ({"rounding": "up"}, ValueError, "rounding"),
]


@pytest.mark.parametrize(("bad", "expected", "argument"), BAD)
def test_bad_calls(bad, expected, argument):
    one = arrays.framework("jax-cpu")
    x = one.array(X)
    bad = {name: one.array(value) if isinstance(value, np.ndarray) else value
           for name, value in bad.items()}  # fmt: skip
    with pytest.raises(expected, match=rf"^rms_norm_quant: argument '{argument}'"):
        mbj.rms_norm_quant(x, **bad)
    with pytest.raises(expected, match=rf"^add_rms_norm_quant: argument '{argument}'"):
        mbj.add_rms_norm_quant(x, x, **bad)


@pytest.mark.parametrize("argument", ["out", "scale_out", "stream"])
def test_what_jax_arrays_cannot_have(argument):
    membound = importlib.import_module("membound")
    x = arrays.framework("jax-cpu").array(X)
    with pytest.raises(TypeError, match=f"^rms_norm_quant: argument '{argument}' must be None for"):
        membound.rms_norm_quant(x, **{argument: 0 if argument == "stream" else x})
    with pytest.raises(TypeError, match="'scale' must be a jax array like 'x', got numpy"):
        membound.rms_norm_quant(x, scale=np.ones(1, np.float32))
