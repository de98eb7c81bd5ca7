# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The oracle's formulas against closed forms, torch in float64, and finite differences."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from reference import DTYPES, NUMPY_DTYPES, QUANTISED

from membound import oracle
from membound.oracle import activations, embedding, norms, quantised, rotary, softmax

STEP = 1e-6


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def assert_slopes(function, inputs, gradients, seed):
    """Gradients against central differences of a function of the inputs, which returns a number."""
    along = draw(seed + 1, *(x.shape for x in inputs))
    for at, gradient in enumerate(gradients):
        ends = [[*inputs], [*inputs]]
        for one, sign in zip(ends, (1, -1), strict=True):
            one[at] = one[at] + sign * STEP * along[at]
        slope = (function(*ends[0]) - function(*ends[1])) / (2 * STEP)
        terms = np.asarray(gradient) * along[at]  # some of them cancel, their errors do not
        assert abs(slope - terms.sum()) <= 1e-7 * (1 + np.abs(terms).sum()), at


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_that_of_numpy_and_ml_dtypes(dtype):
    kind = NUMPY_DTYPES[dtype]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    edges = np.float32([0.0, -0.0, 1e-45, 65519.996, 65520, 3e38, np.inf, np.nan])
    values = np.concatenate([bits[np.isfinite(bits)], edges])
    with np.errstate(all="ignore"):
        right = values.astype(kind).astype(np.float64)
    exact = oracle.wide(values.astype(np.float64), dtype)
    np.testing.assert_array_equal(oracle.round_to(exact, dtype), right)
    finite = values[(right != 0) & (np.abs(right) < oracle.FORMATS[dtype][2] / 2)].astype(kind)
    found = oracle.ulps(oracle.wide(finite, dtype), dtype).astype(np.float64)
    np.testing.assert_array_equal(found, np.spacing(np.abs(finite)).astype(np.float64))


@pytest.mark.parametrize(("value", "dtype", "right"), [
    (1 + 2.0**-11, "float16", 1.0), (1 + 3 * 2.0**-11, "float16", 1 + 2.0**-9),
    (1 + 2.0**-8, "bfloat16", 1.0), (1 + 2.0**-8 + 2.0**-40, "bfloat16", 1 + 2.0**-7),
    (-(2.0**-25), "float16", 0.0), (3 * 2.0**-25, "float16", 2.0**-23),
])  # fmt: skip
def test_ties_go_to_even_and_nothing_is_rounded_twice(value, dtype, right):
    assert oracle.round_to(value, dtype) == right


def test_norms_of_known_rows():
    row = np.array([[3.0, 4.0, 0.0, 0.0]])  # its mean of squares is 6.25
    found = norms.rms_norm(row, np.array([1.0, 2.0, 1.0, 1.0]), "float32", eps=0.0)
    np.testing.assert_allclose(found.out.values, [[1.2, 3.2, 0, 0]])
    found = norms.layer_norm(row - 7.0, None, np.ones(4), "float32", eps=0.0)
    root = np.sqrt(6.25 - 1.75**2)
    np.testing.assert_allclose(found.out.values, (row - 1.75) / root + 1)
    np.testing.assert_allclose(found.mean.values, [-5.25])
    z = np.array([[0.0, np.log(3), 0.0, 1.0]])  # silu(log 3) is 3 / 4 log 3
    found = norms.rms_norm_gated(row, z, None, "float32", eps=0.0)
    np.testing.assert_allclose(found.out.values, [[0, 1.6 * 0.75 * np.log(3), 0, 0]])


def test_norms_are_those_of_torch(seed):
    torch = arrays.package("torch")
    x, weight, bias = draw(seed, (4, 33), 33, 33)
    there = [torch.from_numpy(one) for one in (x, weight, bias)]
    functions = torch.nn.functional
    found = norms.rms_norm(x, weight, "float64", eps=1e-3).out.values
    right = functions.rms_norm(there[0], (33,), there[1], 1e-3).numpy()
    np.testing.assert_allclose(found.astype(float), right, 1e-13)
    found = norms.layer_norm(x, weight, bias, "float64", eps=1e-3).out.values
    right = functions.layer_norm(there[0], (33,), *there[1:], 1e-3).numpy()
    np.testing.assert_allclose(found.astype(float), right, 1e-12, 1e-13)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "gate after", "gate before"])
