# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_gated of membound.jax under jit, vmap and grad, against the formula in JAX."""

from __future__ import annotations

import importlib

import arrays
import numpy as np
import pytest
import reference
from gated_norms import ORDERS
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def draw(one, seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: one.array(rng.standard_normal(shape))


def norm(x, z, weight=None, *, norm_before_gate=True, offset=0.0):
    """(out, rstd), differentiated by JAX step by step."""
    row = x if norm_before_gate else x * jax.nn.silu(z)
    rstd = jax.lax.rsqrt((row * row).mean(-1) + 1e-6)
    y = row * rstd[..., None]
    y = y if weight is None else y * (weight + offset)
    return y * jax.nn.silu(z) if norm_before_gate else y, rstd


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inside_jit(one, dtype, order, seed):
    rng = np.random.default_rng(seed)
    for shape in ((7,), (5, 3, 129), (0, 8)):
        x, z = (rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
        weight = rng.standard_normal(shape[-1:]).astype(NUMPY_DTYPES[dtype])
        options = {"norm_before_gate": order, "rounding": "before_weight"}
        function = jax.jit(lambda *a, o=options: mbj.rms_norm_gated(*a, return_rstd=True, **o))
        y, rstd = function(*map(one.array, (x, z, weight)))
        wanted = norms.rms_norm_gated(x, z, weight, dtype, **options)
        reference.assert_right(one.numpy(y), wanted, one.numpy(rstd))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "offset"), [((7,), 1.0), ((2, 3, 33), 0.0)])
def test_grad(draw, shape, offset, order):
    """All gradients, each alone, and those of a call without a weight."""
    x, z, dy, weight = draw(*shape), draw(*shape), draw(*shape), draw(shape[-1])
    options = {"norm_before_gate": order, "weight_offset": offset}
    ours = lambda *a: (membound.rms_norm_gated(*a, **options) * dy).sum()  # noqa: E731
    right = lambda *a: (norm(*a, norm_before_gate=order, offset=offset)[0] * dy).sum()  # noqa: E731
    wanted = jax.grad(right, (0, 1, 2))(x, z, weight)
    for function in (jax.grad(ours, (0, 1, 2)), jax.jit(jax.grad(ours, (0, 1, 2)))):
        assert_close(function(x, z, weight), wanted)
    for argument in range(3):
        assert_close(jax.grad(ours, argument)(x, z, weight), wanted[argument])
    if not offset:
        assert_close(jax.grad(ours, (0, 1))(x, z), jax.grad(right, (0, 1))(x, z))


@pytest.mark.parametrize("order", ORDERS)
def test_grad_through_rstd(draw, order):
    """An output like another: of the gate, too, where that comes first."""
    x, z, weight, dy, drstd = draw(6, 20), draw(6, 20), draw(20), draw(6, 20), draw(6)

    def loss(function, which):
        def total(*inputs):
            y, rstd = function(*inputs)
            parts = (y * dy).sum(), (rstd**2 * drstd).sum()
            return sum(part for part, wanted in zip(parts, which, strict=True) if wanted)

        return total

    ours = lambda *a: mbj.rms_norm_gated(*a, norm_before_gate=order, return_rstd=True)  # noqa: E731
    right = lambda *a: norm(*a, norm_before_gate=order)  # noqa: E731
    for which in ((True, True), (False, True)):
        for wrt in ((0, 1, 2), (1,)):
            got = jax.grad(loss(ours, which), wrt)(x, z, weight)
            assert_close(got, jax.grad(loss(right, which), wrt)(x, z, weight))


AXES = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_vmap_and_vmap_of_grad(draw, axes):
    """x, z and weight mapped or not: each element of the batch has its own gradients."""
    shapes = [(5, 33), (5, 33), (33,)]
    inputs = [
        draw(*(shape if axis is None else (3, *shape)))
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    dy = draw(5, 33)
    values = jax.vmap(lambda *a: mbj.rms_norm_gated(*a, return_rstd=True), axes)(*inputs)
    assert_close(values, jax.vmap(norm, axes)(*inputs))
    ours = jax.grad(lambda *a: (mbj.rms_norm_gated(*a) * dy).sum(), (0, 1, 2))
    right = jax.grad(lambda *a: (norm(*a)[0] * dy).sum(), (0, 1, 2))
    wanted = jax.jit(jax.vmap(right, axes))(*inputs)
    assert_close(jax.jit(jax.vmap(ours, axes))(*inputs), wanted)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_bits_of_the_op(dtype, order, seed):
    """Through custom_vjp and by hand, on the CPU."""
    one = arrays.framework("jax-cpu")
    rng = np.random.default_rng(seed)
    x, z, dy = (rng.standard_normal((40, 96)).astype(NUMPY_DTYPES[dtype]) for _ in range(3))
    weight = rng.standard_normal(96).astype(np.float16)
    options = {"norm_before_gate": order, "rounding": "before_weight"}
    _, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **options)
    wanted = membound.rms_norm_gated_backward(dy, x, z, weight, rstd, **options)
    pull = jax.vjp(lambda *a: mbj.rms_norm_gated(*a, **options), *map(one.array, (x, z, weight)))[1]
    inputs = map(one.array, (dy, x, z, weight, rstd))
    for found in (pull(one.array(dy)), membound.rms_norm_gated_backward(*inputs, **options)):
        for got, right in zip(found, wanted, strict=True):
            assert one.numpy(got).dtype == right.dtype
            assert one.numpy(got).tobytes() == right.tobytes()


F32, RSTD = np.ones((3, 8), np.float32), np.ones(3, np.float32)
FORWARD = {"x": F32, "z": F32, "weight": F32[0]}
BACKWARD = {"dy": F32, "x": F32, "z": F32, "weight": F32[0], "rstd": RSTD}
BAD = {
    "z of another dtype": (FORWARD, {"z": F32.astype(np.int32)}),
    "z of another shape": (FORWARD, {"z": F32[:2]}),
    "long weight": (FORWARD, {"weight": np.ones(9, np.float32)}),
    "order": (FORWARD, {"norm_before_gate": 1}),
    "rounding": (FORWARD, {"rounding": "twice"}),
    "z of the gradient": (BACKWARD, {"z": F32[:2]}),
    "rstd of another shape": (BACKWARD, {"rstd": F32}),
    "need_dz": (BACKWARD, {"need_dz": 1}),
    "order of the gradient": (BACKWARD, {"norm_before_gate": None}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_reads_as_for_other_arrays(case):
    good, bad = BAD[case]
    name = "rms_norm_gated" if good is FORWARD else "rms_norm_gated_backward"
    call = {**good, **bad}
    with pytest.raises((ValueError, TypeError)) as wanted:
        getattr(membound, name)(**call)
    there = {k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for module in (mbj, membound):
        with pytest.raises(wanted.type) as got:
            getattr(module, name)(**there)
        assert str(got.value) == str(wanted.value)


def test_arrays_that_cannot_be_written_or_are_of_others_are_refused():
    x, rstd = jax.numpy.ones((3, 8)), jax.numpy.ones(3)
    for call, argument in (
        (lambda: membound.rms_norm_gated(x, x, out=x), "out"),
        (lambda: membound.rms_norm_gated(x, F32), "z"),
        (lambda: mbj.rms_norm_gated(x, None), "z"),
        (lambda: membound.rms_norm_gated_backward(x, x, x, None, rstd, dz=x), "dz"),
        (lambda: membound.rms_norm_gated_backward(x, x, F32, None, rstd), "z"),
    ):
        with pytest.raises(TypeError, match=f"argument '{argument}' must"):
            call()
