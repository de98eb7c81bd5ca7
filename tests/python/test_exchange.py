# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: which kinds are accepted, what is returned, and ownership."""

from __future__ import annotations

import array
import gc
import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from dlpack_objects import DlpackObject

import membound

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EVERY_DTYPE = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]


def expected(x: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def assert_close(result: np.ndarray, x: np.ndarray) -> None:
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}
    rtol = tolerance[x.dtype.name]
    np.testing.assert_allclose(result.astype(np.float64), expected(x), rtol=rtol, atol=1e-30)


@pytest.fixture
def x(seed) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((6, 10)).astype(np.float32)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


# --- NumPy ---


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_numpy_result(x, dtype):
    x = x.astype(dtype)
    y, rstd = membound.rms_norm(x, return_rstd=True)
    assert type(y) is np.ndarray
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert rstd.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert rstd.shape == x.shape[:-1]
    assert_close(y, x)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_new_result_is_contiguous_whatever_the_input(x, order):
    y = membound.rms_norm(np.asarray(x, order=order))
    assert y.flags.c_contiguous
    assert_close(y, x)


def test_numpy_views_of_every_kind(x):
    frozen = x.copy()
    frozen.flags.writeable = False
    for view in (x[::2], x[:, ::-1], x[::-1, 1:9:3], np.broadcast_to(x[0], (3, 10)), frozen):
        assert_close(membound.rms_norm(view), np.ascontiguousarray(view))


def test_memmap(x, tmp_path):
    on_disk = np.memmap(tmp_path / "x", np.float32, "w+", shape=x.shape)
    on_disk[:] = x
    y = membound.rms_norm(on_disk)
    assert type(y) is np.ndarray
    assert_close(y, x)


def test_dtypes_that_are_equal_but_not_the_same_object(x):
    named = np.dtype(np.float32, metadata={"unit": "m"})
    swapped_twice = BFLOAT16.newbyteorder().newbyteorder()
    assert_close(membound.rms_norm(x.astype(named)), x)
    y = membound.rms_norm(x.astype(BFLOAT16).view(swapped_twice))
    assert_close(y.view(BFLOAT16), x.astype(BFLOAT16))


def test_out_is_returned_and_written_in_place(x):
    out = np.empty_like(x)
    assert membound.rms_norm(x, out=out) is out
    assert_close(out, x)
    before = x.copy()
    assert membound.rms_norm(x, out=x) is x
    assert_close(x, before)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 0, 1)], ids=str)
def test_zero_rows(shape, torch):
    weight = np.ones(shape[-1], np.float32)
    y, rstd = membound.rms_norm(np.empty(shape, np.float32), weight, return_rstd=True)
    assert (y.shape, rstd.shape) == (shape, shape[:-1])
    y, rstd = membound.rms_norm(torch.empty(shape), torch.ones(shape[-1]), return_rstd=True)
    assert (y.shape, rstd.shape) == (shape, shape[:-1])


# --- torch ---


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_torch_result(x, dtype, torch):
    kind = getattr(torch, dtype.name)
    t = torch.from_numpy(x).to(kind)
    y, rstd = membound.rms_norm(t, return_rstd=True)
    assert type(y) is torch.Tensor
    assert (y.dtype, y.shape, y.is_contiguous()) == (kind, t.shape, True)
    assert y.untyped_storage().resizable()
    assert rstd.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
    assert_close(y.double().numpy(), t.float().numpy().astype(dtype))


def test_torch_views(x, torch):
    t = torch.from_numpy(x)
    for view in (t.T, t[::2, ::3], t[0].expand(4, 10), t[:, 1:], t.unflatten(1, (2, 5)).mT):
        y = membound.rms_norm(view)
        assert y.is_contiguous()
        assert_close(y.numpy(), view.contiguous().numpy())


def test_torch_parameter_under_no_grad(x, torch):
    weight = torch.nn.Parameter(torch.full((10,), 2.0))
    with torch.no_grad():
        y = membound.rms_norm(torch.from_numpy(x), weight)
        membound.rms_norm(torch.from_numpy(x), out=torch.nn.Parameter(torch.zeros(6, 10)))
    assert not y.requires_grad
    assert_close(y.numpy() / 2, x)


def test_torch_inference_tensors(x, torch):
    with torch.inference_mode():
        t = torch.from_numpy(x).clone()
        out = membound.rms_norm(t)
    assert membound.rms_norm(t, out=out) is out
    assert_close(out.numpy(), x)