def test_gradients_of_norms(name, seed):
    dy, x, z, weight, bias = draw(seed, *[(3, 7)] * 3, 7, 7)
    gated = {"norm_before_gate": name == "gate after"}

    def forward(x, *rest):
        if name == "layer_norm":
            return norms.layer_norm(x, *rest, "float32", weight_offset=1.0)
        if name == "rms_norm":
            return norms.rms_norm(x, *rest, "float32", weight_offset=1.0)
        return norms.rms_norm_gated(x, *rest, "float32", weight_offset=1.0, **gated)

    inputs = {"rms_norm": [x, weight], "layer_norm": [x, weight, bias]}.get(name, [x, z, weight])
    found = forward(*inputs)
    mean, rstd = found.mean.values, found.rstd.values
    options = {"weight_offset": 1.0}
    if name == "rms_norm":
        gradients = norms.rms_norm_backward(dy, x, weight, rstd, "float32", **options)
    elif name == "layer_norm":
        gradients = norms.layer_norm_backward(dy, x, weight, mean, rstd, "float32", **options)
    else:
        options |= gated
        gradients = norms.rms_norm_gated_backward(dy, x, z, weight, rstd, "float32", **options)

    def value(*inputs):
        return (forward(*inputs).out.values * dy).sum()

    assert_slopes(value, inputs, [one.values for one in gradients], seed)


def test_rotations_are_products_of_complex_numbers(seed):
    (x,) = draw(seed, (2, 3, 2, 10))
    angles = draw(seed + 2, (2, 3, 4))[0]
    turn = np.exp(1j * angles)[:, :, None]
    for interleaved in (False, True):
        rotation = rotary.Rotation(np.cos(angles), np.sin(angles), interleaved, 1)
        first, second = (
            (slice(1, 9, 2), slice(2, 9, 2)) if interleaved else (slice(1, 5), slice(5, 9))
        )
        right = (x[..., first] + 1j * x[..., second]) * turn
        found = rotation(x)
        np.testing.assert_allclose(found[..., first] + 1j * found[..., second], right, 1e-13)
        np.testing.assert_array_equal(found[..., [0, 9]], x[..., [0, 9]])
        np.testing.assert_allclose(rotation(found, inverse=True), x, 1e-12, 1e-13)


def test_gradients_of_rotations(seed):
    x, dy, weight = draw(seed, *[(2, 3, 2, 8)] * 2, (2, 8))
    freqs, positions = rotary.frequencies(8), np.broadcast_to(np.arange(3.0), (2, 3))

    def rotation(freqs):
        angles = positions[..., None] * freqs
        return rotary.Rotation(np.cos(angles), np.sin(angles))

    found = rotary.gradient_of_freqs(dy, x, positions, rotation(freqs))[0]
    assert_slopes(lambda freqs: (rotation(freqs)(x) * dy).sum(), [freqs], [found], seed)

    def normed(x, weight):
        return rotary.NormAndRotation(x, weight, rotation(freqs), offset=1.0)

    found = [one.values for one in normed(x, weight).gradients(dy, "float32")]
    assert_slopes(
        lambda *one: (normed(*one).expected("float32").values * dy).sum(), [x, weight], found, seed
    )
    plain = norms.rms_norm(x, weight, "float32", weight_offset=1.0).out.values
    np.testing.assert_allclose(normed(x, weight).normed, plain, 1e-13)


def test_softmax_of_known_logits(seed):
    logits = np.log([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0]])
    found = softmax.softmax(logits, "float32").values
    np.testing.assert_allclose(found, [[0.125, 0.25, 0.625], [0.375, 0.375, 0.25]])
    found = softmax.softmax(logits, "float32", causal_offset=0).values
    np.testing.assert_allclose(found, [[1, 0, 0], [0.5, 0.5, 0]])
    x, dy = draw(seed, (3, 6), (3, 6))
    y = softmax.softmax(x, "float32", scale=0.7).values
    found = softmax.softmax_backward(dy, y, "float32", scale=0.7).values
    assert_slopes(
        lambda x: (softmax.softmax(x, "float32", scale=0.7).values * dy).sum(), [x], [found], seed
    )


OPTIONS = ({}, {"label_smoothing": 0.2}, {"z_loss": 0.3}, {"softcap": 2.0})


