# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The device that a call runs on, and the state that it leaves."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
import reference

import membound
from membound.oracle import norms


@pytest.fixture
def torch():
    return arrays.torch_with_cuda()


def test_the_status_says_what_is_here():
    status = membound.cuda_status()
    assert status.message
    assert (status.device_count > 0) == (status.error_code == 0 and status.built_with_cuda)
    assert bool(status.architectures) == status.built_with_cuda
    assert membound.cpu_isa() in ("baseline", "avx2", "avx512", "neon")
    assert membound.cpu_threads() >= 1


def test_a_device_that_is_not_there():
    x = np.ones((2, 8), np.float32)
    with pytest.raises((membound.CudaError, ValueError), match=r"(?i)cuda"):
        membound.rms_norm(x, device="cuda:99")
    with pytest.raises((membound.CudaError, ValueError)):
        membound.device_properties(99)
    # Nothing is broken by it.
    reference.assert_right(membound.rms_norm(x), norms.rms_norm(x, None, "float32"))


def test_without_a_gpu_the_reason_is_in_the_error():
    if membound.cuda_status().device_count:
        pytest.skip("there is a GPU")
    with pytest.raises(membound.CudaError) as caught:
        membound.rms_norm(np.ones((2, 8), np.float32), device="cuda")
    assert "rms_norm" in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("name", arrays.ON_GPU)
def test_an_error_leaves_the_context_usable(name):
    one = arrays.framework(name)
    x = np.ones((3, 64), np.float32)
    there = one.array(x)
    for wrong in ({"eps": float("nan")}, {"rounding": "up"}):
        with pytest.raises(ValueError, match="rms_norm"):
            arrays.call(one, there, **wrong)
    with pytest.raises((membound.CudaError, ValueError)):
        membound.rms_norm(x, device="cuda:99")
    got = one.numpy(arrays.call(one, there))
    reference.assert_right(got, norms.rms_norm(x, None, "float32"))


@pytest.mark.gpu
def test_a_cuda_error_of_somebody_else_is_not_ours(torch):
    """A pending error of another library must not make our next call fail."""
    with pytest.raises(RuntimeError):
        torch.cuda.set_device(99)
    x = torch.ones(3, 64, device="cuda")
    torch.testing.assert_close(membound.rms_norm(x), x, rtol=1e-6, atol=0.0)


@pytest.mark.gpu
def test_arrays_of_two_devices_are_refused(torch):
    x = torch.ones(3, 64, device="cuda")
    with pytest.raises(ValueError, match="weight"):
        membound.rms_norm(x, torch.ones(64))
    with pytest.raises(ValueError, match="out"):
        membound.rms_norm(x, out=torch.ones(3, 64))


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("name", ["torch", "cupy", "numpy"])
def test_arrays_on_the_second_device(name, seed):
    package = arrays.package(name)
    values = np.random.default_rng(seed).standard_normal((33, 4096)).astype(np.float32)
    wanted = norms.rms_norm(values, None, "float32")
    if name == "torch":
        x = package.from_numpy(values).to("cuda:1")
        with package.cuda.device(0):  # jax makes another device current
            y = membound.rms_norm(x)
            assert package.cuda.current_device() == 0
        assert y.device == package.device("cuda:1")
        got = y.cpu().numpy()
    elif name == "cupy":
        with package.cuda.Device(1):
            x = package.asarray(values)
        with package.cuda.Device(0):
            y = membound.rms_norm(x)
            assert package.cuda.runtime.getDevice() == 0
        assert y.device.id == 1
        got = y.get()
    else:
        got = membound.rms_norm(values, device="cuda:1")
    reference.assert_right(got, wanted)


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_torch_on_the_second_device_uses_its_current_stream(torch):
    x = torch.zeros(64, 4096, device="cuda:1")
    new = torch.randn(64, 4096, device="cuda:1")
    right = membound.rms_norm(new)
    torch.cuda.synchronize("cuda:1")
    side = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(new)
        torch.cuda.set_device(0)
        y = membound.rms_norm(x)
    side.synchronize()
    assert torch.equal(y, right)


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_arrays_of_two_gpus_are_refused(torch):
    with pytest.raises(ValueError, match="weight"):
        membound.rms_norm(torch.ones(3, 64, device="cuda:0"), torch.ones(64, device="cuda:1"))
