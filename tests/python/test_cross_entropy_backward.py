# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy_backward against its definition, torch's autograd, and bad calls."""

from __future__ import annotations

import arrays
import bad_calls
import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from bad_calls import Case, f32
from cross_entropies import KINDS, assert_gradient, definition
from reference import DTYPES, NUMPY_DTYPES
from softmaxes import draw

import membound
from membound.oracle import statistics_dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_width_and_option(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    wide = NUMPY_DTYPES[statistics_dtype(dtype)]
    for cols in (1, 2, 7, 33, 64, 200, 1000, 2049):
        options = KINDS[str(rng.choice(list(KINDS)))]
        logits, dloss = draw(rng, (2, 3, cols), dtype, 2.0), draw(rng, (2, 3), wide.name)
        labels = rng.integers(-1, cols, (2, 3))  # -1: ignored
        _, lse, right = definition(logits, labels, dloss, **options)
        given = [one.array(x) for x in (dloss, logits, labels, lse.astype(wide))]
        found = one.numpy(membound.cross_entropy_backward(*given, **options))
        assert_gradient(found, right, dtype, dloss)
        if not one.takes_out:
            continue
        membound.cross_entropy_backward(*given, **options, dlogits=given[1])
        assert one.numpy(given[1]).tobytes() == found.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_the_forward(dtype, seed):
    rng = np.random.default_rng(seed)
    for options in KINDS.values():
        for cols in (5, 40, 700):
            logits, labels = draw(rng, (9, cols), dtype), rng.integers(0, cols, 9)
            dloss = draw(rng, (9,), statistics_dtype(dtype))
            right = np.empty_like(logits)
            _, lse = membound.cross_entropy(
                logits, labels, dlogits=right, dloss=dloss, return_lse=True, **options
            )
            found = membound.cross_entropy_backward(dloss, logits, labels, lse, **options)
            assert found.tobytes() == right.tobytes()
            strided = np.repeat(np.asfortranarray(logits), 2, 0)[::2]
            found = membound.cross_entropy_backward(dloss, strided, labels, lse, **options)
            assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_small_slopes_of_soft_caps_are_accurate(name, dtype):
    one = framework(name, dtype)
    logits = np.linspace(-24, 24, 97, dtype=dtype)[None]  # slopes from 1 to 2e-10
    labels = np.array([48])
    _, lse, right = definition(logits, labels, 1.0, softcap=2.0)
    given = [one.array(x) for x in (logits, labels, lse.astype(dtype))]
    found = one.numpy(membound.cross_entropy_backward(1.0, *given, softcap=2.0))
    np.testing.assert_allclose(found, right, rtol=16 * np.finfo(dtype).eps)


def test_as_torch_differentiates_it(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    logits = torch.randn(4, 5, 60, dtype=torch.float64, requires_grad=True)
    labels, dloss = torch.randint(60, (4, 5)), torch.randn(4, 5, dtype=torch.float64)
    capped = 3.0 * torch.tanh(logits / 3.0)
    right = torch.nn.functional.cross_entropy(
        capped.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=0.2
    ).view(4, 5)
    right = right + 0.05 * torch.logsumexp(capped, -1) ** 2
    right.backward(dloss)
    options = {"label_smoothing": 0.2, "z_loss": 0.05, "softcap": 3.0}
    plain = logits.detach()
    loss, lse = membound.cross_entropy(plain, labels, return_lse=True, **options)
    torch.testing.assert_close(loss, right.detach(), rtol=1e-12, atol=1e-12)
    dlogits = membound.cross_entropy_backward(dloss, plain, labels, lse, **options)
    torch.testing.assert_close(dlogits, logits.grad, rtol=1e-12, atol=1e-13)
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.cross_entropy_backward(dloss, logits, labels, lse)


CASES: list[Case] = [
    ("a list", lambda: {"logits": [[1.0]]}, TypeError, "logits"),
    ("integers", lambda: {"logits": np.ones((3, 4), np.int32)}, TypeError, "logits"),
    ("floating labels", lambda: {"labels": f32(3)}, TypeError, "labels"),
    ("labels of another shape", lambda: {"labels": np.zeros(4, int)}, ValueError, "labels"),
    ("wide lse", lambda: {"lse": np.ones(3)}, TypeError, "lse"),
    ("lse of another shape", lambda: {"lse": f32(3, 4)}, ValueError, "lse"),
    ("dloss as text", lambda: {"dloss": "1"}, TypeError, "dloss"),
    ("no dloss", lambda: {"dloss": None}, TypeError, "dloss"),
    ("another width", lambda: {"weight": f32(5)}, ValueError, "weight"),
    ("another reduction", lambda: {"reduction": 1}, ValueError, "reduction"),
    ("dloss of rows", lambda: {"dloss": f32(3), "reduction": "mean"}, ValueError, "dloss"),
    ("lse of three parts", lambda: {"lse": f32(3, 3)}, ValueError, "lse"),
    ("wide dloss", lambda: {"dloss": np.ones(3)}, TypeError, "dloss"),
    ("infinite dloss", lambda: {"dloss": float("nan")}, ValueError, "dloss"),
    ("smoothing below 0", lambda: {"label_smoothing": -0.1}, ValueError, "label_smoothing"),
    ("validate", lambda: {"labels": np.array([0, 4, 1]), "validate": True}, ValueError, "labels"),
    ("dlogits of another dtype", lambda: {"dlogits": np.ones((3, 4))}, TypeError, "dlogits"),
    ("read-only dlogits", lambda: {"dlogits": bad_calls.read_only()}, ValueError, "dlogits"),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    good = {"dloss": 1.0, "logits": f32(), "labels": np.zeros(3, np.int64), "lse": f32(3)}
    bad_calls.check(membound.cross_entropy_backward, call(), good, expected, argument)


def test_what_is_read_may_not_be_written():
    buffer = f32(3, 4)
    with pytest.raises(ValueError, match="'dlogits' must not overlap 'lse'"):
        membound.cross_entropy_backward(
            1.0, f32(3, 4), np.zeros(3, np.int64), buffer[:, 0], dlogits=buffer
        )
