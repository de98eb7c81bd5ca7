# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""JAX arrays under JAX's transformations; eager calls are in test_rms_norm.py with the others."""

from __future__ import annotations

import importlib
import subprocess
import sys

import arrays
import numpy as np
import pytest
import reference
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")
jax_ffi = importlib.import_module("membound.jax._ffi")
jax_norm = importlib.import_module("membound.jax._norm")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


def draw(seed, dtype, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (1, 64), (5, 3, 129), (2, 1, 3, 2, 40), (0, 8)])
def test_inside_jit(one, dtype, shape, seed):
    x, weight = draw(seed, dtype, shape, shape[-1:])

    @jax.jit
    def doubled(x, weight):
        out, rstd = mbj.rms_norm(x, weight, eps=1e-5, weight_offset=1.0, return_rstd=True)
        return out, rstd, 2 * mbj.rms_norm(x)

    out, rstd, twice = map(one.numpy, doubled(one.array(x), one.array(weight)))
    expected = norms.rms_norm(x, weight, dtype, eps=1e-5, weight_offset=1.0)
    reference.assert_right(out, expected, rstd, what=(dtype, shape))
    reference.assert_right(twice / 2, norms.rms_norm(x, None, dtype))


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_of_another_dtype(one, dtype, weight_dtype, seed):
    (x,) = draw(seed, dtype, (4, 48))
    (weight,) = draw(seed + 1, weight_dtype, (48,))
    out = one.numpy(mbj.rms_norm(one.array(x), one.array(weight)))
    reference.assert_right(out, norms.rms_norm(x, weight, dtype))


def batched(x, weight, x_axis, weight_axis):
    """The weight's shape so that NumPy broadcasting does what vmap is asked to."""
    if x_axis is None:
        x = x[None]
    elif x_axis:
        x = np.moveaxis(x, x_axis, 0)
    return x, weight if weight_axis is None else np.moveaxis(weight, weight_axis, 0)


@pytest.mark.parametrize("weight_axis", [None, 0, 1])
@pytest.mark.parametrize("x_axis", [None, 0, 1, 2])
def test_vmap(one, x_axis, weight_axis, seed):
    if x_axis is None and weight_axis is None:
        pytest.skip("vmap wants a mapped argument")
    batch, rows, cols = 3, 5, 33
    x_shape, weight_shape = [2, rows, cols], [cols]
    if x_axis is not None:
        x_shape.insert(x_axis, batch)
    if weight_axis is not None:
        weight_shape.insert(weight_axis, batch)
    x, weight = draw(seed, "float32", x_shape, weight_shape)
    mapped = jax.vmap(
        lambda x, weight: mbj.rms_norm(x, weight, return_rstd=True), in_axes=(x_axis, weight_axis)
    )
    for function in (mapped, jax.jit(mapped)):
        out, rstd = map(one.numpy, function(one.array(x), one.array(weight)))
        assert out.shape == (batch, 2, rows, cols)
        moved, weights = batched(x, weight, x_axis, weight_axis)
        for i in range(batch):
            expected = norms.rms_norm(
                moved[i % len(moved)], weights if weight_axis is None else weights[i], "float32"
            )
            reference.assert_right(out[i], expected, rstd[i], what=(x_axis, weight_axis, i))


def test_nested_vmap(one, seed):
    """Outer axis on the weight alone, inner axis on x alone, and one on both."""
    x, weight = draw(seed, "float32", (2, 3, 4, 16), (2, 5, 16))
    mapped = jax.vmap(jax.vmap(jax.vmap(mbj.rms_norm, (0, None)), (None, 0)), (0, 0))
    out = one.numpy(mapped(one.array(x), one.array(weight)))
    assert out.shape == (2, 5, 3, 4, 16)
    for i, j in np.ndindex(2, 5):
        reference.assert_right(out[i, j], norms.rms_norm(x[i], weight[i, j], "float32"))


def test_before_weight_reaches_the_kernel(seed):
    one = arrays.framework("jax-cpu")
    x, weight = draw(seed, "bfloat16", (64, 256), (256,))
    wanted = membound.rms_norm(x, weight, rounding="before_weight")
    got = one.numpy(mbj.rms_norm(one.array(x), one.array(weight), rounding="before_weight"))
    assert got.tobytes() == wanted.tobytes()
    assert got.tobytes() != membound.rms_norm(x, weight).tobytes()


