# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled class NDArray: exchange without copies, indexing, and every op that takes it."""

from __future__ import annotations

import gc
import weakref

import pytest

import membound as mb
from membound import _core

np = pytest.importorskip("numpy")

DTYPES = [name for name in _core.ARRAY_DTYPES if name != "bfloat16"]


def counted(*shape, dtype="float32"):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_stays_where_it_is(dtype):
    x = counted(4, 6, dtype=dtype)[::-1, ::2]
    nd = _core.array_from(x)
    assert nd.data_ptr == x.ctypes.data
    assert (nd.shape, nd.strides) == (x.shape, tuple(s // x.itemsize for s in x.strides))
    assert nd.dtype == dtype
    for back in (np.from_dlpack(nd), np.asarray(nd), np.asarray(memoryview(nd))):
        assert back.ctypes.data == x.ctypes.data
        assert back.dtype == x.dtype
        assert np.array_equal(back, x)


def test_torch_and_bfloat16():
    torch = pytest.importorskip("torch")
    t = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T
    nd = _core.array_from(t)
    assert nd.data_ptr == t.data_ptr()
    back = torch.from_dlpack(nd)
    assert back.data_ptr() == t.data_ptr()
    assert torch.equal(back, t)
    assert torch.equal(torch.from_dlpack(nd + nd), t + t)
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(nd)


def test_the_owner_lives_as_long_as_a_view():
    x = counted(3)
    held = weakref.ref(x)
    row = _core.array_from(x)[1:]
    del x
    gc.collect()
    assert held() is not None
    assert row.tolist() == [1.0, 2.0]
    del row
    gc.collect()
    assert held() is None


def test_read_only_memory_stays_so():
    x = counted(3)
    x.flags.writeable = False
    nd = _core.array_from(x)
    with pytest.raises(ValueError, match="read-only"):
        nd[0] = 1
    assert not np.from_dlpack(nd).flags.writeable


def test_indexing_like_numpys():
    x = counted(3, 4, 5)
    nd = _core.array_from(x)
    for key in (1, -1, (0, 2), (..., 1), (slice(None, None, -2), None, 3), slice(5, 1, -1), ()):
        assert np.array_equal(np.asarray(nd[key]), x[key])
    for key in (3, (0, 4), (0, 0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            nd[key]
    y = counted(3, 4, 5)
    target = _core.array_from(y)
    target[1, ::-1] = target[1]
    expected = counted(3, 4, 5)
    expected[1, ::-1] = expected[1].copy()
    assert np.array_equal(y, expected)


def test_what_does_not_fit_is_refused():
    nd = _core.array_full((2,), 1, "int8")
    with pytest.raises(ValueError, match="300 does not fit int8"):
        nd[0] = 300
    with pytest.raises(ValueError, match="300 does not fit int8"):
        nd + 300
    with pytest.raises(TypeError):
        nd[0] = 0.5
    with pytest.raises(TypeError):
        nd += 0.5
    with pytest.raises(ValueError, match="share memory"):
        nd.broadcast_to((3, 2))[0] = 1
    with pytest.raises(TypeError, match="must be a dtype"):
        _core.array_empty((1,), "complex64")
    with pytest.raises(TypeError):
        hash(nd)


def test_ops_take_and_return_it():
    x, weight = counted(4, 8) - 16, counted(8)
    y = mb.rms_norm(_core.array_from(x), _core.array_from(weight))
    assert type(y) is _core.NDArray
    assert np.array_equal(np.asarray(y), mb.rms_norm(x, weight))
    out = _core.array_empty((4, 8), "float32")
    assert mb.softmax(_core.array_from(x), out=out) is out
    assert np.array_equal(np.asarray(out), mb.softmax(x))
    codes, scales = mb.rms_norm_quant(_core.array_from(x), _core.array_from(weight), dtype="int8")
    assert (codes.dtype, scales.dtype) == ("int8", "float32")
    with pytest.raises(TypeError, match="must be a membound array"):
        mb.rms_norm(_core.array_from(x), weight)
