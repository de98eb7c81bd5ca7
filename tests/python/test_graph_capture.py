# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs and streams: work goes to the producer's current stream, and nowhere else."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
import reference

import membound
from membound.oracle import norms

pytestmark = pytest.mark.gpu

# One width for each tile.
WIDTHS = (64, 257, 1000, 4096, 4097, 16384, 65536, 131072, 1 << 20)


@pytest.fixture
def torch():
    return arrays.torch_with_cuda()


@pytest.fixture
def cupy():
    return arrays.package("cupy")


def _capture(torch, work):
    """A graph of work(), captured on a side stream; using any other stream is an error."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="global"):
        result = work()
    return graph, result


@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_capture_on_a_side_stream(torch, dtype, cols):
    kind = getattr(torch, dtype)
    x = torch.zeros(5, cols, device="cuda", dtype=kind)
    weight = torch.randn(cols, device="cuda").to(kind)
    written = torch.empty_like(x)

    def work():
        y, rstd = membound.rms_norm(x, weight, return_rstd=True)
        membound.rms_norm(x, weight, out=written, rounding="before_weight")
        return y, rstd

    graph, (y, rstd) = _capture(torch, work)
    for _ in range(3):
        x.copy_(torch.randn(5, cols, device="cuda"))
        y.fill_(float("nan"))
        written.fill_(float("nan"))
        graph.replay()
        right, right_rstd = membound.rms_norm(x, weight, return_rstd=True)
        assert torch.equal(y, right)
        assert torch.equal(rstd, right_rstd)
        assert torch.equal(written, membound.rms_norm(x, weight, rounding="before_weight"))
        assert bool(y.isfinite().all())


@pytest.mark.parametrize("cols", [64, 4096, 16384])
def test_a_chain_of_calls_each_waits_for_the_one_before(torch, cols):
    """Launches that overlap the end of their predecessor must still see all its writes."""
    torch.manual_seed(0)
    a = torch.randn(3, cols, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    b, start = torch.empty_like(a), a.clone()

    def work():
        for _ in range(100):
            membound.rms_norm(a, weight, out=b)
            membound.rms_norm(b, weight, out=a)
            membound.rms_norm(a, weight, out=a)

    right = start.clone()
    for _ in range(100):
        for _ in range(3):
            right = membound.rms_norm(right, weight)
            torch.cuda.synchronize()
    graph, _ = _capture(torch, work)
    for _ in range(5):
        a.copy_(start)
        graph.replay()
        assert torch.equal(a, right)


@pytest.mark.parametrize("cols", [64, 4096, 16384])
def test_a_chain_of_layer_norms_each_waits_for_the_one_before(torch, cols):
    torch.manual_seed(0)
    a = torch.randn(3, cols, device="cuda", dtype=torch.bfloat16)
    weight, bias = (torch.randn(cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    b, start = torch.empty_like(a), a.clone()

    def work():
        for _ in range(100):
            membound.layer_norm(a, weight, bias, out=b)
            membound.add_layer_norm(b, a, weight, bias, out=a, residual_out=b)

    right = start.clone()
    for _ in range(100):
        normal = membound.layer_norm(right, weight, bias)
        torch.cuda.synchronize()
        right, _ = membound.add_layer_norm(normal, right, weight, bias)
        torch.cuda.synchronize()
    graph, _ = _capture(torch, work)
    for _ in range(5):
        a.copy_(start)
        graph.replay()
        assert torch.equal(a, right)


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("cols", [64, 4096, 16384])
def test_a_chain_of_gated_norms_each_waits_for_the_one_before(torch, cols, order):
    """The gate of each call is the previous call's result."""
    torch.manual_seed(0)
    a, gate = (torch.randn(3, cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    b, start = torch.empty_like(a), a.clone()
    options = {"norm_before_gate": order}

    def work():
        for _ in range(100):
            membound.rms_norm_gated(gate, a, weight, out=b, **options)
            membound.rms_norm(b, weight, out=a)

    right = start.clone()
    for _ in range(100):
        right = membound.rms_norm_gated(gate, right, weight, **options)
        torch.cuda.synchronize()
        right = membound.rms_norm(right, weight)
        torch.cuda.synchronize()
    graph, _ = _capture(torch, work)
    for _ in range(5):
        a.copy_(start)
        graph.replay()
        assert torch.equal(a, right)


@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantised_norms_are_captured(torch, dtype, cols):
    """New arrays and given ones, each kind of scale, alone and added."""
    kind = getattr(torch, dtype)
    x, residual = (torch.zeros(5, cols, device="cuda", dtype=kind) for _ in range(2))
    weight = torch.randn(cols, device="cuda").to(kind)
    static = torch.full((1,), 0.0625, device="cuda")
    scales = torch.zeros(-(-cols // 128), 5, device="cuda").t()

    def work():
        return (
            *membound.rms_norm_quant(x, weight),
            *membound.rms_norm_quant(x, weight, group_size=128, scale_out=scales),
            membound.rms_norm_quant(x, weight, scale=static, dtype=torch.float8_e5m2),
            *membound.add_rms_norm_quant(x, residual, weight, dtype="int8"),
        )

    def bits(results):
        return [one.reshape(-1).view(torch.uint8).clone() for one in results]

    graph, results = _capture(torch, work)
    for _ in range(3):
        x.copy_(torch.randn(5, cols, device="cuda"))
        residual.copy_(torch.randn(5, cols, device="cuda"))
        for one in results:
            one.view(torch.uint8).fill_(0x5A) if one.stride(-1) == 1 else one.fill_(7.0)
        graph.replay()
        replayed = bits(results)
        for got, right in zip(replayed, bits(work()), strict=True):
            assert torch.equal(got, right)


@pytest.mark.parametrize("cols", [64, 4096, 16384])
def test_other_kernels_between_calls_see_finished_rows(torch, cols):
    """Reads after our writes, and writes after our reads, by other kernels."""
    x = torch.randn(7, cols, device="cuda")
    scratch, y, sums = x.clone(), torch.empty_like(x), torch.zeros(7, device="cuda")

    def work():
        sums.zero_()
        for step in range(50):
            torch.mul(x, float(step + 1), out=scratch)
            membound.rms_norm(scratch, eps=0.0, out=y)
            scratch.fill_(float("nan"))
            sums.add_(y.square().mean(-1))

    graph, _ = _capture(torch, work)
    for _ in range(5):
        graph.replay()
    torch.testing.assert_close(sums, torch.full_like(sums, 50.0), rtol=1e-4, atol=0.0)


def test_torch_work_is_ordered_on_the_current_stream(torch):
    x = torch.zeros(1000, 4096, device="cuda")
    new = torch.randn(1000, 4096, device="cuda")
    right = membound.rms_norm(new)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # the copy starts long after the call below has returned
        x.copy_(new)
        y = membound.rms_norm(x)
        got = y.clone()
    side.synchronize()
    assert torch.equal(got, right)


def test_the_stream_argument_wins_over_the_current_stream(torch):
    x, y = torch.zeros(64, 4096, device="cuda"), torch.empty(64, 4096, device="cuda")
    new = torch.randn(64, 4096, device="cuda")
    right = membound.rms_norm(new)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(new)
    membound.rms_norm(x, out=y, stream=side.cuda_stream)
    side.synchronize()
    assert torch.equal(y, right)


def test_a_refused_call_does_not_break_a_capture(torch):
    x = torch.randn(8, 4096, device="cuda")
    y = torch.empty_like(x)

    def work():
        with pytest.raises(ValueError, match="weight"):
            membound.rms_norm(x, torch.empty(3, device="cuda"), out=y)
        with pytest.raises(ValueError, match="eps"):
            membound.rms_norm(x, eps=-1.0, out=y)
        membound.rms_norm(x, out=y)

    graph, _ = _capture(torch, work)
    y.zero_()
    graph.replay()
    assert torch.equal(y, membound.rms_norm(x))


@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy_capture_on_a_side_stream(cupy, dtype, cols, seed):
    rng = np.random.default_rng(seed)
    x = cupy.zeros((5, cols), dtype)
    y = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        membound.rms_norm(x, out=y)
        stream.synchronize()
        stream.begin_capture()
        membound.rms_norm(x, out=y)
        graph = stream.end_capture()
        for _ in range(3):
            values = rng.standard_normal((5, cols)).astype(dtype)
            x.set(values)
            y.fill(float("nan"))
            graph.launch(stream)
            stream.synchronize()
            reference.assert_right(y.get(), norms.rms_norm(values, None, dtype))


def test_cupy_work_is_ordered_on_the_current_stream(cupy, seed):
    values = np.random.default_rng(seed).standard_normal((20_000, 4096)).astype(np.float32)
    new = cupy.asarray(values)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros_like(new)
        for _ in range(20):  # keeps the stream busy while the call below is made
            x += 1
        x[...] = new
        y = membound.rms_norm(x)
        stream.synchronize()
    reference.assert_right(y[-8:].get(), norms.rms_norm(values[-8:], None, "float32"))
