# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Large results on the CPU, written with non-temporal stores, have the bits of calls with few rows;
transposed arrays, computed by tiled transposes through a buffer, have those of contiguous ones.

Rows of 1000 columns are aligned to vectors in some dtypes, rows of 1001 are unaligned; results in
place use ordinary stores.
"""

from __future__ import annotations

import numpy as np
import pytest
from arrays import DTYPES, NUMPY_DTYPES

import membound

LARGE = (16 << 20) + 1  # bytes: more than half of the largest cache that is considered
PERIOD = 97  # random rows; all others repeat them


def _tables(x):
    tokens = len(x)
    angles = np.arange(PERIOD, dtype=np.float32)[:, None] * np.linspace(1, 0.01, x.shape[1] // 2)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return [np.tile(f(angles), (tokens // PERIOD, 1)).astype(wide) for f in (np.cos, np.sin)]


def _rope(x, _y, _dy):
    cos, sin = _tables(x)
    return [membound.rope(x[None, :, None], cos=cos, sin=sin)]


def _qk_norm_rope(x, _y, _dy):
    cos, sin = _tables(x)
    return [membound.qk_norm_rope(x[None, :, None], None, _weight(x), cos=cos, sin=sin)]


def _qk_norm_rope_backward(x, _y, dy):
    cos, sin = _tables(x)
    dq, q = (one[None, :, None] for one in (dy, x))
    found = membound.qk_norm_rope_backward(
        dq, None, q, None, _weight(x), cos=cos, sin=sin, need_dweight=False
    )
    return found[:1]


def _cross_entropy(x, _y, _dy):
    labels = np.resize(np.arange(PERIOD) * 10 % x.shape[1], len(x))
    dlogits = np.empty_like(x)
    return [*membound.cross_entropy(x, labels, return_lse=True, dlogits=dlogits), dlogits]


def _weight(x):
    return np.linspace(0.5, 1.5, x.shape[1]).astype(x.dtype)


CALLS = {
    "rms_norm": lambda x, _y, _dy: [membound.rms_norm(x, _weight(x))],
    "layer_norm": lambda x, _y, _dy: [membound.layer_norm(x, _weight(x), _weight(x))],
    "add_rms_norm": lambda x, y, _dy: membound.add_rms_norm(x, y, _weight(x)),
    "rms_norm_gated": lambda x, y, _dy: [membound.rms_norm_gated(x, y, _weight(x))],
    "gated_activation": lambda x, y, _dy: [membound.gated_activation(x, y)],
    "gated_activation_backward": lambda x, y, dy: membound.gated_activation_backward(dy, x, y),
    "gated_activation_backward, dup": lambda x, y, dy: [
        membound.gated_activation_backward(dy, x, y, need_dgate=False)[1]
    ],
    "softmax": lambda x, _y, _dy: [membound.softmax(x)],
    "softmax_backward": lambda _x, y, dy: [membound.softmax_backward(dy, y)],
    "cross_entropy": _cross_entropy,
    "rope": _rope,
    "qk_norm_rope": _qk_norm_rope,
    "qk_norm_rope_backward": _qk_norm_rope_backward,
}


def _rms_norm_backward(x, _y, dy):
    _, rstd = membound.rms_norm(x, _weight(x), return_rstd=True)
    return membound.rms_norm_backward(dy, x, _weight(x), rstd)


def _layer_norm_backward(x, _y, dy):
    _, mean, rstd = membound.layer_norm(x, _weight(x), return_stats=True)
    return membound.layer_norm_backward(dy, x, _weight(x), mean, rstd)


GRADIENTS = {"rms_norm_backward": _rms_norm_backward, "layer_norm_backward": _layer_norm_backward}


@pytest.mark.parametrize("cols", [1000, 1001])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_large_results_have_the_bits_of_few_rows(call, dtype, cols, seed):
    cols += cols % 2 if "rope" in call else 0  # heads are of even width
    bits = np.dtype(NUMPY_DTYPES[dtype])
    repeats = LARGE // (PERIOD * cols * bits.itemsize) + 1
    drawn = np.random.default_rng(seed).standard_normal((3, PERIOD, cols)).astype(bits)
    few = CALLS[call](*drawn)
    many = CALLS[call](*(np.tile(one, (repeats, 1)) for one in drawn))
    for right, found in zip(few, many, strict=True):
        parts = np.asarray(found).reshape(repeats, -1)
        wanted = np.asarray(right).tobytes()
        assert all(part.tobytes() == wanted for part in parts)


@pytest.mark.parametrize("cols", [3, 250, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", [*CALLS, *GRADIENTS])
def test_transposed_arrays_have_the_bits_of_contiguous_ones(call, dtype, cols, seed):
    cols += cols % 2 if "rope" in call else 0  # heads are of even width
    bits = np.dtype(NUMPY_DTYPES[dtype])
    drawn = np.random.default_rng(seed).standard_normal((3, 2 * PERIOD, cols)).astype(bits)
    function = (CALLS | GRADIENTS)[call]
    wanted = function(*drawn)
    found = function(*(np.asfortranarray(one) for one in drawn))
    for right, result in zip(wanted, found, strict=True):
        assert np.asarray(result).tobytes() == np.asarray(right).tobytes()


@pytest.mark.parametrize("name", ["rms_norm", "softmax"])
def test_transposed_arrays_in_place_and_between_others(name, seed):
    """Every second column of a transposed array; the columns between are unchanged."""
    drawn = np.random.default_rng(seed).standard_normal((150, 90)).astype(np.float32)
    both = np.asfortranarray(np.repeat(drawn, 2, 1))
    call = getattr(membound, name)
    wanted = call(drawn)
    call(both[:, ::2], out=both[:, ::2])
    assert both[:, ::2].tobytes() == wanted.tobytes()
    assert both[:, 1::2].tobytes() == drawn.tobytes()


def test_transposed_arrays_with_a_mask_for_each_row_and_kept_columns(seed):
    """Per-row arguments advance together with the rows in the tile buffer."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 210)).astype(np.float32)
    mask = rng.random((200, 210)) < 0.8
    wanted = membound.softmax(x, mask, causal_offset=5)
    found = membound.softmax(np.asfortranarray(x), mask, causal_offset=5)
    assert np.ascontiguousarray(found).tobytes() == wanted.tobytes()
    assert (wanted[10, 20:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_gates_with_a_scale_for_each_row_in_place(dtype, seed):
    rng = np.random.default_rng(seed)
    bits = np.dtype(NUMPY_DTYPES[dtype])
    gate, up, dy = rng.standard_normal((3, 150, 90)).astype(bits)
    options = {"kind": "gelu", "row_scale": rng.standard_normal(150).astype(_tables(gate)[0].dtype)}
    wanted = membound.gated_activation(gate, up, **options)
    gradients = membound.gated_activation_backward(dy, gate, up, **options)
    g, u, d = (np.asfortranarray(one) for one in (gate, up, dy))
    found = membound.gated_activation_backward(d, g, u, **options, dgate=g.copy("F"), dup=u)
    assert found[1] is u
    for right, result in zip(gradients, found, strict=True):
        assert np.ascontiguousarray(result).tobytes() == right.tobytes()
    assert membound.gated_activation(g, np.asfortranarray(up), **options, out=g) is g
    assert np.ascontiguousarray(g).tobytes() == wanted.tobytes()
