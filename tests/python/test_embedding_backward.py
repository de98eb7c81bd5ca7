# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding_backward against the tree of its contract, bit by bit, torch's, and bad calls."""

from __future__ import annotations

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
from membound.oracle.embedding import embedding_backward as definition

DIMS = (1, 3, 8, 64, 96, 257, 1000)
WITHOUT_JAX = [name for name in FRAMEWORKS if "jax" not in str(name)]


def draw(rng, shape, dtype):
    return rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype])


def random_ids(rng, shape, vocab, start=0):
    """Ids of which half are equal, and some outside of the table."""
    ids = rng.integers(start - 2, start + vocab + 2, shape)
    ids = np.where(rng.random(shape) < 0.5, start + vocab // 2, ids)
    return np.asarray(ids, rng.choice(("int32", "int64")))


def same(one, found, right, dtype):
    found = one.numpy(found)
    assert found.dtype == NUMPY_DTYPES[dtype]
    with np.errstate(over="ignore"):
        wanted = np.ascontiguousarray(right.astype(found.dtype))
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_form_has_the_bits_of_the_definition(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    narrow = [d for d in one.dtypes if (d == "float64") == (dtype == "float64")]
    for shape in ((), (1,), (7,), (40, 5), (2, 3, 4), (0, 4), (700,)):
        dim, vocab = int(rng.choice(DIMS)), int(rng.integers(1, 50))
        start = int(rng.integers(0, 2000))
        ids = random_ids(rng, shape, vocab, start)
        dy = draw(rng, (*shape, dim), dtype)
        call = functools.partial(
            membound.embedding_backward, one.array(dy), one.array(ids), vocab, vocab_start=start
        )
        right = functools.partial(definition, dy, ids, vocab, start=start)
        same(one, call(), right(), dtype)
        out = str(rng.choice(narrow))
        same(one, call(dtype=out, scale=0.3), right(scale=0.3), out)
        padding = start + vocab // 2
        options = {"padding_idx": padding, "scale_grad_by_freq": True}
        same(one, call(**options, scale=3.0), right(3.0, padding=padding, by_frequency=True), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_the_sparse_form_has_the_rows_of_the_dense_one(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for tokens, vocab, dim in ((0, 5, 8), (1, 3, 8), (60, 40, 7), (900, 3000, 64), (500, 1, 24)):
        ids, dy = random_ids(rng, (tokens,), vocab, 9), draw(rng, (tokens, dim), dtype)
        options = {"vocab_start": 9, "padding_idx": 10, "scale": 1.5}
        given = one.array(dy), one.array(ids), vocab
        dense = one.numpy(membound.embedding_backward(*given, **options))
        found = membound.embedding_backward(*given, **options, sparse=True)
        made = [one.array(x) for x in (ids, dy, np.array(7))]
        written = membound.embedding_backward(*given, **options, sparse=True, out=tuple(made))
        assert all(x is y for x, y in zip(made, written, strict=True))
        for rows_ids, rows, count in (found, written):
            rows_ids, rows, count = map(one.numpy, (rows_ids, rows, count))
            occur = np.unique(ids[(ids >= 9) & (ids < 9 + vocab) & (ids != 10)])
            assert (count.dtype, count.shape, int(count)) == (np.int64, (), len(occur))
            assert rows_ids.dtype == ids.dtype
            assert rows_ids.tolist() == [*occur, *[8 + vocab] * (tokens - len(occur))]
            assert rows[: len(occur)].tobytes() == dense[occur - 9].tobytes()
            assert rows.shape == (tokens, dim)
            assert not rows[len(occur) :].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_accumulating_touches_the_rows_that_occur_alone(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    narrow = [d for d in one.dtypes if (d == "float64") == (dtype == "float64")]
    for tokens, vocab, dim in ((0, 5, 8), (1, 9, 8), (400, 300, 65), (300, 2, 520)):
        ids, dy = random_ids(rng, (tokens,), vocab), draw(rng, (tokens, dim), dtype)
        for kind in {dtype, str(rng.choice(narrow))}:
            before = draw(rng, (vocab, dim), kind)
            absent = np.setdiff1d(np.arange(vocab), ids)
            before[absent] = np.nan
            right = definition(dy, ids, vocab, 0.7)
            right = before.astype(right.dtype) + right
            out = one.array(before)
            given = one.array(dy), one.array(ids), vocab
            found = membound.embedding_backward(*given, scale=0.7, out=out, accumulate=True)
            assert found is out
            same(one, out, right, kind)
            assert one.numpy(out)[absent].tobytes() == before[absent].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_any_strides_have_the_bits_of_contiguous_arrays(name, dtype, seed):
    """Slices, strided columns, transposed and broadcast ids, results within another array."""
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    for dim in (5, 64, 520):
        ids = random_ids(rng, (60, 4), 19)
        base = one.array(ids.T.copy())
        values = draw(rng, (2 * 60, 4, 2 * dim + 1), dtype)
        there = one.array(values)
        for dy, view in (
            (values[::2, :, :dim], there[::2, :, :dim]),
            (values[:60, :, 1 : 2 * dim : 2], there[:60, :, 1 : 2 * dim : 2]),
            (values[1:61, :, 1 : dim + 1], there[1:61, :, 1 : dim + 1]),
        ):
            target = one.array(np.full((19, 2 * dim), np.nan, kind))
            right = definition(np.ascontiguousarray(dy), ids, 19)
            transposed = one.permute(base, [1, 0])
            membound.embedding_backward(view, transposed, 19, out=target[:, ::2])
            now = one.numpy(target)
            same(one, one.array(now[:, ::2]), right, dtype)
            assert np.isnan(now[:, 1::2].astype(np.float32)).all()
            membound.embedding_backward(view, transposed, 19, scale=2.0, out=target[:, dim:])
            same(one, one.array(one.numpy(target)[:, dim:]), 2 * right, dtype)
        row = one.broadcast_to(base[:, :1], (4, 3))
        found = membound.embedding_backward(there[:4, :3, :dim], row, 19)
        right = definition(values[:4, :3, :dim], np.repeat(ids.T[:, :1], 3, 1), 19)
        same(one, found, right, dtype)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_more_tokens_than_one_block_of_a_gpu_sorts(name, seed):
    """A table with more rows than two radix digits represent is included."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    for tokens, vocab in ((9000, 300), (17000, 40), (20000, 1 << 18)):
        ids = random_ids(rng, (tokens,), vocab)
        dy = draw(rng, (tokens, 8), "float32")
        found = membound.embedding_backward(one.array(dy), one.array(ids), vocab)
        same(one, found, definition(dy, ids, vocab), "float32")
        if one.takes_out:
            sparse = membound.embedding_backward(one.array(dy), one.array(ids), vocab, sparse=True)
            count = int(one.numpy(sparse[2]))
            occur = one.numpy(sparse[0])[:count]
            assert occur.tolist() == np.unique(ids[(ids >= 0) & (ids < vocab)]).tolist()
            assert (one.numpy(sparse[1])[:count] == one.numpy(found)[occur]).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_ids_of_any_size_add_nothing(name):
    one = framework(name)
    far = [2**63 - 1, -(2**63), 2**62, -1, 3, 2**31, -(2**31)]
    dy = one.array(np.ones((len(far), 16), np.float32))
    for options in ({}, {"vocab_start": 4}, {"vocab_start": 2**61}):
        ids = one.array(np.array(far))
        assert not one.numpy(membound.embedding_backward(dy, ids, 3, **options)).any()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_parts_of_the_rows_are_parts_of_the_gradient(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    ids = one.array(rng.integers(0, 30, (40, 9)))
    dy = one.array(draw(rng, (40, 9, 24), "float32"))
    whole = one.numpy(membound.embedding_backward(dy, ids, 30))
    for start in (0, 10, 20):
        part = membound.embedding_backward(dy, ids, 10, vocab_start=start)
        assert one.numpy(part).tobytes() == whole[start : start + 10].tobytes()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_twenty_runs_give_the_same_bits(name, seed):
    one = framework(name, "bfloat16")
    rng = np.random.default_rng(seed)
    ids = one.array(random_ids(rng, (3000,), 100))
    dy = one.array(draw(rng, (3000, 264), "bfloat16"))
    runs = {one.numpy(membound.embedding_backward(dy, ids, 100)).tobytes() for _ in range(20)}
    assert len(runs) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_a_row_do_not_depend_on_threads_and_other_tokens(dtype, seed):
    """Enough for several threads, for non-temporal stores, and for rows split by columns."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 20000, 9000)
    ids[::2] = 777
    dy = draw(rng, (9000, 333), dtype)
    before = membound.cpu_threads()
    many = membound.embedding_backward(dy, ids, 20000)
    try:
        membound.set_cpu_threads(1)
        alone = membound.embedding_backward(dy, ids, 20000)
    finally:
        membound.set_cpu_threads(before)
    assert alone.tobytes() == many.tobytes()
    for one in (777, int(ids[1])):
        tokens = ids == one
        small = membound.embedding_backward(dy[tokens], ids[tokens], 20000, sparse=True)
        assert small[1][0].tobytes() == many[one].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_torch_does_it(dtype, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    weight = torch.randn(60, 48, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(60, (30, 7))
    dy = torch.randn(30, 7, 48).to(getattr(torch, dtype))
    for by_frequency in (False, True):
        out = torch.nn.functional.embedding(
            ids, weight, padding_idx=3, scale_grad_by_freq=by_frequency
        )
        (right,) = torch.autograd.grad(out, weight, dy.double())
        found = membound.embedding_backward(
            dy, ids, 60, padding_idx=3, scale_grad_by_freq=by_frequency
        )
        assert found.dtype == dy.dtype
        eps = torch.finfo(dy.dtype).eps
        torch.testing.assert_close(found.double(), right, rtol=2 * eps, atol=40 * eps)
    rows_ids, rows, _ = membound.embedding_backward(dy, ids, 60, sparse=True)
    added = torch.zeros_like(found).index_add_(0, rows_ids, rows)  # all of it, the zeros too
    assert torch.equal(added, membound.embedding_backward(dy, ids, 60))
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.embedding_backward(dy.requires_grad_(), ids, 60)


def test_values_that_are_not_finite_stay_in_their_rows():
    dy = np.zeros((4, 40), np.float32)
    dy[1], dy[2] = np.inf, np.nan
    found = membound.embedding_backward(dy, np.array([0, 1, 2, 3]), 5, dtype="float16")
    assert np.isinf(found[1]).all()
    assert np.isnan(found[2]).all()
    assert not found[[0, 3, 4]].any()
    negative = membound.embedding_backward(-dy[:1], np.array([2]), 3)
    assert np.signbit(negative[2]).all()
    assert not np.signbit(negative[:2]).any()


def test_validate_looks_at_every_id():
    dy = f32(3, 4)
    good = {"vocab": 5, "validate": True, "vocab_start": 10, "padding_idx": 3}
    membound.embedding_backward(dy, np.array([10, 14, 3]), **good)
    for bad in (9, 15, -1):
        with pytest.raises(ValueError, match=rf"'ids' must hold numbers from 10 to 14, got {bad}"):
            membound.embedding_backward(dy, np.array([10, bad, 12]), **good)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_validate_is_refused_on_a_gpu(name):
    one = framework(name)
    expected = Exception if "jax" in name else ValueError
    with pytest.raises(expected, match="'validate' must be False"):
        one.numpy(membound.embedding_backward(
            one.array(f32(3, 4)), one.array(np.zeros(3, np.int64)), 2, validate=True
        ))  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["dense", "accumulate", "sparse"])
def test_capture_in_a_cuda_graph(form, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    ids = torch.zeros(3000, dtype=torch.int64, device="cuda")
    dy = torch.randn(3000, 512, device="cuda", dtype=torch.bfloat16)
    options = {"accumulate": True} if form == "accumulate" else {"sparse": form == "sparse"}
    outs = torch.zeros(1000, 512, device="cuda", dtype=torch.bfloat16)
    if form == "sparse":
        outs = (ids.clone(), dy.clone(), torch.zeros((), dtype=torch.int64, device="cuda"))
    call = functools.partial(membound.embedding_backward, dy, ids, 1000, **options, out=outs)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    ids.random_(1000)
    wanted = membound.embedding_backward(dy, ids, 1000, sparse=form == "sparse")
    if form == "accumulate":
        outs.zero_()
    graph.replay()
    pairs = zip(outs, wanted, strict=True) if form == "sparse" else [(outs, wanted)]
    assert all(torch.equal(found, right) for found, right in pairs)


def overlapping():
    buffer = f32(8, 4)
    return {"dy": buffer[:2], "out": buffer[1:6]}


def sparse_out(**changed):
    made = {"ids": np.zeros(2, np.int64), "rows": f32(2, 4), "count": np.zeros((), np.int64)}
    return {"sparse": True, "out": tuple({**made, **changed}.values())}


ZEROS = functools.partial(np.zeros, dtype=np.int64)
CASES: list[Case] = [
    ("a list", lambda: {"dy": [[1.0]]}, TypeError, "dy"),
    ("ids as a list", lambda: {"ids": [1, 2]}, TypeError, "ids"),
    ("floating ids", lambda: {"ids": f32(2)}, TypeError, "ids"),
    ("ids of another shape", lambda: {"ids": ZEROS(3)}, ValueError, "ids"),
    ("ids of another rank", lambda: {"ids": ZEROS((2, 4))}, ValueError, "ids"),
    ("integer dy", lambda: {"dy": np.ones((2, 4), np.int32)}, TypeError, "dy"),
    ("a number", lambda: {"dy": np.array(1, np.float32)}, ValueError, "dy"),
    ("no columns", lambda: {"dy": f32(2, 4)[:, :0]}, ValueError, "dy"),
    ("no rows", lambda: {"vocab": 0}, ValueError, "vocab"),
    ("too many rows", lambda: {"vocab": 2**31 - 1}, ValueError, "vocab"),
    ("a broken number of rows", lambda: {"vocab": 5.0}, TypeError, "vocab"),
    ("out of another shape", lambda: {"out": f32(5, 5)}, ValueError, "out"),
    ("out of other rows", lambda: {"out": f32(4, 4)}, ValueError, "out"),
    ("wide out", lambda: {"out": np.ones((5, 4))}, TypeError, "out"),
    ("wide dtype", lambda: {"dtype": "float64"}, TypeError, "dtype"),
    ("no dtype", lambda: {"dtype": "int32"}, TypeError, "dtype"),
    ("another dtype", lambda: {"dtype": "float16", "out": f32(5, 4)}, TypeError, "out"),
    ("overlap", overlapping, ValueError, "out"),
    ("read-only out", lambda: {"vocab": 3, "out": bad_calls.read_only()}, ValueError, "out"),
    ("infinite scale", lambda: {"scale": float("inf")}, ValueError, "scale"),
    ("negative start", lambda: {"vocab_start": -1}, ValueError, "vocab_start"),
    ("a start that overflows", lambda: {"vocab_start": 2**63 - 1}, ValueError, "vocab_start"),
    ("padding before the table", lambda: {"padding_idx": -10_000}, ValueError, "padding_idx"),
    (
        "padding of a part",
        lambda: {"padding_idx": -1, "vocab_start": 2},
        ValueError,
        "padding_idx",
    ),
    ("frequency", lambda: {"scale_grad_by_freq": 1}, TypeError, "scale_grad_by_freq"),
    ("accumulating into nothing", lambda: {"accumulate": True}, ValueError, "out"),
    ("an array for three", lambda: {"sparse": True, "out": f32(2, 4)}, TypeError, "out"),
    ("two for three", lambda: {"sparse": True, "out": (None, None)}, TypeError, "out"),
    ("rows of a table", lambda: sparse_out(rows=f32(5, 4)), ValueError, "rows"),
    ("few ids", lambda: sparse_out(ids=ZEROS(1)), ValueError, "rows_ids"),
    ("narrow ids", lambda: sparse_out(ids=np.zeros(2, np.int32)), TypeError, "rows_ids"),
    ("a count with an axis", lambda: sparse_out(count=ZEROS(1)), ValueError, "count"),
    ("both", lambda: {"accumulate": True, **sparse_out()}, ValueError, "accumulate"),
    (
        "ids that do not fit",
        lambda: {"sparse": True, "ids": np.zeros(2, np.int32), "vocab_start": 2**31 - 3},
        ValueError,
        "ids",
    ),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    good = {"dy": f32(2, 4), "ids": np.array([1, 0]), "vocab": 5}
    bad_calls.check(membound.embedding_backward, call(), good, expected, argument)
