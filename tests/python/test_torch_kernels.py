# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ kernels: torch's dispatcher calls them, and results are the same without it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
kernels = pytest.importorskip("membound.torch._kernels")

# Older versions have no strings in their stable C interface.
HAS_INTERFACE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
needs_interface = pytest.mark.skipif(not HAS_INTERFACE, reason="needs torch 2.10")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NORM = (1e-6, 0.0, "once")
ROPE = (None, None, None, None, 0, "bshd", False, None, 0, None, False, 1.0, False, False)


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


def raw(name):
    return getattr(torch.ops.membound, name).default


def builtin(name):
    """The builtin that Inductor's code calls."""
    return getattr(torch.ops.membound.builtins, name)


by_both = pytest.mark.parametrize("find", [raw, builtin])


@needs_interface
def test_every_kernel_is_in_use():
    """In torch's registry, for the CPU and where there is CUDA for that."""
    assert kernels.in_extension
    keys = ["CPU", "CUDA"] if torch.version.cuda else ["CPU"]
    assert all(found == keys for found in kernels.in_extension.values())
    for name in kernels.in_extension:
        lines = torch._C._dispatch_dump(f"membound::{name}").splitlines()
        homes = {line.split(":")[0]: line for line in lines}
        for key in keys:
            assert "registered at membound/_core" in homes[key]
    assert set(membound._core.torch_kernels()) <= set(kernels.in_extension)


@needs_interface
def test_a_kernel_of_another_schema_is_refused():
    with pytest.raises(TypeError, match=r"x: the kernel 'rms_norm_forward' takes Tensor, Optional"):
        membound._core.implement_torch_operator("x", "rms_norm_forward", "Tensor -> 1")
    assert membound._core.implement_torch_operator("x", "no such kernel", "Tensor -> 1") == []


PRINTS_BITS = """
import torch, membound.torch as mt
from membound.torch._kernels import in_extension
torch.manual_seed(0)
x, w = torch.randn(5, 96, requires_grad=True), torch.randn(96, requires_grad=True)
y = torch.compile(mt.rms_norm, fullgraph=True, backend="aot_eager")(x, w)
(y * y).sum().backward()
with torch.no_grad():
    z, _ = torch.ops.membound.add_rms_norm_inference(y, x, w, 1e-6, 0.0, "once")
    mt.fused_add_rms_norm(z, y, w)
print(len(in_extension))
print([t.view(torch.int32).sum().item() for t in (y, x.grad, w.grad, z)])
"""


