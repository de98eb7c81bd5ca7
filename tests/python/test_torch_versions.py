# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Writes increment the version counter, so that autograd detects overwritten saved tensors."""

from __future__ import annotations

import contextlib

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

MODES = {"recording": contextlib.nullcontext, "not recording": torch.no_grad}
WRITES = {
    "rms_norm": lambda y: membound.rms_norm(y, out=y),
    "of torch": lambda y: mt.rms_norm(torch.ones(2, 4), out=y),
    "fused_add_rms_norm": lambda y: membound.fused_add_rms_norm(y, y * 2, torch.ones(4)),
    "residual_out": lambda y: membound.add_rms_norm(torch.ones(2, 4), y, residual_out=y),
    "softmax": lambda y: membound.softmax(y, out=y),
    "rope": lambda y: membound.rope(y[None, :, None], freqs=torch.ones(2), out=y[None, :, None]),
    "rms_norm_backward": lambda y: membound.rms_norm_backward(y, y * 1, None, torch.ones(2), dx=y),
    "embedding_backward": lambda y: membound.embedding_backward(
        torch.ones(2, 4), torch.arange(2), 2, out=y, accumulate=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", WRITES)
def test_gradients_do_not_read_what_was_written_over(write, mode):
    x = torch.ones(2, 4, requires_grad=True)
    saved = x * 1
    squared = saved * saved
    with MODES[mode]():
        WRITES[write](saved.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_inference_tensors_have_no_versions():
    """In inference mode and outside of it, alone and together with a tensor that has one."""
    with torch.inference_mode():
        y, residual = torch.randn(2, 4), torch.randn(2, 4)
        right = membound.rms_norm(y)
        membound.rms_norm(y, out=y)
        torch.testing.assert_close(y, right)
    with torch.no_grad():
        membound.rms_norm(y, out=y)
        plain = torch.ones(2, 4)
        membound.fused_add_rms_norm(plain, residual, torch.ones(4))
        assert plain._version == 1
