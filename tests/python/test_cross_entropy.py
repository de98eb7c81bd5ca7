# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy against its definition, torch's, and bad calls."""

from __future__ import annotations

import arrays
import bad_calls
import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from bad_calls import Case, f32
from cross_entropies import KINDS, NOT_JAX, assert_gradient, assert_sums, definition, zeros
from reference import DTYPES
from softmaxes import draw

import membound
from membound.oracle import statistics_dtype

COLS = (1, 2, 7, 16, 33, 64, 96, 100, 128, 200, 1000, 2049)


def draw_labels(rng, shape, cols, kind=np.int64):
    """Labels of which some are ignored and some are not columns."""
    labels = rng.integers(0, cols, shape)
    labels = np.where(rng.random(shape) < 0.2, -100, labels)
    return np.where(rng.random(shape) < 0.1, rng.choice((-1, cols, 2**31 - 1)), labels).astype(kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_width_and_option(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in COLS:
        kind = str(rng.choice(list(KINDS)))
        options = KINDS[kind]
        logits = draw(rng, (3, 4, cols), dtype, 2.0)
        labels = draw_labels(rng, (3, 4), cols, rng.choice((np.int32, np.int64)))
        given = one.array(logits), one.array(labels)
        loss, lse, _ = definition(logits, labels, **options)
        found = membound.cross_entropy(*given, **options, return_lse=True)
        assert_sums(one.numpy(found[0]), loss, dtype)
        assert_sums(one.numpy(found[1]).sum(-1), lse, dtype)
        alone = membound.cross_entropy(*given, **options)
        assert one.numpy(alone).tobytes() == one.numpy(found[0]).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_the_gradient_in_the_same_pass(name, dtype, kind, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 5, 96, 1001):
        logits, options = draw(rng, (7, cols), dtype, 2.0), KINDS[kind]
        labels = draw_labels(rng, 7, cols)
        weights = draw(rng, (7,), statistics_dtype(dtype))
        for dloss in (weights, 0.125):
            loss, _, right = definition(logits, labels, dloss, **options)
            there, out = one.array(logits), zeros(one, 7, statistics_dtype(dtype))
            written = zeros(one, (7, cols), dtype)
            given = {"dloss": one.array(dloss) if dloss is weights else dloss, **options}
            membound.cross_entropy(there, one.array(labels), out=out, dlogits=written, **given)
            assert_sums(one.numpy(out), loss, dtype)
            assert_gradient(one.numpy(written), right, dtype, dloss)
            membound.cross_entropy(there, one.array(labels), dlogits=there, **given)
            assert one.numpy(there).tobytes() == one.numpy(written).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_any_strides_have_the_bits_of_contiguous_arrays(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 5, 48, 520, 2100):
        base, labels = draw(rng, (6, 2 * cols + 1), dtype), draw_labels(rng, 6, cols)
        twice = one.array(np.repeat(labels, 2))[::2]
        for cut in (np.s_[:, :cols], np.s_[:, 1 : 2 * cols : 2], np.s_[:, 1 : cols + 1]):
            plain = one.array(np.ascontiguousarray(base[cut]))
            there, written = one.array(base)[cut], zeros(one, (6, cols), dtype)
            right = membound.cross_entropy(plain, one.array(labels), dlogits=written)
            apart = zeros(one, (6, cols, 2), dtype)[..., 1]
            found = membound.cross_entropy(there, twice, dlogits=apart)
            assert one.numpy(found).tobytes() == one.numpy(right).tobytes()
            wanted = one.numpy(written).tobytes()
            assert np.ascontiguousarray(one.numpy(apart)).tobytes() == wanted
            membound.cross_entropy(there, twice, dlogits=there)
            assert np.ascontiguousarray(one.numpy(there)).tobytes() == wanted
        transposed = one.permute(one.array(np.ascontiguousarray(base.T)), [1, 0])
        right = one.numpy(membound.cross_entropy(one.array(base), one.array(labels)))
        assert one.numpy(membound.cross_entropy(transposed, twice)).tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_classes_in_an_axis_before_the_rows(name, dtype, seed):
    """Logits of (batch, classes, positions), as in torch: rows are interleaved."""
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for rows, cols in ((3, 9), (5, 70), (150, 131), (67, 1000)):
        base, labels = draw(rng, (rows, cols), dtype), draw_labels(rng, rows, cols)
        labels[::7] = -100
        labels = one.array(labels)
        written = zeros(one, (rows, cols), dtype)
        right = membound.cross_entropy(one.array(base), labels, dlogits=written)
        wanted = one.numpy(written).tobytes()

        def transposed(values):
            return one.permute(one.array(np.ascontiguousarray(values.T)), [1, 0])

        into = transposed(np.zeros_like(base))
        for logits, dlogits in ((transposed(base), into), (one.array(base), into)):
            found = membound.cross_entropy(logits, labels, dlogits=dlogits)
            assert one.numpy(found).tobytes() == one.numpy(right).tobytes()
            assert np.ascontiguousarray(one.numpy(dlogits)).tobytes() == wanted
        there = transposed(base)
        membound.cross_entropy(there, labels, dlogits=there)
        assert np.ascontiguousarray(one.numpy(there)).tobytes() == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_as_torch_does_it(dtype, smoothing, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    logits = torch.randn(40, 300).to(getattr(torch, dtype))
    labels = torch.randint(300, (40,))
    labels[::5] = 7
    options = {"ignore_index": 7, "label_smoothing": smoothing}
    leaf = logits.double().clone().requires_grad_()
    right = torch.nn.functional.cross_entropy(leaf, labels, reduction="none", **options)
    count = int((labels != 7).sum())
    (right.sum() / count).backward()
    loss = membound.cross_entropy(logits, labels, dlogits=logits, dloss=1 / count, **options)
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    torch.testing.assert_close(loss.double(), right.detach(), rtol=tolerance, atol=tolerance)
    tolerance = {"float64": 1e-12, "float32": 1e-5}.get(dtype, 1e-2)
    torch.testing.assert_close(logits.double(), leaf.grad, rtol=tolerance, atol=tolerance / count)
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.cross_entropy(logits.requires_grad_(), labels, dlogits=torch.empty_like(logits))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_rows_that_do_not_count_are_not_read(name):
    one = framework(name)
    for labels in ([-100, 0, 5], [7, 1, -1], [2**62, 2, -(2**62)]):
        logits = np.array([[np.nan] * 5, [0.0] * 5, [np.nan] * 5], np.float32)
        options = {"ignore_index": 7} if 7 in labels else {}
        given = one.array(logits), one.array(np.array(labels))
        loss, lse = membound.cross_entropy(*given, return_lse=True, **options)
        absent = [
            0.0 if at in (-100, 7) and (at == 7) == bool(options) else np.nan for at in labels
        ]
        rows = [absent[0], np.log(5), absent[2]]
        np.testing.assert_allclose(one.numpy(loss), rows, rtol=1e-6)
        np.testing.assert_allclose(one.numpy(lse).sum(-1), rows, rtol=1e-6)
        gradient = membound.cross_entropy_backward(1.0, *given, lse, **options)
        here = [0.2 - (col == labels[1]) for col in range(5)]
        wanted = [[absent[0]] * 5, here, [absent[2]] * 5]
        np.testing.assert_allclose(one.numpy(gradient), wanted, rtol=1e-6)


def test_finite_differences(seed):
    rng = np.random.default_rng(seed)
    logits, direction = rng.standard_normal((6, 11)), rng.standard_normal((6, 11))
    labels, dloss, step = rng.integers(0, 11, 6), rng.standard_normal(6), 1e-6
    labels[2] = -100
    for options in KINDS.values():
        ahead, behind = (
            membound.cross_entropy(logits + at * direction, labels, **options)
            for at in (step, -step)
        )
        numeric = ((ahead - behind) * dloss).sum() / (2 * step)
        gradient = np.empty_like(logits)
        membound.cross_entropy(logits, labels, dlogits=gradient, dloss=dloss, **options)
        assert abs(numeric - (gradient * direction).sum()) < 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_threads_and_batch(dtype, seed):
    rng = np.random.default_rng(seed)
    logits, labels = draw(rng, (300, 1111), dtype), draw_labels(rng, 300, 1111)
    before, gradient = membound.cpu_threads(), np.empty_like(logits)
    many = membound.cross_entropy(logits, labels, dlogits=gradient)
    again = np.empty_like(logits)
    try:
        membound.set_cpu_threads(1)
        one = membound.cross_entropy(logits, labels, dlogits=again)
    finally:
        membound.set_cpu_threads(before)
    assert one.tobytes() == many.tobytes()
    assert again.tobytes() == gradient.tobytes()
    assert membound.cross_entropy(logits[77:78], labels[77:78]).tobytes() == many[77].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_classes_have_the_bits_of_each_row_alone(dtype, seed):
    """Rows of few classes are computed several at a time, at any position in a batch."""
    rng = np.random.default_rng(seed)
    for cols in (1, 3, 8, 9, 16, 17, 32, 33, 48, 64, 65, 90, 96, 100, 128, 129):
        logits, labels = draw(rng, (137, cols), dtype, 3.0), draw_labels(rng, 137, cols)
        dloss = draw(rng, (137,), statistics_dtype(dtype))
        options = KINDS[str(rng.choice(list(KINDS)))]
        into = np.empty_like(logits)
        loss, lse = membound.cross_entropy(
            logits, labels, return_lse=True, dlogits=into, dloss=dloss, **options
        )
        again = membound.cross_entropy_backward(dloss, logits, labels, lse, **options)
        assert again.tobytes() == into.tobytes()
        for first, last in ((0, 1), (5, 6), (136, 137), (1, 4), (3, 70), (64, 137)):
            part = np.s_[first:last]
            some = np.empty_like(logits[part])
            found = membound.cross_entropy(
                logits[part], labels[part], return_lse=True, dlogits=some, dloss=dloss[part],
                **options,
            )  # fmt: skip
            assert found[0].tobytes() == loss[part].tobytes()
            assert found[1].tobytes() == lse[part].tobytes()
            assert some.tobytes() == into[part].tobytes()


def test_the_logarithm_of_every_sum():
    """Equal logits: the sum of exponentials is their count, exactly."""
    for cols in (*range(1, 300), 1000, 4097, 65537):
        loss = membound.cross_entropy(np.full((3, cols), 7.0), np.zeros(3, np.int64))
        np.testing.assert_array_max_ulp(loss, np.log(np.full(3, float(cols))), 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 3, 40, 100, 300, 5000])
def test_rows_of_infinities_and_nan_leave_others_alone(dtype, cols, seed):
    rng = np.random.default_rng(seed)
    logits, labels = draw(rng, (9, cols), dtype), np.zeros(9, np.int64)
    logits[1], logits[3, cols // 2], logits[4, 0], logits[6, -1] = -np.inf, np.inf, np.nan, -np.inf
    loss, lse = membound.cross_entropy(logits, labels, return_lse=True)
    lse = lse.sum(-1)
    with np.errstate(all="ignore"):
        right, wanted, _ = definition(logits, labels)
    wanted[(logits == -np.inf).all(-1)] = -np.inf
    np.testing.assert_array_equal(np.isnan(loss), np.isnan(right))
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(wanted))
    even = np.isfinite(wanted)
    assert_sums(lse[even], wanted[even], dtype)


def test_one_row_and_no_rows_and_validate():
    loss = membound.cross_entropy(np.zeros(4), np.array(3))
    np.testing.assert_allclose(loss, np.log(4))
    assert membound.cross_entropy(f32(0, 4), np.zeros(0, np.int64)).shape == (0,)
    good = {"logits": f32(3, 4), "labels": np.array([0, -100, 3]), "validate": True}
    membound.cross_entropy(**good)
    for bad in (4, -1):
        with pytest.raises(ValueError, match=rf"'labels' must hold numbers from 0 to 3.*got {bad}"):
            membound.cross_entropy(**{**good, "labels": np.array([0, bad, 3])})


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    for cols in (96, 32000, 50257):
        logits, loss = torch.zeros(64, cols, device="cuda"), torch.empty(64, device="cuda")
        labels, gradient = torch.randint(cols, (64,), device="cuda"), torch.empty_like(logits)
        call = {"out": loss, "dlogits": gradient, "dloss": 0.5}
        membound.cross_entropy(logits, labels, **call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            membound.cross_entropy(logits, labels, **call)
        logits.normal_()
        graph.replay()
        leaf = logits.double().requires_grad_()
        right = torch.nn.functional.cross_entropy(leaf, labels, reduction="none")
        (0.5 * right.sum()).backward()
        torch.testing.assert_close(loss.double(), right.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient.double(), leaf.grad, rtol=1e-4, atol=1e-6)


def overlapping():
    buffer = f32(5, 4)
    return {"logits": buffer[:3], "dlogits": buffer[1:4]}


CASES: list[Case] = [
    ("a list", lambda: {"logits": [[1.0]]}, TypeError, "logits"),
    ("integers", lambda: {"logits": np.ones((3, 4), np.int32)}, TypeError, "logits"),
    ("no axis", lambda: {"logits": np.ones((), np.float32)}, ValueError, "logits"),
    ("no columns", lambda: {"logits": f32(3, 0)}, ValueError, "logits"),
    ("labels as a list", lambda: {"labels": [1, 2, 3]}, TypeError, "labels"),
    ("floating labels", lambda: {"labels": f32(3)}, TypeError, "labels"),
    ("labels of another shape", lambda: {"labels": np.zeros(4, int)}, ValueError, "labels"),
    ("a broken ignore_index", lambda: {"ignore_index": 0.5}, TypeError, "ignore_index"),
    ("smoothing above 1", lambda: {"label_smoothing": 1.1}, ValueError, "label_smoothing"),
    ("negative z loss", lambda: {"z_loss": -1e-4}, ValueError, "z_loss"),
    ("a cap of 0", lambda: {"softcap": 0.0}, ValueError, "softcap"),
    ("a cap that is no number", lambda: {"softcap": float("nan")}, ValueError, "softcap"),
    ("validate", lambda: {"validate": 1}, TypeError, "validate"),
    ("out of another shape", lambda: {"out": f32(4)}, ValueError, "out"),
    ("out of another dtype", lambda: {"out": np.ones(3)}, TypeError, "out"),
    ("read-only dlogits", lambda: {"dlogits": bad_calls.read_only()}, ValueError, "dlogits"),
    ("dlogits of another shape", lambda: {"dlogits": f32(3, 5)}, ValueError, "dlogits"),
    ("overlap", overlapping, ValueError, "dlogits"),
    ("dloss alone", lambda: {"dloss": 1.0}, ValueError, "dloss"),
    ("infinite dloss", lambda: {"dlogits": f32(), "dloss": float("inf")}, ValueError, "dloss"),
    ("wide dloss", lambda: {"dlogits": f32(), "dloss": np.ones(3)}, TypeError, "dloss"),
    ("weight as a list", lambda: {"weight": [1.0] * 4}, TypeError, "weight"),
    ("integers as weight", lambda: {"weight": np.ones(4, int)}, TypeError, "weight"),
    ("another width", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("a weight of rows", lambda: {"weight": f32(3, 4)}, ValueError, "weight"),
    ("another reduction", lambda: {"reduction": "avg"}, ValueError, "reduction"),
    ("no reduction", lambda: {"reduction": None}, ValueError, "reduction"),
    ("out of rows", lambda: {"reduction": "sum", "out": f32(3)}, ValueError, "out"),
    ("row_losses alone", lambda: {"row_losses": f32(3)}, ValueError, "row_losses"),
    (
        "row_losses of another shape",
        lambda: {"reduction": "sum", "row_losses": f32(4)},
        ValueError,
        "row_losses",
    ),
    ("return_z_loss", lambda: {"return_z_loss": 1}, TypeError, "return_z_loss"),
    ("return_predictions", lambda: {"return_predictions": 1}, TypeError, "return_predictions"),
    ("dloss of another shape", lambda: {"dlogits": f32(), "dloss": f32(2)}, ValueError, "dloss"),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    good = {"logits": f32(), "labels": np.zeros(3, np.int64)}
    bad_calls.check(membound.cross_entropy, call(), good, expected, argument)
