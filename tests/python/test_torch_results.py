# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""New torch tensors, which its C interface makes, are as its Python functions make them."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HAS_INTERFACE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)


def functions_called(call):
    """The torch functions that allocate a tensor like another, as its profiler shows them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    found = {event.key for event in profile.key_averages()}
    return found & {"aten::empty_like", "aten::new_empty"}


@pytest.mark.parametrize("device", DEVICES)
def test_no_function_of_torch_is_called_for_a_result(device):
    x, weight = torch.randn(4, 8, device=device), torch.ones(8, device=device)
    _, rstd = membound.rms_norm(x, return_rstd=True)

    def every_kind():
        membound.rms_norm(x, return_rstd=True)
        membound.rms_norm_quant(x, dtype="int8")
        membound.rms_norm_backward(x, x, weight, rstd)

    every_kind()
    found = functions_called(every_kind)
    assert found == (set() if HAS_INTERFACE else {"aten::empty_like", "aten::new_empty"})


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_from_outside_in_a_transform(device):
    """torch's functions make tensors without plain memory there, so the operator is called."""
    x, ones = torch.randn(4, 8, device=device), torch.ones(4, 8, device=device)
    norm = membound.rms_norm(x)
    found = torch.func.grad(lambda scale: (membound.rms_norm(x) * scale).sum())(ones)
    assert torch.equal(found, norm)


@pytest.mark.parametrize("device", DEVICES)
def test_each_kind_of_result(device):
    x = torch.randn(3, 5, 64, device=device)
    views = (x, x[:, ::2], x.transpose(0, 1), x[..., 1:], x[0, 0], x[:0], x.expand(2, 3, 5, 64))
    for view in views:
        y, rstd = membound.rms_norm(view, return_rstd=True)
        codes, scale = membound.rms_norm_quant(view, dtype="int8")
        weight = torch.ones(view.shape[-1], device=device)
        dx, dweight = membound.rms_norm_backward(view, view, weight, rstd)
        for made, shape, dtype in (
            (y, view.shape, torch.float32),
            (rstd, view.shape[:-1], torch.float32),
            (codes, view.shape, torch.int8),
            (scale, view.shape[:-1], torch.float32),
            (dx, view.shape, torch.float32),
            (dweight, view.shape[-1:], torch.float32),
        ):
            assert type(made) is torch.Tensor
            assert (made.shape, made.dtype, made.device) == (shape, dtype, x.device)
            assert made.is_contiguous()
            assert not made.requires_grad
            assert made.is_leaf
            assert made.untyped_storage().nbytes() == made.numel() * made.element_size()


def test_inference_mode_makes_inference_tensors():
    x = torch.randn(6, 10)
    with torch.inference_mode():
        assert all(made.is_inference() for made in membound.rms_norm(x, return_rstd=True))
    assert not membound.rms_norm(x).is_inference()


@pytest.mark.gpu
def test_pinned_memory_gives_results_that_are_not():
    x = torch.randn(6, 10).pin_memory()
    y = membound.rms_norm(x)
    assert y.device == x.device
    assert not y.is_pinned()


def test_torch_modes_see_new_results():
    """Without a mode torch's C interface makes results, which no Python mode sees."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    t = torch.randn(6, 10)
    with Counts():
        y, rstd = membound.rms_norm(t, return_rstd=True)
    assert [name.split(".")[1] for name in seen] == ["empty_like", "new_empty"]
    plain, plain_rstd = membound.rms_norm(t, return_rstd=True)
    assert torch.equal(y, plain)
    assert torch.equal(rstd, plain_rstd)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_says_that_memory_is_out(device):
    t = torch.ones(1, 1, device=device).expand(1 << 30, 1 << 20)
    error = torch.OutOfMemoryError if device == "cuda" else MemoryError
    with pytest.raises(error, match="allocate") as caught:
        membound.rms_norm(t)
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert any(text.startswith("rms_norm: no memory for argument 'out'") for text in told)
    assert membound.rms_norm(t[:2, :4]).shape == (2, 4)
