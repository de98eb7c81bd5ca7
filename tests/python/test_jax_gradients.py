# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax under jax.grad, jit, vmap, scan and checkpoint, against the formulas in JAX."""

from __future__ import annotations

import importlib
import re

import arrays
import gradients
import numpy as np
import pytest
import reference
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


def norm(x, weight=None, *, offset=0.0, eps=1e-6):
    """(out, rstd), differentiated by JAX step by step."""
    rstd = jax.lax.rsqrt((x * x).mean(-1) + eps)
    y = x * rstd[..., None]
    return y if weight is None else y * (weight + offset), rstd


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("entry", [membound.rms_norm, mbj.rms_norm])
@pytest.mark.parametrize("shape", [(7,), (5, 64), (2, 3, 33), (300, 40)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_grad_of_rms_norm(draw, entry, shape, offset):
    if entry is membound.rms_norm and offset:
        pytest.skip("one way in is enough for the options")
    x, weight, dy = draw(*shape), draw(shape[-1]), draw(*shape)
    ours = lambda x, w: (entry(x, w, weight_offset=offset) * dy).sum()  # noqa: E731
    right = lambda x, w: (norm(x, w, offset=offset)[0] * dy).sum()  # noqa: E731
    wanted = jax.grad(right, (0, 1))(x, weight)
    for function in (jax.grad(ours, (0, 1)), jax.jit(jax.grad(ours, (0, 1)))):
        assert_close(function(x, weight), wanted)
    assert_close(jax.grad(ours, 1)(x, weight), wanted[1])
    alone = jax.grad(lambda x: (entry(x) * dy).sum())(x)
    assert_close(alone, jax.grad(lambda x: (norm(x)[0] * dy).sum())(x))


def both(x, residual, weight, dy, dtotal):
    """A loss of both outputs of the formula."""
    total = x + residual
    return (norm(total, weight)[0] * dy).sum() + (total * dtotal).sum()


def test_grad_of_add_rms_norm(draw):
    x, residual, dy, dtotal = (draw(4, 5, 24) for _ in range(4))
    weight = draw(24)

    def ours(x, residual, weight):
        y, total = mbj.add_rms_norm(x, residual, weight)
        return (y * dy).sum() + (total * dtotal).sum()

    wanted = jax.grad(both, (0, 1, 2))(x, residual, weight, dy, dtotal)
    for function in (jax.grad(ours, (0, 1, 2)), jax.jit(jax.grad(ours, (0, 1, 2)))):
        assert_close(function(x, residual, weight), wanted)
    checkpointed = jax.grad(jax.checkpoint(ours), (0, 1, 2))
    assert_close(checkpointed(x, residual, weight), wanted)
    # Each output alone, and each input alone.
    zero = dy * 0
    for part in (0, 1):
        loss = lambda *a, part=part: (mbj.add_rms_norm(*a)[part] * dy).sum()  # noqa: E731
        right = (dy, zero) if part == 0 else (zero, dy)
        assert_close(
            jax.grad(loss, (0, 1, 2))(x, residual, weight),
            jax.grad(both, (0, 1, 2))(x, residual, weight, *right),
        )
    for argument in range(3):
        assert_close(jax.grad(ours, argument)(x, residual, weight), wanted[argument])


def test_gradients_do_not_depend_on_those_taken_before(draw):
    """JAX traces a jitted function once for each choice, and must not mix the choices up."""
    x, residual, weight, dy = draw(4, 24), draw(4, 24), draw(24), draw(4, 24)
    zero = dy * 0
    for part, argument in ((0, 0), (0, 2), (1, 0), (1, 1), (0, 1), (1, 2), (0, 0), (1, 0)):
        loss = lambda *a, part=part: (mbj.add_rms_norm(*a)[part] * dy).sum()  # noqa: E731
        right = jax.grad(both, argument)(x, residual, weight, *((dy, zero), (zero, dy))[part])
        assert_close(jax.grad(loss, argument)(x, residual, weight), right)


def test_grad_through_rstd(draw):
    """The statistics are an output like another, with a derivative of their own."""
    x, weight, dy, drstd = draw(6, 20), draw(20), draw(6, 20), draw(6)

    def loss(function):
        def total(x, weight):
            y, rstd = function(x, weight)
            return (y * dy).sum() + (rstd**2 * drstd).sum()

        return total

    ours = loss(lambda x, w: mbj.rms_norm(x, w, return_rstd=True))
    assert_close(jax.grad(ours, (0, 1))(x, weight), jax.grad(loss(norm), (0, 1))(x, weight))

    def added(x, residual, weight):
        y, total, rstd = mbj.add_rms_norm(x, residual, weight, return_rstd=True)
        return (y * dy).sum() + (total * dy).sum() + (rstd * drstd).sum()

    def right(x, residual, weight):
        y, rstd = norm(x + residual, weight)
        return (y * dy).sum() + ((x + residual) * dy).sum() + (rstd * drstd).sum()

    got = jax.grad(added, (0, 1, 2))(x, dy, weight)
    assert_close(got, jax.grad(right, (0, 1, 2))(x, dy, weight))


def test_only_the_gradients_that_are_asked_for_are_computed(draw):
    x, weight = draw(6, 20), draw(20)

    def results(argument):
        """How many arrays the backward's call gives."""
        jaxpr = str(
            jax.make_jaxpr(jax.grad(lambda *a: mbj.rms_norm(*a).sum(), argument))(x, weight)
        )
        calls = [part for part in jaxpr.split("ffi_call[") if "membound_rms_norm_backward" in part]
        assert len(calls) == 1
        found = re.search(r"result_avals=\(([^)]*\)?(?:, ShapedArray\([^)]*\))*)", calls[0])
        return found.group(1).count("ShapedArray")

    assert results(0) == 1  # dx
    assert results(1) == 2  # dweight and its workspace
    assert results((0, 1)) == 3


@pytest.mark.parametrize("weight_axis", [None, 0])
@pytest.mark.parametrize("x_axis", [None, 0, 1])
def test_vmap_of_grad(draw, x_axis, weight_axis):
    """Each element of the batch has a dweight of its own."""
    if x_axis is None and weight_axis is None:
        pytest.skip("vmap wants a mapped argument")
    shape = [5, 33]
    if x_axis is not None:
        shape.insert(x_axis, 3)
    x, dy = draw(*shape), draw(5, 33)
    weight = draw(33) if weight_axis is None else draw(3, 33)
    axes = (x_axis, weight_axis)
    ours = jax.grad(lambda x, w: (mbj.rms_norm(x, w) * dy).sum(), (0, 1))
    right = jax.grad(lambda x, w: (norm(x, w)[0] * dy).sum(), (0, 1))
    wanted = jax.vmap(right, axes)(x, weight)
    for function in (jax.vmap(ours, axes), jax.jit(jax.vmap(ours, axes))):
        got = function(x, weight)
        assert got[1].shape == (3, 33)
        assert_close(got, wanted)


def test_grad_of_vmap(draw):
    x, weight, dy = draw(3, 5, 33), draw(33), draw(3, 5, 33)
    ours = lambda x, w: (jax.vmap(mbj.rms_norm, (0, None))(x, w) * dy).sum()  # noqa: E731
    right = lambda x, w: (norm(x, w)[0] * dy).sum()  # noqa: E731
    assert_close(jax.grad(ours, (0, 1))(x, weight), jax.grad(right, (0, 1))(x, weight))


def test_vmap_of_the_added_forms(draw):
    """Every choice of what is mapped; what is not repeats without a copy."""
    x, residual, dy = draw(3, 4, 20), draw(4, 20), draw(4, 20)
    weight, weights = draw(20), draw(3, 20)

    def forward(x, residual, weight):
        y, total, rstd = mbj.add_rms_norm(x, residual, weight, return_rstd=True)
        dx, dweight = mbj.add_rms_norm_backward(y, dy, total, weight, rstd)
        only_dx, _ = mbj.add_rms_norm_backward(y, dy, total, weight, rstd, need_dweight=False)
        plain, _ = mbj.rms_norm_backward(dy, total, None, rstd)
        return y, total, rstd, dx, dweight, only_dx, plain

    for arguments, axes in (
        ((x, residual, weight), (0, None, None)),
        ((residual, x, weight), (None, 0, None)),
        ((x, x, weight), (0, 0, None)),
        ((residual, residual, weights), (None, None, 0)),
        ((x, residual, weights), (0, None, 0)),
    ):
        got = jax.vmap(forward, axes)(*arguments)
        for i in range(3):
            one = [a if axis is None else a[i] for a, axis in zip(arguments, axes, strict=True)]
            assert_close([part[i] for part in got], forward(*one))


def test_nested_vmap(draw):
    """dweight under two maps, over x and over the weight."""
    x, weight, dy = draw(2, 4, 20), draw(3, 20), draw(4, 20)
    ours = jax.grad(lambda x, w: (mbj.rms_norm(x, w) * dy).sum(), (0, 1))
    nested = jax.vmap(jax.vmap(ours, (None, 0)), (0, None))
    dx, dweight = nested(x, weight)
    assert dx.shape == (2, 3, 4, 20)
    assert dweight.shape == (2, 3, 20)
    for i, j in np.ndindex(2, 3):
        assert_close((dx[i, j], dweight[i, j]), ours(x[i], weight[j]))


def test_scan_over_layers(draw):
    """As a model is written: the residual goes through every layer."""
    x, residual, weights = draw(4, 16), draw(4, 16), draw(3, 16)

    def run(add, x, residual, weights):
        def layer(carry, weight):
            y, total = add(*carry, weight)
            return (jax.numpy.tanh(y), total), None

        (y, total), _ = jax.lax.scan(layer, (x, residual), weights)
        return (y * total).sum()

    def right(x, residual, weight):
        return norm(x + residual, weight)[0], x + residual

    arguments = (x, residual, weights)
    got = jax.grad(lambda *a: run(mbj.add_rms_norm, *a), (0, 1, 2))(*arguments)
    wanted = jax.grad(lambda *a: run(right, *a), (0, 1, 2))(*arguments)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_bits_of_the_op(dtype, rounding, seed):
    """Through custom_vjp and by hand, on the CPU."""
    one = arrays.framework("jax-cpu")
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    x, dy = (rng.standard_normal((40, 96)).astype(kind) for _ in range(2))
    weight = rng.standard_normal(96).astype(kind)
    options = {"weight_offset": 1.0, "rounding": rounding}
    _, rstd = membound.rms_norm(x, weight, return_rstd=True, **options)
    wanted = membound.rms_norm_backward(dy, x, weight, rstd, **options)
    _, pull = jax.vjp(lambda *a: mbj.rms_norm(*a, **options), one.array(x), one.array(weight))
    for got, right in zip(pull(one.array(dy)), wanted, strict=True):
        assert one.numpy(got).dtype == right.dtype
        assert one.numpy(got).tobytes() == right.tobytes()


def test_no_rows(one):
    x, weight = one.array(np.empty((0, 8))), one.array(np.ones(8))
    dx, dweight = jax.grad(lambda *a: mbj.rms_norm(*a).sum(), (0, 1))(x, weight)
    assert dx.shape == (0, 8)
    np.testing.assert_array_equal(dweight, np.zeros(8))


def test_what_cannot_be_differentiated_says_so(draw):
    x = draw(2, 8)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(mbj.rms_norm, (x,), (x,))
    with pytest.raises(ValueError, match=r"membound_rms_norm.* cannot be differentiated"):
        jax.grad(lambda x: jax.grad(lambda x: mbj.rms_norm(x).sum())(x).sum())(x)
    stopped = jax.grad(lambda x: (mbj.rms_norm(jax.lax.stop_gradient(x)) * x).sum())(x)
    np.testing.assert_allclose(stopped, mbj.rms_norm(x))


F32 = np.ones((3, 8), np.float32)
RSTD = np.ones(3, np.float32)
GOOD = {"dy": F32, "x": F32, "weight": F32[0], "rstd": RSTD}
BAD = {
    "0-d x": {"x": np.ones((), np.float32)},
    "int x": {"x": np.ones((3, 8), np.int32)},
    "no columns": {"x": F32[:, :0]},
    "dy of another dtype": {"dy": F32.astype(np.int32)},
    "dy of another shape": {"dy": F32[:2]},
    "long weight": {"weight": np.ones(9, np.float32)},
    "int weight": {"weight": np.ones(8, np.int32)},
    "rstd of 16 bits": {"rstd": RSTD.astype(np.float16)},
    "rstd of another shape": {"rstd": F32},
    "infinite offset": {"weight_offset": float("inf")},
    "rounding": {"rounding": "twice"},
    "flag": {"need_dx": 1},
    "other flag": {"need_dweight": "yes"},
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_reads_as_for_other_arrays(case, added):
    call = {**GOOD, **BAD[case]}
    name = "rms_norm_backward"
    if added:
        name = "add_rms_norm_backward"
        call = {"dresidual_out": call["x"], "residual_out": call.pop("x"), **call}
    with pytest.raises((ValueError, TypeError)) as wanted:
        getattr(membound, name)(**call)
    there = {k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for module in (mbj, membound):
        with pytest.raises(wanted.type) as got:
            getattr(module, name)(**there)
        assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"residual": F32[:2]},
        {"residual": F32.astype(np.int32)},
        {"weight": np.ones(9, np.float32)},
        {"eps": -1.0},
    ],
    ids=str,
)
def test_bad_input_of_the_added_forward(bad):
    call = {"x": F32, "residual": F32, **bad}
    with pytest.raises((ValueError, TypeError)) as wanted:
        membound.add_rms_norm(**call)
    there = {k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for module in (mbj, membound):
        with pytest.raises(wanted.type) as got:
            module.add_rms_norm(**there)
        assert str(got.value) == str(wanted.value)


def test_arrays_that_cannot_be_written_are_refused():
    x, rstd = jax.numpy.ones((3, 8)), jax.numpy.ones(3)
    for call, argument in (
        (lambda: membound.add_rms_norm(x, x, out=x), "out"),
        (lambda: membound.add_rms_norm(x, x, residual_out=x), "residual_out"),
        (lambda: membound.rms_norm_backward(x, x, x[0], rstd, dx=x), "dx"),
        (lambda: membound.rms_norm_backward(x, x, x[0], rstd, dweight=x[0]), "dweight"),
        (lambda: membound.rms_norm_backward(x, x, x[0], rstd, stream=1), "stream"),
        (lambda: membound.fused_add_rms_norm(x, x, x[0]), "input"),
    ):
        with pytest.raises(TypeError, match=f"argument '{argument}' must"):
            call()
    with pytest.raises(TypeError, match=r"'rstd' must be a jax array like 'dy', got numpy"):
        membound.rms_norm_backward(x, x, x[0], RSTD)


def test_a_gradient_step_in_bfloat16(one, seed):
    """Against the formula in float64 on the rounded inputs, within the tolerance table."""
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES["bfloat16"]
    x, dy = (rng.standard_normal((64, 256)).astype(kind) for _ in range(2))
    weight = rng.standard_normal(256).astype(kind)
    rstd = gradients.statistics_of(x, "bfloat16")
    got = mbj.rms_norm_backward(*map(one.array, (dy, x, weight, rstd)))
    wanted = norms.rms_norm_backward(dy, x, weight, rstd, "bfloat16")
    for gradient, right in zip(got, wanted, strict=True):
        reference.assert_within(one.numpy(gradient), right)
