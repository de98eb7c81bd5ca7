# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The overhead of a call beyond the kernel, and the cost of an import.

Budgets are for a quiet machine of the speed at which they were set, told by what numpy.add takes;
the tests allow three times as much, which still fails for what they guard against (torch's Python
__dlpack__ costs 1.8 us an array, a dispatcher op 2.4 us a call).
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from operator import attrgetter

import numpy as np
import pytest

import membound

# Processes that share cores and caches increase each other's CPU time.
alone = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="times calls: run it without other tests beside it"
)
ALLOWANCE = 3
ADDITION = 287  # nanoseconds of numpy.add on 2 x 8 with out=, where budgets were set
FRAMEWORKS = ("torch", "jax", "jaxlib", "numpy", "cupy", "ml_dtypes")


def nanoseconds(call: Callable[[], object], calls: int = 1000, repeats: int = 25) -> float:
    """CPU time of one call: other processes slow the clock down, but are not counted."""
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(calls):
            call()
        times.append((time.process_time_ns() - start) / calls)
    return statistics.median(sorted(times)[: repeats // 2])


def overhead(call: Callable[[], object], rounds: int = 5) -> float:
    """The cost of a call beyond its lambda, scaled to a machine where numpy.add takes ADDITION.

    It includes the kernel on 2 x 8. The minimum of several rounds is taken, because another process
    can disturb a whole round of 30 ms.
    """
    x, out = np.ones((2, 8), np.float32), np.empty((2, 8), np.float32)

    def scaled() -> float:
        nothing = nanoseconds(lambda: None)
        addition = nanoseconds(lambda: np.add(x, x, out)) - nothing
        return (nanoseconds(call) - nothing) / max(1.0, addition / ADDITION)

    return min(scaled() for _ in range(rounds))


def arrays(framework: str):
    x, w, out = np.ones((2, 8), np.float32), np.ones(8, np.float32), np.empty((2, 8), np.float32)
    if framework == "numpy":
        return x, w, out
    torch = pytest.importorskip("torch")
    return tuple(torch.from_numpy(a) for a in (x, w, out))


# Each of the three arrays of torch has a version counter to be read besides.
OUT_GIVEN = {"numpy": 350, "torch": 650}


@alone
@pytest.mark.parametrize("framework", OUT_GIVEN)
def test_out_given(framework, record_property):
    x, w, out = arrays(framework)
    cost = overhead(lambda: membound.rms_norm(x, w, out=out))
    record_property("nanoseconds", cost)
    print(f"{framework}, out= given: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * OUT_GIVEN[framework]


def norm_calls(framework: str) -> dict[str, Callable[[], object]]:
    """Calls of the other functions with all outputs given."""
    x, w, out = arrays(framework)
    residual, dweight, total = arrays(framework)
    rstd = arrays(framework)[1][:2]
    dbias = arrays(framework)[1]
    return {
        "add_rms_norm": lambda: membound.add_rms_norm(x, residual, w, out=out, residual_out=total),
        "fused_add_rms_norm": lambda: membound.fused_add_rms_norm(out, total, w),
        "rms_norm_backward": lambda: membound.rms_norm_backward(
            x, residual, w, rstd, dx=out, dweight=dweight
        ),
        "add_rms_norm_backward": lambda: membound.add_rms_norm_backward(
            x, residual, residual, w, rstd, dx=out, dweight=dweight
        ),
        "rms_norm_gated": lambda: membound.rms_norm_gated(x, residual, w, out=out),
        "rms_norm_gated_backward": lambda: membound.rms_norm_gated_backward(
            x, residual, residual, w, rstd, dx=out, dz=total, dweight=dweight
        ),
        "layer_norm": lambda: membound.layer_norm(x, w, dbias, out=out),
        "add_layer_norm": lambda: membound.add_layer_norm(
            x, residual, w, dbias, out=out, residual_out=total
        ),
        "layer_norm_backward": lambda: membound.layer_norm_backward(
            x, residual, w, rstd, rstd, dx=out, dweight=dweight, dbias=dbias
        ),
        "add_layer_norm_backward": lambda: membound.add_layer_norm_backward(
            x, residual, residual, w, rstd, rstd, dx=out, dweight=dweight, dbias=dbias
        ),
    }


# Each array read costs 40 to 60 ns more, torch's version counters 95. Of a backward on four NumPy
# arrays 370 ns are the call's; the rest is the kernel's, whose sums have to be set up.
BUDGETS = {
    "add_rms_norm": 800,
    "fused_add_rms_norm": 700,
    "rms_norm_backward": 1600,
    "add_rms_norm_backward": 1700,
    "rms_norm_gated": 600,
    "rms_norm_gated_backward": 2000,
    "layer_norm": 500,
    "add_layer_norm": 900,
    "layer_norm_backward": 2000,
    "add_layer_norm_backward": 2100,
}
MORE = {"numpy": 0, "torch": 200}  # for the version counters and requires_grad of its arrays


@alone
@pytest.mark.parametrize("op", BUDGETS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_results_given(framework, op, record_property):
    cost = overhead(norm_calls(framework)[op])
    record_property("nanoseconds", cost)
    print(f"{framework}, {op}, results given: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * (BUDGETS[op] + MORE[framework])


@alone
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_allocating(framework, record_property):
    x, w, _ = arrays(framework)
    cost = overhead(lambda: membound.rms_norm(x, w))
    record_property("nanoseconds", cost)
    print(f"{framework}, allocating: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * 1100


@alone
def test_allocating_several(record_property):
    """That no function of torch's is called for a result test_torch_results.py shows."""
    x, w, _ = arrays("torch")
    cost = overhead(lambda: membound.rms_norm(x, w, return_rstd=True))
    record_property("nanoseconds", cost)
    print(f"torch, allocating with rstd: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * 1700


# With the graph recorded and two results allocated: half of it is torch's autograd.Function.
RECORDED = {"rms_norm": 4700, "add_rms_norm": 6000, "silu_and_mul": 4200, "rope": 6800}


@alone
@pytest.mark.parametrize("op", RECORDED)
def test_recorded(op, record_property):
    torch = pytest.importorskip("torch")
    mt = pytest.importorskip("membound.torch")
    x, w, residual = (torch.ones(s, requires_grad=True) for s in ((2, 8), (8,), (2, 8)))
    q, k = (torch.ones(1, 1, heads, 8, requires_grad=True) for heads in (2, 1))
    angles = torch.ones(1, 4)
    calls = {
        "rms_norm": lambda: mt.rms_norm(x, w),
        "add_rms_norm": lambda: mt.add_rms_norm(x, residual, w),
        "silu_and_mul": lambda: mt.silu_and_mul(x),
        "rope": lambda: mt.rope(q, k, angles, angles),
    }
    cost = overhead(calls[op])
    record_property("nanoseconds", cost)
    print(f"torch, {op}, graph recorded: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * RECORDED[op]


# Through the dispatcher of torch, which is most of it, and without: what compiled graphs call. Of a
# Python function it was 6900.
OPERATORS = {
    "rms_norm_inference.default": 2000,
    "rms_norm_forward.default": 2300,
    "builtins.rms_norm_inference": 700,
    "builtins.rms_norm_forward": 1000,
}


@alone
@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op, record_property):
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("membound.torch._kernels")
    if "rms_norm_inference" not in kernels.in_extension:
        pytest.skip("this torch has no stable C interface")
    x, w = torch.ones(2, 8), torch.ones(8)
    operator = attrgetter(op)(torch.ops.membound)
    cost = overhead(lambda: operator(x, w, 1e-6, 0.0, "once"))
    record_property("nanoseconds", cost)
    print(f"torch.ops.membound.{op}: {cost:.0f} ns with the kernel")
    assert cost < ALLOWANCE * OPERATORS[op]


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by_membound() -> tuple[list[str], float]:
    program = (
        "import sys, time; before = set(sys.modules); start = time.perf_counter();"
        "import membound; taken = time.perf_counter() - start;"
        "import json; print(json.dumps([sorted(set(sys.modules) - before), taken]))"
    )
    names, seconds = json.loads(output_of(program))
    return names, seconds


def test_import_brings_in_no_framework():
    names, _ = imported_by_membound()
    assert "membound._core" in names
    assert [name for name in names if name.split(".")[0] in FRAMEWORKS] == []


def test_import_is_quick():
    seconds = min(imported_by_membound()[1] for _ in range(5))
    print(f"import membound: {seconds * 1e3:.1f} ms")
    assert seconds < 0.060


def test_a_numpy_call_brings_in_no_other_framework():
    program = (
        "import numpy, membound, sys; membound.rms_norm(numpy.ones((2, 8), 'f4'));"
        "print(*sys.modules)"
    )
    loaded = {name.split(".")[0] for name in output_of(program).split()}
    assert "numpy" in loaded
    assert loaded.isdisjoint({"torch", "jax", "cupy"})


def test_large_outputs_do_not_fault_page_by_page():
    """A fresh 64 MiB output asks for huge pages: far fewer page faults than 4 KiB pages take."""
    resource = importlib.import_module("resource")
    torch = pytest.importorskip("torch")
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as setting:
        if "[never]" in setting.read():
            pytest.skip("this kernel has huge pages switched off")
    x = torch.ones(4096, 4096)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    membound.rms_norm(x)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < x.nbytes // 4096 // 4
