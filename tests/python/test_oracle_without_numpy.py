# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The oracle on `membound.ndarray` against the oracle on NumPy, and against sums of Python.

This file is also a program: it prints what every formula gives, as JSON.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys

import pytest

from membound import oracle
from membound._elementwise import OPS
from membound._ulps import FORMATS
from membound.oracle import activations, embedding, norms, quantised, rotary, softmax

ROWS, COLS, LABELS = 4, 24, [3, 30, -100, 23]
DTYPES = ("float16", "bfloat16", "float32", "float64")


def draw(count):
    source = random.Random(20251121)
    return [[source.gauss(0.0, 2.0) for _ in range(ROWS * COLS)] for _ in range(count)]


def evaluate(dtype):
    """The results of the formulas by name: Expected, or arrays."""
    np = oracle.np
    arrays = [np.array(one).reshape(ROWS, COLS) for one in draw(4)]
    x, dy, z, w = (oracle.round_to(one, dtype) for one in arrays)
    weight, ids = w[0] * w[0], np.array([[5, 1], [9, 5]])
    gated = {"weight_offset": 1.0, "rounding": "before_weight"}
    forward = {
        "rms_norm": norms.rms_norm(x, weight, dtype, **gated),
        "layer_norm": norms.layer_norm(x, weight, dy[0], dtype, weight_offset=1.0),
        "rms_norm_gated": norms.rms_norm_gated(x, z, weight, dtype, **gated),
        "gate_first": norms.rms_norm_gated(x, z, weight, dtype, norm_before_gate=False),
        "add_rms_norm": norms.add_rms_norm(x, z, weight, dtype)[0],
        "add_layer_norm": norms.add_layer_norm(x, z, weight, None, dtype)[0],
    }
    yield from (
        (f"{name}.{part}", getattr(one, part))
        for name, one in forward.items()
        for part in ("out", "rstd", "mean")
    )
    mean, rstd = norms.statistics(forward["layer_norm"])
    root = norms.statistics(forward["rms_norm"])[1]
    like = oracle.round_to(weight, "float32").astype("float32")
    rows = (dy, x, z, like, root, dtype)
    backward = {
        "rms_norm": norms.rms_norm_backward(dy, x, like, root, dtype, dresidual_out=z, **gated),
        "layer_norm": norms.layer_norm_backward(dy, x, like, mean, rstd, dtype),
        "gated": norms.rms_norm_gated_backward(*rows, **gated),
        "gate_first": norms.rms_norm_gated_backward(*rows, norm_before_gate=False),
        "cross_entropy": softmax.cross_entropy(
            x, np.array(LABELS), dtype, [1.0, 2.0, -0.5, 1.0],
            label_smoothing=0.1, z_loss=0.01, softcap=3.0,
        ),
    }  # fmt: skip
    yield from ((f"{name} {at}", one) for name, of in backward.items() for at, one in enumerate(of))
    yield "softmax", softmax.softmax(x, dtype, mask=z > 0, scale=0.7, causal_offset=20)
    yield "softmax_backward", softmax.softmax_backward(dy, x * x, dtype, scale=0.7)
    for kind in activations.KINDS:
        found = activations.gated_activation(x, z, dy, dtype, kind=kind, limit=1.0)
        yield from ((f"{kind} {name}", one) for name, one in found.items())
    for name, op in OPS.items():
        yield name, oracle.elementwise(op.formula, [dy, x][-len(op.inputs) :], [10.0], dtype)
    yield "embedding", embedding.embedding(ids, x, 1.5, 4, w)
    yield (
        "embedding_backward",
        embedding.embedding_backward(
            np.stack([dy, z] * 40), np.array([[7, 4, 5, 7]] * 80), 6, 1.5, 3, 4, True
        ),
    )
    for kind in quantised.LIMITS:
        numbers, scales = quantised.quantised(x, kind, 7)
        yield from ((f"{kind} numbers", numbers), (f"{kind} scales", scales))
    heads = [one.reshape(1, 3, 2, 16) for one in (x, dy)]
    angles = np.arange(3)[None, :, None] * rotary.frequencies(12)
    for interleaved in (False, True):
        rotation = rotary.Rotation(np.cos(angles), np.sin(angles), interleaved, 2)
        both = rotary.NormAndRotation(heads[0], weight[:16], rotation, offset=1.0)
        yield f"rope {interleaved}", rotary.rope(heads[0], dtype, rotation)
        yield f"qk_norm_rope {interleaved}", both.expected(dtype)
        gradients = both.gradients(heads[1], dtype)
        yield from ((f"of qk {at} {interleaved}", one) for at, one in enumerate(gradients))
        of_freqs = rotary.gradient_of_freqs(*heads[::-1], np.arange(3)[None], rotation)
        yield from ((f"of freqs {at} {interleaved}", one) for at, one in enumerate(of_freqs))


