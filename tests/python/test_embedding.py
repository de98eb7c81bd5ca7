# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding against its definition in float64, torch's, and bad calls."""

from __future__ import annotations

import array
import functools

import arrays
import bad_calls
import numpy as np
import pytest
from arrays import FRAMEWORKS, ON_GPU
from arrays import framework_without_device as framework
from bad_calls import Case, f32
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle.embedding import embedding as definition

DIMS = (1, 3, 8, 64, 96, 257, 1000, 4096)
SHAPES = ((), (1,), (7,), (3, 5), (2, 3, 4), (0, 4))


def draw(rng, shape, dtype):
    return rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype])


def same(one, out, right, dtype):
    found = one.numpy(out)
    assert found.dtype == NUMPY_DTYPES[dtype]
    with np.errstate(over="ignore"):
        wanted = right.astype(found.dtype)
    assert found.shape == wanted.shape
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_form_has_the_bits_of_the_definition(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    narrow = [d for d in one.dtypes if (d == "float64") == (dtype == "float64")]
    for shape in SHAPES:
        dim, vocab = int(rng.choice(DIMS)), int(rng.integers(1, 50))
        start = int(rng.integers(0, 2000))
        ids = start + rng.integers(-2, vocab + 2, shape)
        ids = np.asarray(ids, rng.choice(("int32", "int64")))
        weight, position_weight = draw(rng, (vocab, dim), dtype), draw(rng, (4, dim), dtype)
        position_ids = np.asarray(rng.integers(-1, 5, shape), rng.choice(("int32", "int64")))
        given = [one.array(x) for x in (ids, weight)]
        more = one.array(position_weight)
        call = functools.partial(membound.embedding, *given, vocab_start=start)
        same(one, call(), definition(ids, weight, start=start), dtype)
        same(one, call(scale=0.3), definition(ids, weight, 0.3, start), dtype)
        out = str(rng.choice(narrow))
        right = definition(ids, weight, start=start)
        same(one, call(dtype=out, padding_idx=0), right, out)
        right = definition(ids, weight, 1.5, start, position_weight, position_ids)
        options = {"scale": 1.5, "position_weight": more}
        same(one, call(**options, position_ids=one.array(position_ids)), right, dtype)
        if shape:
            right = definition(ids, weight, 1.5, start, position_weight)
            same(one, call(**options, dtype=out), right, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" not in str(name)])
def test_any_strides_have_the_bits_of_contiguous_arrays(name, dtype, seed):
    """Slices, strided columns, transposed and broadcast ids, an offset start."""
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for dim in (5, 64, 520):
        ids = rng.integers(0, 19, (6, 4))
        table, base = draw(rng, (2 * 19, 2 * dim + 1), dtype), one.array(ids.T.copy())
        there = one.array(table)
        for weight, view in (
            (table[::2, :dim], there[::2, :dim]),
            (table[:19, 1 : 2 * dim : 2], there[:19, 1 : 2 * dim : 2]),
            (table[1:20, 1 : dim + 1], there[1:20, 1 : dim + 1]),
        ):
            kind = NUMPY_DTYPES[dtype]
            target = one.array(np.full((6, 4, 2 * dim), np.nan, kind))
            right = definition(ids, np.ascontiguousarray(weight))
            transposed = one.permute(base, [1, 0])
            membound.embedding(transposed, view, out=target[..., ::2])
            now = one.numpy(target)
            assert now[..., ::2].tobytes() == right.astype(kind).tobytes()
            assert np.isnan(now[..., 1::2].astype(np.float32)).all()
            membound.embedding(transposed, view, scale=2.0, out=target[..., dim:])
            wide = one.numpy(target)[..., dim:]
            assert wide.tobytes() == (2 * right).astype(kind).tobytes()
            target = one.array(np.full((6, 4, 2 * dim + 1), np.nan, kind))
            membound.embedding(transposed, view, out=target[..., dim : 2 * dim])
            now = one.numpy(target).astype(np.float64)
            assert now[..., dim : 2 * dim].tobytes() == right.astype(np.float64).tobytes()
            assert np.isnan(now[..., :dim]).all()
            assert np.isnan(now[..., 2 * dim :]).all()
        row = one.broadcast_to(base[:, :1], (4, 3))
        out = membound.embedding(row, there[:19, :dim])
        assert one.numpy(out).tobytes() == table[np.repeat(ids.T[:, :1], 3, 1), :dim].tobytes()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_ids_and_positions_of_any_size_read_nothing(name):
    one = framework(name)
    weight = one.array(np.ones((3, 16), np.float32))
    far = [2**63 - 1, -(2**63), 2**62, -1, 3, 2**31, -(2**31)]
    for ids in (np.array(far), np.array([2**31 - 1, -(2**31), 3], np.int32)):
        for options in ({}, {"vocab_start": 4}, {"scale": 2.0}, {"vocab_start": 2**61}):
            assert not one.numpy(membound.embedding(one.array(ids), weight, **options)).any()
        zeros = one.array(np.zeros(ids.shape, ids.dtype))
        positions = {"position_weight": weight, "position_ids": one.array(ids)}
        assert (one.numpy(membound.embedding(zeros, weight, **positions)) == 1).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_parts_of_the_rows_add_up(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    weight, more = draw(rng, (30, 24), "float32"), one.array(draw(rng, (9, 24), "float32"))
    ids = one.array(rng.integers(0, 30, (4, 9)))
    whole = membound.embedding(ids, one.array(weight), scale=3.0, position_weight=more)
    parts = [
        membound.embedding(
            ids, one.array(weight[at : at + 10]), scale=3.0, position_weight=more, vocab_start=at
        )
        for at in (0, 10, 20)
    ]
    np.testing.assert_array_equal(one.numpy(parts[0] + parts[1] + parts[2]), one.numpy(whole))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_keeps_the_bits_of_a_nan_and_a_conversion_a_nan(dtype):
    size = NUMPY_DTYPES[dtype].itemsize
    bits = np.full((3, 40), np.iinfo(f"u{size}").max >> 1, f"u{size}")
    weight = bits.view(NUMPY_DTYPES[dtype])
    for table in (weight, np.asfortranarray(weight)):
        out = membound.embedding(np.array([2, 0, 1, 1]), table)
        assert (out.view(f"u{size}") == bits[0, 0]).all()
    for target in DTYPES if dtype != "float64" else ():
        if target not in (dtype, "float64"):
            out = membound.embedding(np.array([1]), weight, dtype=target)
            assert np.isnan(out.astype(np.float32)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_threads_and_batch(dtype, seed):
    """Enough rows for several threads and for non-temporal stores."""
    rng = np.random.default_rng(seed)
    weight, ids = draw(rng, (500, 333), dtype), rng.integers(0, 500, 40000)
    before = membound.cpu_threads()
    many = membound.embedding(ids, weight, scale=0.7)
    plain = membound.embedding(ids, weight)
    try:
        membound.set_cpu_threads(1)
        np.testing.assert_array_equal(membound.embedding(ids, weight, scale=0.7), many)
    finally:
        membound.set_cpu_threads(before)
    assert membound.embedding(ids[77:78], weight, scale=0.7).tobytes() == many[77].tobytes()
    assert plain.tobytes() == weight[ids].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_torch_does_it(dtype, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    weight = torch.randn(60, 48).to(getattr(torch, dtype))
    ids = torch.randint(60, (3, 7), dtype=torch.int32)
    right = torch.nn.functional.embedding(ids, weight, padding_idx=3)
    assert torch.equal(membound.embedding(ids, weight, padding_idx=3), right)
    more = torch.randn(7, 48).to(weight.dtype)
    assert torch.equal(membound.embedding(ids, weight, position_weight=more), right + more)
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.embedding(ids, weight.requires_grad_(), out=torch.empty_like(right))


def test_buffers_of_the_standard_library():
    ids = memoryview(array.array("q", [1, 0]))
    weight = memoryview(array.array("f", [1, 2, 3, 4])).cast("B").cast("f", (2, 2))
    out = memoryview(array.array("f", [0] * 4)).cast("B").cast("f", (2, 2))
    membound.embedding(ids, weight, out=out)
    assert out.tolist() == [[3, 4], [1, 2]]


def test_validate_looks_at_every_id_and_position():
    weight, more = f32(5, 4), f32(3, 4)
    good = {"weight": weight, "position_weight": more, "validate": True, "vocab_start": 10}
    ids = np.array([[10, 14, 12]])
    membound.embedding(ids, **good)
    for bad in (9, 15, -1):
        with pytest.raises(ValueError, match=rf"'ids' must hold numbers from 10 to 14, got {bad}"):
            membound.embedding(np.array([[10, bad, 12]]), **good)
    with pytest.raises(ValueError, match="'position_ids' must hold numbers from 0 to 2, got 3"):
        membound.embedding(ids, **good, position_ids=np.array([[0, 2, 3]]))
    with pytest.raises(ValueError, match=r"'position_weight' must have a row .* to 2, got 3"):
        membound.embedding(np.array([10, 11, 12, 10]), **good)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_validate_is_refused_on_a_gpu(name):
    one = framework(name)
    expected = Exception if "jax" in name else ValueError
    with pytest.raises(expected, match="'validate' must be False"):
        one.numpy(membound.embedding(
            one.array(np.zeros(3, np.int64)), one.array(f32(2, 4)), validate=True
        ))  # fmt: skip


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    weight = torch.randn(1000, 512, device="cuda", dtype=torch.bfloat16)
    ids = torch.zeros(64, dtype=torch.int64, device="cuda")
    out = torch.empty(64, 512, device="cuda", dtype=torch.bfloat16)
    membound.embedding(ids, weight, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        membound.embedding(ids, weight, out=out)
    ids.random_(1000)
    graph.replay()
    assert torch.equal(out, weight[ids])


@pytest.mark.gpu
def test_more_than_four_gi_elements(seed):
    torch = arrays.package("torch")
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("too little memory")
    rows, dim = (1 << 32) // 4096 + 3, 4096
    weight = torch.zeros(rows, dim, device="cuda", dtype=torch.bfloat16)
    weight[-1] = 3
    ids = torch.full((rows,), rows - 1, device="cuda")
    out = membound.embedding(ids, weight)
    assert (out[-1] == 3).all()
    assert (out[rows // 2] == 3).all()


def overlapping():
    buffer = f32(8, 4)
    return {"weight": buffer[:5], "out": buffer[3:5]}


CASES: list[Case] = [
    ("a list", lambda: {"weight": [[1.0]]}, TypeError, "weight"),
    ("ids as a list", lambda: {"ids": [1, 2]}, TypeError, "ids"),
    ("floating ids", lambda: {"ids": f32(2)}, TypeError, "ids"),
    ("16-bit ids", lambda: {"ids": np.zeros(2, np.int16)}, TypeError, "ids"),
    ("integer weight", lambda: {"weight": np.ones((2, 4), np.int32)}, TypeError, "weight"),
    ("a vector", lambda: {"weight": f32(4)}, ValueError, "weight"),
    ("no rows", lambda: {"weight": f32(2, 4)[:0]}, ValueError, "weight"),
    ("out of another shape", lambda: {"out": f32(2, 5)}, ValueError, "out"),
    ("out of another rank", lambda: {"out": f32(2, 1, 4)}, ValueError, "out"),
    ("wide out", lambda: {"out": np.ones((2, 4))}, TypeError, "out"),
    ("wide dtype", lambda: {"dtype": "float64"}, TypeError, "dtype"),
    ("no dtype", lambda: {"dtype": "int32"}, TypeError, "dtype"),
    ("another dtype", lambda: {"dtype": "float16", "out": f32(2, 4)}, TypeError, "out"),
    ("overlap", overlapping, ValueError, "out"),
    ("read-only out", lambda: {"out": bad_calls.read_only()[:2]}, ValueError, "out"),
    ("infinite scale", lambda: {"scale": float("inf")}, ValueError, "scale"),
    ("scale of another type", lambda: {"scale": "2"}, TypeError, "scale"),
    ("negative start", lambda: {"vocab_start": -1}, ValueError, "vocab_start"),
    ("a start that overflows", lambda: {"vocab_start": 2**63 - 1}, ValueError, "vocab_start"),
    ("a broken start", lambda: {"vocab_start": 1.5}, TypeError, "vocab_start"),
    ("padding before the table", lambda: {"padding_idx": -10_000}, ValueError, "padding_idx"),
    (
        "padding of a part",
        lambda: {"padding_idx": -1, "vocab_start": 2},
        ValueError,
        "padding_idx",
    ),
    ("validate", lambda: {"validate": 1}, TypeError, "validate"),
    ("positions alone", lambda: {"position_ids": np.zeros(2, int)}, ValueError, "position_ids"),
    ("narrow positions", lambda: {"position_weight": f32(9, 3)}, ValueError, "position_weight"),
    ("wide positions", lambda: {"position_weight": np.ones((9, 4))}, TypeError, "position_weight"),
    (
        "position_ids of another shape",
        lambda: {"position_weight": f32(9, 4), "position_ids": np.zeros(3, int)},
        ValueError,
        "position_ids",
    ),
    (
        "a place of no axis",
        lambda: {"ids": np.array(1), "position_weight": f32(9, 4)},
        ValueError,
        "position_ids",
    ),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    good = {"ids": np.array([1, 0]), "weight": f32(5, 4)}
    bad_calls.check(membound.embedding, call(), good, expected, argument)


def test_a_negative_padding_counts_from_the_end():
    """A negative padding_idx means the same as in torch, in every function and framework."""
    ids, dy = np.array([0, 3, 4, 3]), np.ones((4, 6), np.float32)
    for sparse in (False, True):
        pair = [
            membound.embedding_backward(dy, ids, 5, padding_idx=p, sparse=sparse) for p in (-2, 3)
        ]
        for got, expected in zip(*pair, strict=True):
            np.testing.assert_array_equal(got, expected)
    table = np.ones((5, 6), np.float32)
    np.testing.assert_array_equal(membound.embedding(ids, table, padding_idx=-5), table[ids])