def test_autograd_notices_that_out_was_overwritten(x, torch):
    factor = torch.ones(6, 10, requires_grad=True)
    out = torch.zeros(6, 10)
    product = factor * out  # saves out for the gradient of factor
    version = out._version
    membound.rms_norm(torch.from_numpy(x), out=out)
    assert out._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_torch_before_2_10(x):
    """Without the exchange table tensors are read by to_dlpack."""
    pytest.importorskip("torch")
    program = """if True:
        import numpy as np, torch, membound
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            del torch.Tensor.__dlpack_c_exchange_api__
        t, w = torch.arange(12.0).reshape(3, 4), torch.nn.Parameter(torch.ones(4))
        assert membound.rms_norm(w).requires_grad
        for view in (t, t.T[:, :2], t.bfloat16(), t[:0]):
            with torch.no_grad():
                y, rstd = membound.rms_norm(view, out=torch.empty_like(view), return_rstd=True)
            wide = view.double()
            right = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            assert torch.allclose(y.double(), right, rtol=1e-2), (y, right)
        for bad in (w, t.to_sparse(), torch.empty(2, 2, device="meta")):
            try:
                membound.rms_norm(bad, out=torch.empty(2, 2))
            except (TypeError, ValueError, RuntimeError) as error:
                assert "rms_norm: argument 'x'" in str(error), error
            else:
                raise AssertionError(bad)
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torch_compile_runs_the_call_between_graphs():
    """Dynamo also traces membound's Python code that classifies a new type."""
    pytest.importorskip("torch")
    program = """if True:
        import torch, membound
        weight = torch.nn.Parameter(torch.full((8,), 2.0))
        compiled = torch.compile(lambda x: membound.rms_norm(x * 2, weight) + 1, backend="eager")
        x = torch.arange(32.0).reshape(4, 8)
        with torch.no_grad():
            right = torch.nn.functional.rms_norm(x * 2, (8,), weight, 1e-6) + 1
            assert torch.allclose(compiled(x), right)
            assert torch.allclose(membound.rms_norm(x, weight), membound.rms_norm(x) * 2)
    """
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- the standard library, and arrays of unknown frameworks ---


@pytest.mark.parametrize("code", ["f", "d"])
def test_buffers(x, code):
    values = array.array(code, x.ravel().tolist())
    view = memoryview(values).cast("B").cast(code, x.shape)
    y, rstd = membound.rms_norm(view, return_rstd=True)
    assert type(y) is memoryview
    assert (y.format, y.shape, rstd.format, rstd.shape) == (code, x.shape, code, x.shape[:1])
    assert_close(np.asarray(y), x if code == "f" else x.astype(np.float64))
    flat = membound.rms_norm(values, out=array.array(code, values))
    assert type(flat) is array.array
    assert_close(np.asarray(flat), np.asarray(values))


@pytest.mark.parametrize("versioned", [True, False], ids=["1.x", "0.x"])
def test_dlpack_objects(x, versioned):
    lent = DlpackObject(x, versioned=versioned)
    y = membound.rms_norm(lent)
    assert type(y) is np.ndarray
    assert_close(y, x)
    out = DlpackObject(np.zeros_like(x), versioned=versioned)
    assert membound.rms_norm(x, out=out) is out
    assert_close(out.array, x)
    assert all(request["stream"] is None for request in (*lent.requests, *out.requests))


def test_dlpack_objects_may_be_read_only_inputs(x):
    x.flags.writeable = False
    assert_close(membound.rms_norm(DlpackObject(x)), x)


def test_dlpack_memory_is_given_back(x):
    references = sys.getrefcount(x)
    lent = DlpackObject(x)
    for _ in range(10):
        membound.rms_norm(lent)
    del lent
    gc.collect()
    assert sys.getrefcount(x) == references


def test_jax_arrays_go_to_membound_jax(x):
    jax = pytest.importorskip("jax")
    jax_numpy = importlib.import_module("jax.numpy")
    y, rstd = membound.rms_norm(jax_numpy.asarray(x), jax_numpy.ones(10), return_rstd=True)
    assert isinstance(y, jax.Array)
    assert isinstance(rstd, jax.Array)
    assert_close(np.asarray(y), x)


# --- references, memory, threads ---