F32, I32 = np.ones((2, 8), np.float32), np.ones((2, 8), np.int32)
BAD = {
    "0-d": (np.ones((), np.float32), None, {}),
    "no columns": (F32[:, :0], None, {}),
    "int x": (I32, None, {}),
    "bool x": (I32 > 0, None, {}),
    "complex x": (F32.astype(np.complex64), None, {}),
    "int weight": (F32, I32[0], {}),
    "2-D weight": (F32, F32, {}),
    "0-d weight": (F32, np.ones((), np.float32), {}),
    "long weight": (F32, np.ones(9, np.float32), {}),
    "NaN eps": (F32, None, {"eps": float("nan")}),
    "negative eps": (F32, None, {"eps": -1e-3}),
    "infinite eps": (F32, None, {"eps": float("inf")}),
    "eps text": (F32, None, {"eps": "1e-6"}),
    "eps list": (F32, None, {"eps": [1.0]}),
    "infinite offset": (F32, F32[0], {"weight_offset": float("inf")}),
    "offset list": (F32, F32[0], {"weight_offset": [1.0]}),
    "rounding": (F32, None, {"rounding": "twice"}),
    "rounding list": (F32, None, {"rounding": ["once"]}),
    "flag": (F32, None, {"return_rstd": 1}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_reads_as_for_other_arrays(case):
    x, weight, options = BAD[case]
    with pytest.raises((ValueError, TypeError)) as wanted:
        membound.rms_norm(x, weight, **options)
    jax_x = jax.numpy.asarray(x)
    jax_weight = None if weight is None else jax.numpy.asarray(weight)
    for entry in (mbj.rms_norm, membound.rms_norm, jax.jit(lambda *a: mbj.rms_norm(*a, **options))):
        with pytest.raises(wanted.type) as got:
            entry(*(jax_x, jax_weight), **({} if hasattr(entry, "lower") else options))
        assert str(got.value) == str(wanted.value)


def test_other_arrays_are_refused():
    x = jax.numpy.ones((2, 8))
    with pytest.raises(TypeError, match=r"'x' must be a jax array, got numpy\.ndarray"):
        mbj.rms_norm(F32)
    for entry in (mbj.rms_norm, membound.rms_norm):
        with pytest.raises(TypeError, match=r"'weight' must be a jax array like 'x', got numpy"):
            entry(x, F32[0])
    for argument, value in (("out", x), ("stream", 1), ("device", "cpu")):
        with pytest.raises(TypeError, match=f"rms_norm: argument '{argument}' must be None"):
            membound.rms_norm(x, **{argument: value})


def test_errors_of_the_handler_carry_the_text(one):
    """Python checks first, so only a foreign caller of the target can get here."""
    x = one.array(I32)
    mbj.rms_norm(one.array(F32))
    attributes = {"eps": np.float64(0), "weight_offset": np.float64(0)}
    attributes |= {"rounding": np.int32(0), "rank": np.int32(x.ndim)}
    attributes |= {"operands": np.int32(1), "results": np.int32(1)}
    call = jax_ffi.ffi.ffi_call("membound_rms_norm", jax.ShapeDtypeStruct(x.shape, x.dtype))
    with pytest.raises(Exception, match=r"'x' must be float16, .*got int32"):
        jax.block_until_ready(call(x, **attributes))
    with pytest.raises(Exception, match="attribute 'eps' is missing"):
        jax.block_until_ready(call(x, **{**attributes, "eps": np.int32(7)}))


@pytest.mark.parametrize("weight_dtype", ["float16", "bfloat16", "float32"])
def test_subnormal_numbers_are_kept(one, weight_dtype):
    """XLA flushes them to zero on its CPU threads."""
    x = np.ones((3, 40), np.float32)
    tiny = np.array(3, np.uint16 if weight_dtype != "float32" else np.uint32)
    weight = np.full(40, tiny.view(NUMPY_DTYPES[weight_dtype]))
    assert weight.all()
    out = one.numpy(mbj.rms_norm(one.array(x), one.array(weight)))
    reference.assert_right(out, norms.rms_norm(x, weight, "float32"))


def test_scalars_compile_once():
    x = jax.numpy.ones((3, 8))
    before = jax_norm.jitted_forward._cache_size()
    for eps in (0.25, np.float32(0.25), np.array(0.25)):
        mbj.rms_norm(x, eps=eps)
    assert jax_norm.jitted_forward._cache_size() == before + 1


def test_one_call_orders_after_another(one, seed):
    """XLA's stream is ours: a chain of our calls and JAX's own ops gives the serial result."""
    x, weight = draw(seed, "float32", (256, 1024), (1024,))

    @jax.jit
    def chain(x, weight):
        for _ in range(20):
            x = mbj.rms_norm(x, weight) + x
        return x

    got = one.numpy(chain(one.array(x), one.array(weight)))
    wide, factor = x.astype(np.float64), weight.astype(np.float64)
    for _ in range(20):
        wide = norms.rms_norm(wide, factor, "float64").out.values.astype(np.float64) + wide
    np.testing.assert_allclose(got, wide, rtol=1e-3, atol=1e-3)


def test_nothing_is_registered_before_the_first_call():
    code = (
        "import sys, membound; assert 'jax' not in sys.modules\n"
        "import membound.jax as mbj; from membound.jax import _ffi\n"
        "assert _ffi.register.cache_info().currsize == 0\n"
        "import jax; mbj.rms_norm(jax.numpy.ones(8)); assert _ffi.register.cache_info().currsize"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
