# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Forward and backward in CUDA graphs, on streams and on a second GPU: workspace included."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
import reference
from test_graph_capture import WIDTHS, _capture

import membound
from membound import oracle
from membound.oracle import norms

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    return arrays.torch_with_cuda()


@pytest.fixture
def cupy():
    return arrays.package("cupy")


def step(x, residual, weight, dy, dtotal):
    """A layer's forward and backward, which allocate all results."""
    y, total, rstd = membound.add_rms_norm(x, residual, weight, return_rstd=True)
    dx, dweight = membound.add_rms_norm_backward(dy, dtotal, total, weight, rstd)
    plain = membound.rms_norm_backward(dy, x, weight, rstd)
    return (y, total, rstd, dx, dweight, *plain)


def centred_step(x, residual, weight, dy, dtotal):
    """The same with LayerNorm, the weight as its bias too, and a bias alone."""
    add = membound.add_layer_norm(x, residual, weight, weight, return_stats=True)
    gradients_ = membound.add_layer_norm_backward(dy, dtotal, add[1], weight, *add[2:])
    norm = membound.layer_norm(x, None, weight, return_stats=True)
    dx, _, dbias = membound.layer_norm_backward(dy, x, None, *norm[1:])
    return (*add, *gradients_, *norm, dx, dbias)


def gated_step(x, z, weight, dy, _):
    """The same with a gate, after the norm and before it."""
    found = []
    for order in (True, False):
        options = {"norm_before_gate": order}
        y, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **options)
        found += [y, rstd]
        found += membound.rms_norm_gated_backward(dy, x, z, weight, rstd, **options)
    return found


def heads_step(x, residual, weight, dy, dtotal):
    """Every norm with two heads, whose weights differ."""
    rows = [one[:, None].expand(-1, 2, -1) for one in (x, residual, dy, dtotal)]
    x, residual, dy, dtotal = rows
    weight = weight.expand(2, -1).clone()
    weight[1].neg_()
    by_head = {"normalized_shape": x.shape[-1]}
    y, total, rstd = membound.add_rms_norm(x, residual, weight, return_rstd=True, **by_head)
    found = [y, total, rstd]
    found += membound.add_rms_norm_backward(dy, dtotal, total, weight, rstd, **by_head)
    norm = membound.layer_norm(x, weight, weight, return_stats=True, **by_head)
    found += [*norm, *membound.layer_norm_backward(dy, x, weight, *norm[1:], **by_head)]
    y, rstd = membound.rms_norm_gated(x, residual, weight, return_rstd=True, **by_head)
    gradients_ = membound.rms_norm_gated_backward(dy, x, residual, weight, rstd, **by_head)
    return [*found, y, rstd, *gradients_]


STEPS = {"rms": step, "layer": centred_step, "gated": gated_step, "heads": heads_step}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_step_is_captured_with_its_workspace(torch, dtype, cols, rows, step):
    if rows * cols > 1 << 24:
        pytest.skip("few rows show it")
    kind = getattr(torch, dtype)
    matrices = [torch.zeros(rows, cols, device="cuda", dtype=kind) for _ in range(4)]
    x, residual, dy, dtotal = matrices
    weight = torch.randn(cols, device="cuda").to(kind)
    graph, results = _capture(torch, lambda: step(x, residual, weight, dy, dtotal))
    for _ in range(3):
        for matrix in matrices:
            matrix.copy_(torch.randn(rows, cols, device="cuda"))
        for one in results:
            one.fill_(float("nan"))
        graph.replay()
        right = step(x, residual, weight, dy, dtotal)
        for got, wanted in zip(results, right, strict=True):
            assert torch.equal(got, wanted)
            assert bool(got.isfinite().all())


@pytest.mark.parametrize("cols", [64, 4096, 16384])
def test_a_chain_of_steps_each_waits_for_the_one_before(torch, cols):
    """dweight and dx of each call are inputs of the next; overlapping launches must not race."""
    torch.manual_seed(0)
    x = torch.randn(200, cols, device="cuda")
    start = torch.randn(200, cols, device="cuda")
    weight, rstd = torch.ones(cols, device="cuda"), torch.ones(200, device="cuda")
    dy, into = start.clone(), torch.zeros(cols, device="cuda")

    def work():
        for _ in range(30):
            membound.rms_norm_backward(dy, x, weight, rstd, dx=dy, dweight=into, accumulate=True)
            membound.rms_norm(dy, weight, out=dy)

    def serial():
        grad, total = start.clone(), torch.zeros(cols, device="cuda")
        for _ in range(30):
            grad, dweight = membound.rms_norm_backward(grad, x, weight, rstd)
            torch.cuda.synchronize()
            total += dweight
            grad = membound.rms_norm(grad, weight)
            torch.cuda.synchronize()
        return grad, total

    right, right_total = serial()
    graph, _ = _capture(torch, work)
    for _ in range(5):
        dy.copy_(start)
        into.zero_()
        graph.replay()
        assert torch.equal(dy, right)
        torch.testing.assert_close(into, right_total, rtol=1e-5, atol=1e-3)


