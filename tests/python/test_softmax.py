# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax against its definition, torch's, and bad calls."""

from __future__ import annotations

import array
import itertools

import arrays
import bad_calls
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from bad_calls import Case, f32
from reference import DTYPES, NUMPY_DTYPES
from softmaxes import COLS, draw

import membound
from membound.oracle import softmax as oracle

NOT_JAX = [name for name in FRAMEWORKS if "jax" not in str(name)]


def masks(rng, shape, dtype):
    """Masks of each kind: none, bool per column or row, and additive in each dtype."""
    yield None
    kept = rng.random(shape[-1]) < 0.7
    kept[0] = True
    yield kept
    yield np.array(rng.random((shape[0], 1, shape[2], 1)) < 2, bool)
    narrow = ("float64",) if dtype == "float64" else ("float16", "bfloat16", "float32")
    yield from (draw(rng, (shape[1], 1, shape[-1]), name) for name in narrow)
    yield np.where(kept, 0.0, -np.inf).astype(NUMPY_DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_width_and_mask(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in COLS:
        shape = (2, 3, 2, cols)
        x = draw(rng, shape, dtype, 3.0)
        known = (*one.dtypes, "bool")
        every = [m for m in masks(rng, shape, dtype) if m is None or m.dtype.name in known]
        mask = every[rng.integers(len(every))]
        for given, scale, offset in ((None, 1.0, None), (mask, 0.37, None), (mask, -1.5, cols - 2)):
            right = oracle.softmax(x, dtype, mask=given, scale=scale, causal_offset=offset)
            there = None if given is None else one.array(given)
            y = membound.softmax(one.array(x), there, scale=scale, causal_offset=offset)
            reference.assert_within(one.numpy(y), right)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_wide_rows(name, seed):
    """Rows larger than the cached part, and larger than a block of a GPU."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    for dtype, cols in (("float32", 40001), ("float16", 70000), ("float64", 20480)):
        x = draw(rng, (2, cols), dtype, 4.0)
        kept = rng.random(cols) < 0.9
        for mask in (None, kept):
            right = oracle.softmax(x, dtype, mask=mask)
            there = None if mask is None else one.array(mask)
            y = one.numpy(membound.softmax(one.array(x), there))
            reference.assert_within(y, right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_any_strides_have_the_bits_of_contiguous_arrays(name, dtype, seed):
    """Slices, strided columns, transposed, broadcast, an offset start, in place."""
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 5, 48, 520, 2100):
        base = draw(rng, (6, 2 * cols + 1), dtype)
        for cut in (
            np.s_[::2, :cols],
            np.s_[:, 1 : 2 * cols : 2],
            np.s_[:, 1 : cols + 1],
            np.s_[:1, :cols],
        ):
            there, plain = one.array(base)[cut], one.array(np.ascontiguousarray(base[cut]))
            right = one.numpy(membound.softmax(plain, scale=0.7))
            target = one.array(np.full((*base[cut].shape, 2), np.nan, base.dtype))
            membound.softmax(there, scale=0.7, out=target[..., 1])
            now = one.numpy(target)
            assert np.ascontiguousarray(now[..., 1]).tobytes() == right.tobytes()
            assert np.isnan(now[..., 0].astype(np.float32)).all()
            membound.softmax(there, scale=0.7, out=there)
            assert np.ascontiguousarray(one.numpy(there)).tobytes() == right.tobytes()
            membound.softmax(plain, scale=0.7, out=plain)
            assert one.numpy(plain).tobytes() == right.tobytes()
        transposed = one.permute(one.array(np.ascontiguousarray(base.T)), [1, 0])
        right = one.numpy(membound.softmax(one.array(base)))
        assert one.numpy(membound.softmax(transposed)).tobytes() == right.tobytes()
        row = one.broadcast_to(one.array(base[:1]), (3, 2 * cols + 1))
        assert one.numpy(membound.softmax(row)).tobytes() == np.repeat(right[:1], 3, 0).tobytes()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_the_offset_keeps(name, seed):
    one = framework(name)
    x = draw(np.random.default_rng(seed), (2, 4, 6), "float32")
    poisoned = x.copy()
    for offset in (-9, -4, -1, 0, 2, 4, 5, 7, 2**40, -(2**40)):
        right = oracle.softmax(x, "float32", causal_offset=offset)
        poisoned[:] = np.where(oracle.triangle(x.shape, offset), x, np.nan)  # not to be read
        y = one.numpy(membound.softmax(one.array(poisoned), causal_offset=offset))
        right.values = np.nan_to_num(right.values)
        reference.assert_within(y, right)
    assert one.numpy(membound.softmax(one.array(x), causal_offset=-4)).sum() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_extreme_values(name, dtype):
    one = framework(name, dtype)
    kind = NUMPY_DTYPES[dtype]
    largest = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[dtype]
    inf, nan = np.inf, np.nan
    rows = [
        ([0, -inf, 0, -inf], [0.5, 0, 0.5, 0]),
        ([-inf] * 4, [nan] * 4),
        ([inf, 0, 0, 0], [nan] * 4),
        ([nan, 0, 0, 0], [nan] * 4),
        ([largest, largest, 0, -largest], [0.5, 0.5, 0, 0]),
        ([-largest] * 4, [0.25] * 4),
        ([-1e4, -1e4, -1e4, -inf], [1 / 3, 1 / 3, 1 / 3, 0]),
    ]
    for repeat in (1, 50, 700):  # narrow rows, and rows that are computed in blocks
        x = np.array([one for one, _ in rows], np.float64).repeat(repeat, 1).astype(kind)
        right = np.array([one for _, one in rows]).repeat(repeat, 1) / repeat
        y = one.numpy(membound.softmax(one.array(x))).astype(np.float64)
        tolerance = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
        np.testing.assert_allclose(y, right, rtol=tolerance, atol=6e-8 * (dtype == "float16"))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_a_mask_drops_may_be_anything(name):
    one = framework(name)
    x = np.array([[1, np.nan, 2, np.inf]], np.float32)
    kept = np.array([True, False, True, False])
    y = one.numpy(membound.softmax(one.array(x), one.array(kept)))
    np.testing.assert_allclose(y, [[1 / (1 + np.e), 0, np.e / (1 + np.e), 0]], rtol=1e-6)
    y = one.numpy(membound.softmax(one.array(x), one.array(np.zeros(4, bool))))
    assert np.isnan(y).all()
    x = np.array([[80.0, 0.0, -20.0, -24.0]], np.float32)  # float32 has no smaller than e**-104
    y = one.numpy(membound.softmax(one.array(x)))
    np.testing.assert_allclose(y, [[1, np.exp(-80.0), np.exp(-100.0), 0]], rtol=1e-6, atol=2e-45)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_threads_and_batch(dtype, seed):
    x = draw(np.random.default_rng(seed), (300, 1111), dtype)
    before = membound.cpu_threads()
    many = membound.softmax(x, causal_offset=900)
    try:
        membound.set_cpu_threads(1)
        assert membound.softmax(x, causal_offset=900).tobytes() == many.tobytes()
    finally:
        membound.set_cpu_threads(before)
    assert membound.softmax(x[77:78], causal_offset=977).tobytes() == many[77].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_torch_does_it(dtype, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    query, key = torch.randn(2, 3, 5, 16).to(kind), torch.randn(2, 3, 7, 16).to(kind)
    scores = query @ key.mT
    kept = torch.rand(5, 7) < 0.7
    kept[:, 0] = True
    tolerance = {torch.float64: 1e-14, torch.float32: 2e-6}.get(kind, 1e-2)
    for mask in (None, kept, torch.randn(2, 1, 5, 7).to(kind)):
        eye = torch.eye(7).to(kind).expand(2, 3, 7, 7)
        right = torch.nn.functional.scaled_dot_product_attention(query, key, eye, attn_mask=mask)
        y = membound.softmax(scores, mask, scale=0.25)
        torch.testing.assert_close(y, right, rtol=tolerance, atol=tolerance)
    y = membound.softmax(scores, causal_offset=2)
    dropped = torch.ones(5, 7).tril(2) == 0
    right = torch.softmax(scores.masked_fill(dropped, -torch.inf), -1)
    torch.testing.assert_close(y, right, rtol=tolerance, atol=tolerance)
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.softmax(scores.requires_grad_(), out=torch.empty_like(scores))


def test_no_rows_and_buffers_of_the_standard_library():
    assert membound.softmax(np.ones((0, 4), np.float32)).shape == (0, 4)
    assert membound.softmax(np.ones((3, 0, 4)), causal_offset=0).shape == (3, 0, 4)
    x = memoryview(array.array("d", [0.0, 0.0])).cast("B").cast("d", (1, 2))
    membound.softmax(x, out=x)
    assert x.tolist() == [[0.5, 0.5]]


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    for cols in (96, 4096, 100000):
        x, out = torch.zeros(64, cols, device="cuda"), torch.empty(64, cols, device="cuda")
        membound.softmax(x, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            membound.softmax(x, out=out)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_every_batch_and_layout_on_a_gpu(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    for kind, cols in itertools.product(
        (torch.bfloat16, torch.float32), (16, 1000, 4096, 40000, 300000)
    ):
        x = torch.randn(40, cols, device="cuda").to(kind)
        right = membound.softmax(x)
        assert torch.equal(membound.softmax(x[7:8].clone())[0], right[7])
        shifted = torch.empty(40, cols + 1, device="cuda", dtype=kind)[:, 1:]
        assert torch.equal(membound.softmax(shifted.copy_(x)), right)
        assert torch.equal(membound.softmax(x.mT.contiguous().mT), right)


def overlapping():
    buffer = f32(5, 4)
    return {"x": buffer[:3], "out": buffer[1:4]}


CASES: list[Case] = [
    ("a list", lambda: {"x": [[1.0]]}, TypeError, "x"),
    ("integers", lambda: {"x": np.ones((3, 4), np.int32)}, TypeError, "x"),
    ("no axis", lambda: {"x": np.ones((), np.float32)}, ValueError, "x"),
    ("no columns", lambda: {"x": f32(3, 0)}, ValueError, "x"),
    ("a wide mask", lambda: {"mask": np.ones(4)}, TypeError, "mask"),
    ("an integer mask", lambda: {"mask": np.ones(4, np.int8)}, TypeError, "mask"),
    ("a mask of another shape", lambda: {"mask": f32(3)}, ValueError, "mask"),
    ("a mask of more axes", lambda: {"mask": f32(1, 3, 4)}, ValueError, "mask"),
    ("a mask as a list", lambda: {"mask": [True] * 4}, TypeError, "mask"),
    ("infinite scale", lambda: {"scale": float("inf")}, ValueError, "scale"),
    ("scale of another type", lambda: {"scale": "2"}, TypeError, "scale"),
    ("an offset of a vector", lambda: {"x": f32(4), "causal_offset": 0}, ValueError,
     "causal_offset"),
    ("a broken offset", lambda: {"causal_offset": 0.5}, TypeError, "causal_offset"),
    ("a large offset", lambda: {"causal_offset": 2**70}, ValueError, "causal_offset"),
    ("out of another shape", lambda: {"out": f32(3, 5)}, ValueError, "out"),
    ("out of another dtype", lambda: {"out": np.ones((3, 4))}, TypeError, "out"),
    ("read-only out", lambda: {"out": bad_calls.read_only()}, ValueError, "out"),
    ("overlap", overlapping, ValueError, "out"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    bad_calls.check(membound.softmax, call(), {"x": f32()}, expected, argument)


def test_a_mask_that_is_written():
    buffer = f32(3, 4)
    with pytest.raises(ValueError, match="'out' must not overlap 'mask'"):
        membound.softmax(f32(3, 4), buffer[0], out=buffer)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_one_column_beside_each_other_have_the_bits_of_rows_apart(dtype, seed):
    """The sign of a NaN depends on the instruction set."""
    drawn = np.random.default_rng(seed).standard_normal(100)
    special = [0.0, -0.0, 1e30, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        x = np.array([*special, *drawn]).astype(NUMPY_DTYPES[dtype])
        dy = np.array([*special[::-1], *drawn]).astype(NUMPY_DTYPES[dtype])
    apart = np.zeros((2, len(x), 3), x.dtype)
    apart[0, :, 1], apart[1, :, 1] = x, dy
    y = membound.softmax(x[:, None])
    dx = membound.softmax_backward(dy[:, None], x[:, None], scale=0.5)
    y_apart = membound.softmax(apart[0, :, 1:2])
    dx_apart = membound.softmax_backward(apart[1, :, 1:2], apart[0, :, 1:2], scale=0.5)
    for found, wanted in ((y, y_apart), (dx, dx_apart)):
        numbers = ~np.isnan(wanted)
        assert (np.isnan(found) == ~numbers).all()
        assert found[numbers].tobytes() == wanted[numbers].tobytes()
