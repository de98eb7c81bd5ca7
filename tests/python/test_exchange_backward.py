# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out of gradients: which kinds are returned, and that none is leaked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from dlpack_objects import DlpackObject

import membound


@pytest.fixture
def x(seed) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((6, 10)).astype(np.float32)


def test_reference_counts_of_gradients(x):
    weight, rstd = np.ones(10, np.float32), np.ones(6, np.float32)
    dx, dweight, residual = np.empty_like(x), np.empty_like(weight), x.copy()
    counted = (x, weight, rstd, dx, dweight, residual)
    before = [sys.getrefcount(item) for item in counted]
    for _ in range(100):
        membound.rms_norm_backward(x, residual, weight, rstd, dx=dx, dweight=dweight)
        membound.add_rms_norm_backward(x, x, residual, weight, rstd)
        membound.add_rms_norm(x, residual, weight, out=dx, residual_out=residual)
        membound.fused_add_rms_norm(dx, residual, weight)
        membound.gemma_fused_add_rms_norm(dx, residual, weight)
        membound.layer_norm(x, weight, weight, out=dx)
        membound.layer_norm_backward(x, x, None, rstd, rstd, dx=dx, dbias=dweight)
        membound.add_layer_norm_backward(x, x, residual, weight, rstd, rstd)
        with pytest.raises(ValueError, match="rstd"):
            membound.rms_norm_backward(x, x, None, rstd[:1])
    assert [sys.getrefcount(item) for item in counted] == before


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradients_of_arrays_of_several_plain_kinds(x, dtype):
    """Each new gradient has the kind of its array."""
    x = x.astype(dtype)
    weight, rstd = (
        np.ones(10, np.float32),
        np.ones(6, np.float64 if x.itemsize == 8 else np.float32),
    )
    wanted = membound.rms_norm_backward(x, x, weight, rstd)
    lent = membound.rms_norm_backward(DlpackObject(x), x, DlpackObject(weight), rstd)
    mixed = membound.rms_norm_backward(x, DlpackObject(x), memoryview(weight), rstd)
    assert [type(one) for one in lent] == [np.ndarray, np.ndarray]
    assert [type(one) for one in mixed] == [np.ndarray, memoryview]
    for found in (lent, mixed):
        for got, right in zip(found, wanted, strict=True):
            assert np.asarray(got).dtype == right.dtype
            assert np.asarray(got).tobytes() == right.tobytes()


def test_a_bias_without_a_weight_has_a_gradient_of_the_kind_of_dy(x):
    """No array of its shape was given, so it is allocated like dy."""
    rows = np.ones(6, np.float32)
    for dy, kind in ((x, np.ndarray), (memoryview(x), memoryview), (DlpackObject(x), np.ndarray)):
        _, dweight, dbias = membound.layer_norm_backward(dy, x, None, rows, rows)
        assert type(dbias) is kind
        assert dweight is None
        assert np.asarray(dbias).dtype == np.float32
        np.testing.assert_allclose(np.asarray(dbias), x.sum(0), rtol=1e-5, atol=1e-6)
    scalar = memoryview(np.ones((), np.float32))
    with pytest.raises(ValueError, match="'x' must have 1 to 64 axes"):
        membound.layer_norm_backward(scalar, scalar, None, rows, rows, need_dx=False)


def test_one_uncounted_tensor_of_three_does_not_hide_the_others():
    torch = pytest.importorskip("torch")
    x, rows = torch.ones(2, 8), torch.ones(2)
    with torch.inference_mode():
        uncounted = torch.ones(8)
    dx, dbias = torch.ones(2, 8), torch.ones(8)
    versions = dx._version, dbias._version
    membound.layer_norm_backward(
        x, x, torch.ones(8), rows, rows, dx=dx, dweight=uncounted, dbias=dbias
    )
    assert dx._version > versions[0]
    assert dbias._version > versions[1]


def test_torch_before_2_10_computes_gradients(x):
    """Without the exchange table tensors are read by to_dlpack."""
    pytest.importorskip("torch")
    program = """if True:
        import torch, membound
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            del torch.Tensor.__dlpack_c_exchange_api__
        x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4).requires_grad_()
        w = torch.ones(4, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.rms_norm(x, (4,), w, 1e-6).sum().backward()
        with torch.no_grad():
            rstd = membound.rms_norm(x, w, return_rstd=True)[1]
            dx, dw = membound.rms_norm_backward(torch.ones_like(x), x, w, rstd)
        assert torch.allclose(dx, x.grad) and torch.allclose(dw, w.grad)
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_inference_tensor_does_not_hide_a_write_to_another():
    """It has no version counter, but the other one's must still change."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 8)
    with torch.inference_mode():
        uncounted = torch.ones(2, 8)
    for first in (True, False):
        counted = torch.ones(2, 8)
        out, total = (uncounted, counted) if first else (counted, uncounted)
        version = counted._version
        membound.add_rms_norm(x, x, out=out, residual_out=total)
        assert counted._version > version