def test_the_workspace_comes_from_torchs_allocator(torch):
    """Then it is reused between calls, and owned by graphs."""
    x = torch.randn(1000, 4096, device="cuda")
    weight, rstd = torch.ones(4096, device="cuda"), torch.ones(1000, device="cuda")
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)

    def call(**options):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        membound.rms_norm_backward(x, x, weight, rstd, dx=dx, **options)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        return torch.cuda.max_memory_allocated() - before

    assert call(dweight=dweight) > 0
    assert call(need_dweight=False) == 0


def test_the_workspace_of_two_sums(torch):
    """Workspace for dweight and dbias; none if neither is wanted."""
    x = torch.randn(1000, 4096, device="cuda")
    weight, rows = torch.ones(4096, device="cuda"), torch.ones(1000, device="cuda")
    into = {"dx": torch.empty_like(x), "dweight": weight.clone(), "dbias": weight.clone()}
    torch.cuda.synchronize()

    def call(*wanted):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        options = {name: into[name] for name in wanted}
        options |= {f"need_{name}": name in wanted for name in into}
        membound.layer_norm_backward(x, x, weight, rows, rows, **options)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert call("dx", "dweight", "dbias") > 0
    assert call("dbias") > 0
    assert call("dx") == 0


def test_the_stream_argument_orders_the_workspace_too(torch):
    """torch's allocator does not track that stream, so the stream allocates the workspace."""
    side = torch.cuda.Stream()
    x, new = torch.zeros(2000, 4096, device="cuda"), torch.randn(2000, 4096, device="cuda")
    weight, rstd = torch.ones(4096, device="cuda"), torch.ones(2000, device="cuda")
    right = membound.rms_norm_backward(new, new, weight, rstd)
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(new)
    membound.rms_norm_backward(x, x, weight, rstd, dx=dx, dweight=dweight, stream=side)
    # Memory that torch allocates meanwhile must not be the call's workspace.
    for _ in range(10):
        torch.full((1 << 20,), float("nan"), device="cuda")
    side.synchronize()
    assert torch.equal(dx, right[0])
    assert torch.equal(dweight, right[1])


def test_work_is_ordered_on_the_current_stream(torch):
    x, new = torch.zeros(1000, 4096, device="cuda"), torch.randn(1000, 4096, device="cuda")
    weight, rstd = torch.ones(4096, device="cuda"), torch.ones(1000, device="cuda")
    right = membound.rms_norm_backward(new, new, weight, rstd)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(new)
        dx, dweight = membound.rms_norm_backward(x, x, weight, rstd)
        got = dx.clone(), dweight.clone()
    side.synchronize()
    assert torch.equal(got[0], right[0])
    assert torch.equal(got[1], right[1])


@pytest.mark.parametrize("cols", [64, 1000, 16384])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy_capture_on_a_side_stream(cupy, dtype, cols, seed):
    rng = np.random.default_rng(seed)
    dy, x = cupy.zeros((5, cols), dtype), cupy.zeros((5, cols), dtype)
    weight, rstd = cupy.ones(cols, dtype), cupy.ones(5, oracle.statistics_dtype(dtype))
    dx, dweight = cupy.empty_like(x), cupy.empty_like(weight)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        arguments = {"dx": dx, "dweight": dweight}
        membound.rms_norm_backward(dy, x, weight, rstd, **arguments)
        stream.synchronize()
        stream.begin_capture()
        membound.rms_norm_backward(dy, x, weight, rstd, **arguments)
        graph = stream.end_capture()
        for _ in range(3):
            values = [rng.standard_normal((5, cols)).astype(dtype) for _ in range(2)]
            root = gradients.statistics_of(values[1], dtype)
            for array, value in ((dy, values[0]), (x, values[1]), (rstd, root)):
                array.set(value)
            graph.launch(stream)
            stream.synchronize()
            wanted = norms.rms_norm_backward(*values, weight.get(), root, dtype)
            for got, right in zip((dx, dweight), wanted, strict=True):
                reference.assert_within(got.get(), right)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_the_workspace_is_on_the_second_device(name, seed):
    package = arrays.package(name)
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal((333, 1024)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(1024).astype(np.float32)
    inputs = (dy, x, weight, gradients.statistics_of(x, "float32"))
    if name == "torch":
        there = [package.from_numpy(a).to("cuda:1") for a in inputs]
        with package.cuda.device(0):  # jax makes another device current
            found = membound.rms_norm_backward(*there)
            assert package.cuda.current_device() == 0
        assert all(one.device == package.device("cuda:1") for one in found)
        got = [one.cpu().numpy() for one in found]
    else:
        with package.cuda.Device(1):
            there = [package.asarray(a) for a in inputs]
        with package.cuda.Device(0):
            found = membound.rms_norm_backward(*there)
            assert package.cuda.runtime.getDevice() == 0
        got = [one.get() for one in found]
    for gradient, right in zip(got, norms.rms_norm_backward(*inputs, "float32"), strict=True):
        reference.assert_within(gradient, right)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("at", range(4))
def test_arrays_of_two_gpus_are_refused(torch, at):
    inputs = [torch.ones(3, 64), torch.ones(3, 64), torch.ones(64), torch.ones(3)]
    inputs = [one.to(f"cuda:{int(index == at)}") for index, one in enumerate(inputs)]
    with pytest.raises(ValueError, match=r"rms_norm_backward: .* must be on cuda"):
        membound.rms_norm_backward(*inputs)