def test_python_functions_do_the_same():
    """The functions that older versions of torch run, selected by the environment."""
    found = []
    for value in ("", "python"):
        there = {**os.environ, "MEMBOUND_TORCH_KERNELS": value}
        answer = subprocess.run(
            [sys.executable, "-c", PRINTS_BITS],
            env=there,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(answer.stdout.split("\n"))
    assert (int(found[0][0]) > 0) == HAS_INTERFACE
    assert int(found[1][0]) == 0
    assert found[0][1] == found[1][1]


@by_both
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_strides_give_the_bits_of_eager_calls(dtype, device, find, generator):
    def dfind(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    weight = dfind(12)
    for x in (
        dfind(5, 12),
        dfind(12, 5).mT,
        dfind(5, 24)[:, ::2],
        dfind(12).expand(5, 12),
        dfind(2, 3, 12).transpose(0, 1),
        dfind(0, 12),
        dfind(12),
        dfind(61)[1:].view(5, 12),
    ):
        out = find("rms_norm_inference")(x, weight, *NORM)
        assert out.is_contiguous()
        assert torch.equal(out, membound.rms_norm(x, weight))
        both = find("rms_norm_forward")(x, None, *NORM)
        eager = membound.rms_norm(x, return_rstd=True)
        for mine, theirs in zip(both, eager, strict=True):
            assert mine.stride() == theirs.stride()
            assert torch.equal(mine, theirs)


@by_both
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codes", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("group_size", [None, 64])
def test_quantised_results_have_the_bits_of_eager_calls(codes, group_size, device, find, generator):
    def dfind(*shape):
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    def assert_same(mine, theirs):
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert torch.equal(one.float(), other.float())

    for name in ("rms_norm_quant", "add_rms_norm_quant", "gated_activation_quant"):
        assert (f"{name}_inference" in kernels.in_extension) == HAS_INTERFACE
    weight, scale = dfind(200), torch.full((), 0.25, device=device)
    for x in (dfind(5, 200), dfind(200, 5).mT, dfind(5, 400)[:, ::2], dfind(0, 200), dfind(200)):
        options = {"dtype": codes, "group_size": group_size}
        given = (codes, group_size, None)
        dynamic = find("rms_norm_quant")(x, weight, None, *given, *NORM)
        assert_same(dynamic, membound.rms_norm_quant(x, weight, **options))
        added = find("add_rms_norm_quant")(x, x, weight, None, *given, *NORM)
        assert_same(added, membound.add_rms_norm_quant(x, x, weight, **options))
        gated = (None, None, "gelu", "interleaved", *given, 1.0, 7.0, 0.5)
        keywords = {"kind": "gelu", "packing": "interleaved", "limit": 7.0, "up_offset": 0.5}
        found = find("gated_activation_quant")(x, None, *gated)
        assert_same(found, membound.gated_activation_quant(x, **keywords, **options))
        if group_size is None:
            static, none = find("rms_norm_quant")(x, weight, scale, *given, *NORM)
            assert_same([static], [membound.rms_norm_quant(x, weight, dtype=codes, scale=scale)])
            assert none.numel() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_code_of_any_size(device, generator):
    def block(x, residual, weight):
        x, residual = mt.add_rms_norm(x, residual, weight)
        return mt.silu_and_mul(x, residual)

    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = torch.randn(16, generator=generator).to(device)
    for rows in (1, 3, 64, 0):
        x, residual = (torch.randn(rows, 16, generator=generator).to(device) for _ in range(2))
        assert torch.equal(compiled(x, residual, weight), block(x, residual, weight))


@by_both
@pytest.mark.gpu
def test_graphs_capture_them_on_the_current_stream(find, generator):
    x, weight = (torch.randn(s, generator=generator).cuda() for s in ((64, 512), (512,)))
    dy, side, graph = torch.randn_like(x), torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def step():
        out, rstd = find("rms_norm_forward")(x, weight, *NORM)
        return out, *find("rms_norm_backward")(dy, x, weight, rstd, *NORM, [True, True])

    step()  # loading at the first use cannot be captured
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        found = step()
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert all(map(torch.equal, found, step()))


@by_both
@pytest.mark.multi_gpu
def test_they_run_where_the_tensors_are(find, generator):
    x = torch.randn(64, 512, generator=generator).to("cuda:1")
    with torch.cuda.device(0):
        out = find("rms_norm_inference")(x, None, *NORM)
        assert torch.cuda.current_device() == 0
    assert out.device == x.device
    assert torch.equal(out, membound.rms_norm(x))


@by_both
def test_gradients_that_are_not_wanted_are_empty(find, generator):
    x, dy = (torch.randn(3, 8, generator=generator) for _ in range(2))
    weight = torch.randn(8, generator=generator)
    _, rstd = find("rms_norm_forward")(x, weight, *NORM)
    for wanted in ([True, True], [True, False], [False, True]):
        found = find("rms_norm_backward")(dy, x, weight, rstd, *NORM, wanted)
        assert [g.numel() > 0 for g in found] == wanted
    dx, dweight = find("rms_norm_backward")(dy, x, None, rstd, *NORM, [True, True])
    assert dx.shape == x.shape
    assert dweight.numel() == 0
    with pytest.raises((IndexError, RuntimeError)):
        find("rms_norm_backward")(dy, x, weight, rstd, *NORM, [])


X, W = torch.ones(4, 8), torch.ones(8)
HEADS, TABLE = torch.ones(1, 2, 2, 8), torch.ones(4, 4)
BAD_CALLS = {
    "width": ("rms_norm_forward", "rms_norm", (X, torch.ones(7), *NORM), {}),
    "rounding": (
        "rms_norm_forward",
        "rms_norm",
        (X, W, 1e-6, 0.0, "twice"),
        {"rounding": "twice"},
    ),
    "eps": ("layer_norm_forward", "layer_norm", (X, W, W, -1.0, 0.0), {"eps": -1.0}),
    "integers": ("rms_norm_forward", "rms_norm", (X.int(), None, *NORM), {}),
    "kind": (
        "gated_activation_packed_forward",
        "gated_activation",
        (X, None, "tanh", "halves", 1.0, None, 0.0),
        {"kind": "tanh"},
    ),
    "odd": (
        "gated_activation_packed_forward",
        "gated_activation",
        (X[:, :7], None, "silu", "halves", 1.0, None, 0.0),
        {},
    ),
    "layout": (
        "rope_q_forward",
        "rope",
        (HEADS, TABLE, TABLE, *ROPE[:5], "hsbd", *ROPE[6:]),
        {"layout": "hsbd"},
    ),
    "sections": (
        "rope_q_forward",
        "rope",
        (HEADS, TABLE, TABLE, *ROPE[:9], [1] * 5, *ROPE[10:]),
        {"sections": [1] * 5},
    ),
    "rotary_dim": (
        "rope_q_forward",
        "rope",
        (HEADS, TABLE, TABLE, *ROPE[:7], 0, *ROPE[8:]),
        {"rotary_dim": 0},
    ),
    "dtype": (
        "embedding_forward",
        "embedding",
        (torch.zeros(2, dtype=torch.int64), X, None, None, None, 1.0, 0, False, "int8"),
        {"dtype": "int8"},
    ),
    "padding": (
        "embedding_forward",
        "embedding",
        (torch.zeros(2, dtype=torch.int64), X, None, None, -99, 1.0, 0, False, None),
        {"padding_idx": -99},
    ),
    "codes": (
        "rms_norm_quant",
        "rms_norm_quant",
        (X, W, None, "int4", None, None, *NORM),
        {"dtype": "int4"},
    ),
    "groups": (
        "rms_norm_quant",
        "rms_norm_quant",
        (X, W, None, "int8", 32, None, *NORM),
        {"dtype": "int8", "group_size": 32},
    ),
    "bound": (
        "rms_norm_quant",
        "rms_norm_quant",
        (X, W, None, "int8", None, -1.0, *NORM),
        {"dtype": "int8", "scale_upper_bound": -1.0},
    ),
    "odd, quantised": (
        "gated_activation_quant",
        "gated_activation_quant",
        (X[:, :7], None, None, None, "silu", "halves", "int8", None, None, 1.0, None, 0.0),
        {"dtype": "int8"},
    ),
}


@by_both
@pytest.mark.parametrize("case", BAD_CALLS.values(), ids=BAD_CALLS)
def test_errors_are_those_of_eager_calls(case, find):
    name, function, arguments, options = case
    arrays = [a for a in arguments if isinstance(a, torch.Tensor)]
    if function == "rope":
        arrays.insert(1, None)
    with pytest.raises((ValueError, TypeError)) as eager:
        getattr(membound, function)(*arrays, **options)
    with pytest.raises((ValueError, TypeError)) as mine:
        find(name)(*arguments)
    assert type(mine.value) is type(eager.value)
    assert str(mine.value) == str(eager.value)


@by_both
def test_dtypes_that_no_op_takes(find):
    with pytest.raises(TypeError, match="an argument has a dtype which no op takes"):
        find("rms_norm_forward")(torch.ones(2, 2).to(torch.float8_e4m3fnuz), None, *NORM)


def test_errors_out_of_compiled_code():
    torch.compiler.reset()
    compiled = torch.compile(lambda x, w: mt.rms_norm(x, w), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="rms_norm: argument 'weight'"):
        compiled(X, torch.ones(7))


def resident_bytes() -> int:
    with open("/proc/self/statm") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGESIZE")


LONG_CALLS = {
    "a tensor and a string": lambda find: find("rms_norm_forward")(X, W, *NORM),
    "optionals": lambda find: find("rope_q_forward")(
        HEADS, TABLE, TABLE, *ROPE[:7], 8, 0, None, *ROPE[10:]
    ),
    "a list": lambda find: find("rms_norm_backward")(X, X, W, torch.ones(4), *NORM, [True, True]),
    "no result": lambda find: find("fused_add_rms_norm_inference")(X.clone(), X.clone(), W, 1e-6),
}


def refused(find=raw):
    with pytest.raises(ValueError, match="rounding"):
        find("rms_norm_forward")(X, W, 1e-6, 0.0, "twice")


@by_both
@pytest.mark.parametrize("run", [*LONG_CALLS.values(), refused], ids=[*LONG_CALLS, "an error"])
def test_calls_leave_nothing_behind(run, find):
    """A leak of 30 bytes a call would show each time; other memory is counted once."""
    for _ in range(2000):
        run(find)
    counts = [sys.getrefcount(t) for t in (X, W)]

    def growth():
        before = resident_bytes()
        for _ in range(30_000 if run is not refused else 10_000):
            run(find)
        return resident_bytes() - before

    assert any(growth() < 900_000 for _ in range(3))
    assert [sys.getrefcount(t) for t in (X, W)] == counts


@by_both
def test_calls_of_many_threads(find, generator):
    """Neither call holds the GIL for this much work; only an error acquires it."""
    x = torch.randn(64, 512, generator=generator)
    weight = torch.randn(512, generator=generator)
    right, wrong = membound.rms_norm(x, weight), []

    def work(at):
        for step in range(200):
            if not torch.equal(find("rms_norm_inference")(x, weight, *NORM), right):
                wrong.append((at, step))
            if step % 50 == 0:
                refused(find)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
