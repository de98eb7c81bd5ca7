# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope_backward: the transpose of rope, and the gradient of the frequencies."""

from __future__ import annotations

import subprocess
import sys

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from reference import DTYPES, NUMPY_DTYPES
from rotary import draw

import membound

# Options of one layout each.
CASES = {
    "halves apart": {},
    "interleaved": {"interleaved": True},
    "part of a head": {"rotary_dim": 16, "rotary_offset": 8},
    "sequences": {"layout": "thd", "cu_seqlens": np.array([0, 2, 7], np.int32)},
    "ids": {"position_ids": np.array([[3, 0, 11, 90, 4, 4, 1]])},
    "sections": {
        "sections": (3, 5, 8),
        "position_ids": np.arange(3 * 7).reshape(3, 1, 7) % 11,
    },
    "inverse": {"inverse": True, "seqlen_offsets": 5},
    "heads first": {"layout": "bhsd", "attention_scaling": 1.5},
}


def framework(name):
    one = arrays.framework(name)
    if one.options:
        pytest.skip("it takes no device")
    return one


def case_of(name, rng, dtype="float64"):
    """q, k, frequencies and options; the right layout for each case."""
    options = dict(CASES[name])
    shapes = [(1, 7, heads, 32) for heads in (3, 2)]
    q, k = (draw(rng, shape, dtype) for shape in shapes)
    layout = options.get("layout", "bshd")
    q, k = (np.ascontiguousarray(rotary.to_layout(x, layout)) for x in (q, k))
    freqs = rotary.frequencies(options.get("rotary_dim", 32), base=50.0)
    return q, k, freqs, options


def put(one, options):
    return {
        name: one.array(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_finite_differences(case, seed):
    """In float64, of a random sum of the results, along random directions."""
    rng = np.random.default_rng(seed)
    q, k, freqs, options = case_of(case, rng)
    dq, dk = rng.standard_normal(q.shape), rng.standard_normal(k.shape)

    def loss(q, k, freqs):
        out, k_out = membound.rope(q, k, freqs=freqs, **options)
        return (out * dq).sum() + (k_out * dk).sum()

    found = membound.rope_backward(dq, dk, q=q, k=k, freqs=freqs, **options)
    for at, gradient in enumerate(found):
        direction = rng.standard_normal(gradient.shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = [q, k, freqs]
            moved[at] = moved[at] + sign * step * direction
            ends.append(loss(*moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        terms = gradient * direction  # some of them cancel, their errors do not
        assert slope == pytest.approx(terms.sum(), abs=1e-6 * (1 + np.abs(terms).sum()))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_bits_of_rope_the_other_way_round(name, dtype, case, seed):
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    q, k, freqs, options = case_of(case, rng, dtype)
    back = {**options, "inverse": not options.get("inverse", False)}
    given, back = put(one, options), put(one, back)
    q, k, freqs = (one.array(x) for x in (q, k, freqs))
    found = membound.rope_backward(q, k, freqs=freqs, **given)
    wanted = membound.rope(q, k, freqs=freqs, **back)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(a), one.numpy(b))
    alone = membound.rope_backward(q, freqs=freqs, **given)
    np.testing.assert_array_equal(one.numpy(alone), one.numpy(wanted[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_gradient_of_frequencies_of_many_tokens(name, dtype, seed):
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    shape = (2, 300, 3, 160)
    x, dy = (draw(rng, shape, dtype) for _ in range(2))
    freqs = rotary.frequencies(160).astype("float64" if dtype == "float64" else "float32")
    dx, dfreqs = (one.numpy(found) for found in membound.rope_backward(
        one.array(dy), q=one.array(x), freqs=one.array(freqs)
    ))  # fmt: skip
    assert dfreqs.dtype == freqs.dtype
    x, dx = x.astype(np.float64), dx.astype(np.float64)
    terms = x[..., :80] * dx[..., 80:], x[..., 80:] * dx[..., :80]
    positions = np.arange(300)[None, :, None, None]
    right = (positions * (terms[0] - terms[1])).sum((0, 1, 2))
    size = (positions * (np.abs(terms[0]) + np.abs(terms[1]))).sum((0, 1, 2))
    eps = 2.0**-52 if dtype == "float64" else 2.0**-23
    assert (np.abs(dfreqs - right) <= 2 * eps * size).all()


def test_in_place_and_into_given_arrays(seed):
    rng = np.random.default_rng(seed)
    q, k, freqs, _ = case_of("halves apart", rng)
    dq, dk = rng.standard_normal(q.shape), rng.standard_normal(k.shape)
    right = membound.rope_backward(dq, dk, q=q, k=k, freqs=freqs)
    dfreqs = np.empty(2 * freqs.size)[::2]
    found = membound.rope_backward(
        dq, dk, q=q, k=k, freqs=freqs, dq_out=dq, dk_out=dk, dfreqs=dfreqs
    )
    assert found[0] is dq
    assert found[1] is dk
    assert found[2] is dfreqs
    for a, b in zip(found, right, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_bits_for_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    x, dy = (draw(rng, (2, 500, 4, 64), "float32") for _ in range(2))
    results = []
    for threads in (1, 3):
        membound.set_cpu_threads(threads)
        results.append(membound.rope_backward(dy, q=x, freqs=rotary.frequencies(64)))
    membound.set_cpu_threads(0)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_gradient_of_frequencies_sums_heads_in_float64(name, dtype):
    """Terms of 1e8, 1 and -1e8, which float32 adds up to nothing."""
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    scale = 1e4 if dtype in ("float16", "bfloat16") else 1e8
    x, dy = np.zeros((2, 1, 1, 3, 2))
    x[0, 0, :, 0], dy[0, 0, :, 1] = (scale, 1, scale), (1e4, 1, -1e4)
    kind = NUMPY_DTYPES[dtype]
    freqs = one.array(np.zeros(1, "float64" if dtype == "float64" else "float32"))
    _, dfreqs = membound.rope_backward(
        one.array(dy.astype(kind)), q=one.array(x.astype(kind)), freqs=freqs, seqlen_offsets=1
    )
    np.testing.assert_array_equal(one.numpy(dfreqs), [1])


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
def test_out_of_memory_has_written_nothing():
    code = """
import resource
import numpy as np
import membound
membound.set_cpu_threads(1)
q = np.ones((1, 1, 1, 1 << 19), np.float32)
out, freqs, dfreqs = np.full_like(q, 7), np.ones(1 << 18), np.ones(1 << 18)
membound.rope_backward(q[..., :2], q=q[..., :2], freqs=freqs[:1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), -1))
try:
    membound.rope_backward(q, q=q, freqs=freqs, dfreqs=dfreqs, dq_out=out)
except MemoryError:
    print((out == 7).all() and (dfreqs == 1).all())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1:] == ["True"]