@pytest.mark.parametrize("options", [*OPTIONS, {k: v for one in OPTIONS for k, v in one.items()}])
def test_cross_entropy(options, seed):
    logits, dloss, weight = draw(seed, (4, 6), 4, 6)
    labels, weight = np.array([1, 5, 0, 2]), np.abs(weight)

    def losses(logits):
        return softmax.cross_entropy(logits, labels, "float32", dloss, weight=weight, **options)

    loss, lse, gradient = losses(logits)
    assert_slopes(lambda x: (losses(x)[0].values * dloss).sum(), [logits], [gradient.values], seed)
    cap = options.get("softcap", 0.0)
    capped = cap * np.tanh(logits / cap) if cap else logits
    np.testing.assert_allclose(lse.values, np.log(np.exp(capped).sum(-1)), 1e-13)
    if "z_loss" not in options:
        torch = arrays.package("torch")
        right = torch.nn.functional.cross_entropy(
            *map(torch.from_numpy, (capped, labels, weight)), reduction="none",
            label_smoothing=options.get("label_smoothing", 0.0),
        )  # fmt: skip
        np.testing.assert_allclose(loss.values, right.numpy(), 1e-12)


@pytest.mark.parametrize("kind", activations.KINDS)
def test_activations(kind, seed):
    gate, up, dy = draw(seed, *[(5, 40)] * 3)
    options = {"kind": kind, "limit": 1.5}

    def found(gate, up):
        return activations.gated_activation(gate, up, dy, "float32", **options)

    right = found(gate, up)
    gradients = [right[name].values for name in ("dgate", "dup")]
    assert_slopes(lambda *x: (found(*x)["out"].values * dy).sum(), [gate, up], gradients, seed)
    torch = arrays.package("torch")
    one, functions = torch.from_numpy(gate), torch.nn.functional
    known = {
        "silu": functions.silu, "gelu": functions.gelu, "sigmoid": torch.sigmoid,
        "relu": torch.relu, "relu2": lambda x: torch.relu(x) ** 2,
        "gelu_tanh": lambda x: functions.gelu(x, approximate="tanh"),
        "situ": lambda x: 4 * torch.tanh(x / 4) * torch.sigmoid(x),
    }  # fmt: skip
    value = activations.activation(kind, gate, 4.0 if kind == "situ" else 1.0)[0]
    np.testing.assert_allclose(value, known[kind](one).numpy(), 1e-12, 1e-15)


def test_embeddings_are_products_with_rows_of_the_identity(seed):
    ids = np.array([[3, 12, 4], [3, 9, 3]])
    weight, dy = draw(seed, (6, 5), (2, 3, 5))
    one_hot = (ids[..., None] - 3 == np.arange(6)).astype(float)  # 12 is in no row
    found = embedding.embedding(ids, weight, 1.5, start=3)
    np.testing.assert_allclose(found, one_hot @ weight * 1.5)
    found = embedding.embedding_backward(dy, ids, 6, 1.5, start=3, padding=4)
    right = np.einsum("btv,btd->vd", one_hot, dy) * 1.5
    right[1] = 0
    np.testing.assert_allclose(found, right, 1e-13)
    found = embedding.embedding_backward(dy, ids, 6, start=3, by_frequency=True)
    np.testing.assert_allclose(found[0], right[0] / 1.5 / 3, 1e-13)
    many = draw(seed, (700, 5))[0]
    found = embedding.embedding_backward(many, np.zeros(700, int), 1)
    np.testing.assert_allclose(found[0], many.sum(0), 1e-12, 1e-12)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_values_are_nearest_of_all_numbers(kind, seed):
    """By search among the 128 codes; of two as near, the even one."""
    known = np.arange(128, dtype=np.uint8).view(QUANTISED[kind]).astype(np.float64)
    known = known[known <= quantised.LIMITS[kind]]
    ties = (known[1:] + known[:-1]) / 2
    (values,) = draw(seed, 4000)
    values = np.concatenate([values * quantised.LIMITS[kind] / 3, values, ties, -ties, [1e9]])
    distance = np.abs(np.minimum(np.abs(values), known[-1])[:, None] - known)
    odd = np.arange(len(known)) % 2
    nearest = np.lexsort((np.broadcast_to(odd, distance.shape), distance))[:, 0]
    np.testing.assert_array_equal(
        quantised.nearest(values, kind), np.copysign(known[nearest], values)
    )