def kinds_of_calls(x: np.ndarray) -> dict[str, object]:
    bf16, lent, view = x.astype(BFLOAT16), DlpackObject(x), memoryview(x)
    w, rstd = np.ones(10, np.float32), np.ones(6, np.float32)
    calls = {
        "add": lambda: membound.add_rms_norm(x, x, w, return_rstd=True),
        "add in place": lambda: membound.fused_add_rms_norm(x.copy(), x.copy(), w),
        "backward": lambda: membound.rms_norm_backward(x, x, w, rstd),
        "backward, nothing wanted": lambda: membound.rms_norm_backward(
            x, x, None, rstd, need_dx=False
        ),
        "backward of lent arrays": lambda: membound.add_rms_norm_backward(lent, x, lent, w, rstd),
        "backward error": lambda: refused_backward(x, rstd),
        "layer": lambda: membound.layer_norm(x, w, w, return_stats=True),
        "layer add": lambda: membound.add_layer_norm(x, x, w, w, return_stats=True),
        "layer backward": lambda: membound.layer_norm_backward(x, x, w, rstd, rstd),
        "layer backward, no weight": lambda: membound.layer_norm_backward(x, x, None, rstd, rstd),
        "layer backward of lent arrays": lambda: membound.layer_norm_backward(
            lent, lent, None, rstd, rstd, need_dx=False
        ),
        "gemma": lambda: membound.gemma_rms_norm(x, w),
        "numpy": lambda: membound.rms_norm(x, return_rstd=True),
        "bfloat16": lambda: membound.rms_norm(bf16),
        "dlpack": lambda: membound.rms_norm(lent),
        "buffer": lambda: membound.rms_norm(view),
        "numpy error": lambda: refused(x[:, :0]),
        "list": lambda: refused([1.0]),
    }
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        t, tw, ones = torch.from_numpy(x), torch.ones(10), torch.ones(6)
        calls["torch"] = lambda: membound.rms_norm(t, tw, return_rstd=True)
        calls["torch add"] = lambda: membound.add_rms_norm(t, t, tw, return_rstd=True)
        calls["torch backward"] = lambda: membound.rms_norm_backward(t, t, tw, ones)
        calls["torch layer backward"] = lambda: membound.layer_norm_backward(t, t, None, ones, ones)
        calls["torch error"] = lambda: refused(t.to_sparse())
    return calls


def refused_backward(x: np.ndarray, rstd: np.ndarray) -> None:
    with pytest.raises(ValueError, match="rstd"):
        membound.rms_norm_backward(x, x, None, rstd[:1])


def refused(bad: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        membound.rms_norm(bad)


KINDS = ["numpy", "bfloat16", "dlpack", "buffer", "numpy error", "list", "torch", "torch error"]
KINDS += ["add", "add in place", "backward", "backward, nothing wanted", "backward of lent arrays"]
KINDS += ["backward error", "torch add", "torch backward", "layer", "layer add", "layer backward"]
KINDS += ["layer backward, no weight", "layer backward of lent arrays", "gemma"]
KINDS += ["torch layer backward"]


def growth(call: Callable[[], object]) -> int:
    """Return how many bytes of Python's memory 500 calls leak."""
    gc.freeze()  # a collection over all objects of frameworks takes a second
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.unfreeze()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks(x, kind):
    calls = kinds_of_calls(x)
    if kind not in calls:
        pytest.skip("torch is not installed")
    for _ in range(20):
        calls[kind]()
    # A leak is at least 16 bytes a call; memory that another thread holds is counted once.
    assert min(growth(calls[kind]) for _ in range(3)) < 500 * 16


def test_reference_counts_of_arguments(x):
    weight, out, eps = np.ones(10, np.float32), np.empty_like(x), 3.25e-5
    counted = (x, weight, out, eps, x.dtype, type(x), None)
    before = [sys.getrefcount(item) for item in counted]
    for _ in range(100):
        membound.rms_norm(x, weight, eps=eps, out=out)
        refused(x[:, :0])
    after = [sys.getrefcount(item) for item in counted]
    # dtypes, types and None are shared with other code: a leak would change them by 100 or more.
    assert after[:4] == before[:4]
    assert all(new - old < 50 for new, old in zip(after[4:], before[4:], strict=True))


def test_many_threads_at_once(seed):
    """All kinds concurrently, with new types, and with sizes on both sides of the GIL threshold."""
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal((rows, 512)).astype(np.float32) for rows in (1, 7, 400)]
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    start = threading.Barrier(8)

    def work(index: int) -> None:
        lent_type = type(f"Lent{index}", (DlpackObject,), {})  # a type that only this thread uses
        start.wait()
        for turn in range(60):
            x = inputs[(index + turn) % len(inputs)]
            kind = (index + turn) % 3
            given = x if kind == 0 else lent_type(x)
            if kind == 2 and torch is not None:
                given = torch.from_numpy(x)
            assert_close(np.asarray(membound.rms_norm(given)), x)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, index) for index in range(8)]:
            done.result()


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="there is no GIL to release"
)
def test_long_calls_let_other_threads_run():
    x = np.ones((4096, 4096), np.float32)
    out = np.empty_like(x)
    stop = threading.Event()
    calls = threading.Thread(target=lambda: [membound.rms_norm(x, out=out) for _ in range(20)])
    ticks = 0
    calls.start()
    while calls.is_alive():
        ticks += 1
        stop.wait(0.0005)
    assert ticks > 20


def test_types_seen_are_bounded():
    """Beyond a thousand types the table stops growing, and calls still work."""
    x = np.ones((2, 4), np.float32)
    for index in range(1200):
        lent_type = type(f"Type{index}", (DlpackObject,), {})
        membound.rms_norm(lent_type(x), out=np.empty_like(x))
    assert type(membound.rms_norm(x)) is np.ndarray