def flat(x):
    return oracle.np.asarray(x).astype("float64").ravel().tolist()


def as_lists(dtype):
    """Each result's shape and candidates, then the magnitudes of its terms."""
    found = {}
    for name, one in evaluate(dtype):
        expected = one if isinstance(one, oracle.Expected) else oracle.Expected([one], dtype)
        terms = oracle.np.broadcast_to(expected.terms, expected.values.shape)
        shape = list(expected.values.shape)
        found[name] = [shape, *map(flat, expected.candidates), flat(terms)]
    return found


@pytest.fixture(scope="module")
def without_numpy():
    code = (
        "import runpy, sys; sys.modules['numpy'] = None; "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, __file__]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def close(found, right, size, relative):
    if math.isnan(right) or math.isinf(right):
        return repr(found) == repr(right)
    return abs(found - right) <= relative * (abs(right) + size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_formulas_give_the_same(dtype, without_numpy):
    right, found = as_lists(dtype), without_numpy[dtype]
    assert found.keys() == right.keys()
    for name, (shape, *lists) in right.items():
        assert found[name][0] == shape, name
        held = (0.0 if math.isnan(value) else abs(value) for value in lists[0])
        sizes = [value + term for value, term in zip(held, lists[-1], strict=True)]
        for own, other in zip(found[name][1:], lists, strict=True):
            pairs = zip(own, other, sizes, strict=True)
            assert all(close(*pair, 1e-13) for pair in pairs), name


def test_the_formulas_without_numpy_are_those_of_python(without_numpy):
    """In correctly rounded sums of the standard library."""
    x, dy, _, w = draw(4)
    found, weight = without_numpy["float64"], [one * one for one in w[:COLS]]
    for at in range(0, ROWS * COLS, COLS):
        row, gradient = x[at : at + COLS], dy[at : at + COLS]
        mean = math.fsum(row) / COLS
        square = math.fsum(one * one for one in row) / COLS
        variance = math.fsum((one - mean) ** 2 for one in row) / COLS
        roots = [1 / math.sqrt(one + 1e-6) for one in (square, variance)]
        pairs = list(zip(row, weight, dy[:COLS], strict=True))
        rms = [one * roots[0] * (1 + by) for one, by, _ in pairs]
        layer = [(one - mean) * roots[1] * (1 + by) + more for one, by, more in pairs]
        dot = math.fsum(d * one * one for d, one in zip(gradient, row, strict=True))
        slopes = [0.7 * one * one * (d - dot) for d, one in zip(gradient, row, strict=True)]
        known = {"rms_norm.out": rms, "layer_norm.out": layer, "softmax_backward": slopes}
        for name, right in known.items():
            _, values, terms = found[name]
            places = slice(at, at + COLS)
            triples = zip(values[places], right, terms[places], strict=True)
            assert all(close(*one, 1e-14) for one in triples), name


def test_the_stand_in_has_the_limits_of_float64(without_numpy):
    assert without_numpy["limits"] == [FORMATS["float64"][2], 2.0**-1022, 2.0**-149]


if __name__ == "__main__":
    np = oracle.np
    values = {dtype: as_lists(dtype) for dtype in DTYPES}
    limits = np.finfo(np.longdouble)
    values["limits"] = [
        limits.max,
        limits.smallest_normal,
        float(oracle.ulps(np.float64(0), "float32")),
    ]
    json.dump(values, sys.stdout)
